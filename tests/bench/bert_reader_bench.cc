// How fast a rank gets shuffled BERT samples (128 tokens, 20 predictions) out of files in the page cache.
//
//   mpirun -n 2 bert_reader_bench [DIRECTORY]     (default: the directory for temporary files)
//
// shards: gzip, chunks of 1563 x 8, as HetSeq's are, in the order of a training epoch; against HDF5 reading
// the same shards front to back, whole, and doing nothing with them. packed: rows at random; against one
// pread per row. Every value is compared with what was written.
#include <fcntl.h>
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "clocks.h"
#include "comm/mpi.h"
#include "core/descriptor.h"
#include "core/error.h"
#include "core/permutation.h"
#include "core/philox.h"
#include "io/bert_pack.h"
#include "io/bert_set.h"
#include "io/hdf5.h"
#include "io/sample_reader.h"
#include "train/sample_order.h"

namespace motley {
namespace {

constexpr std::uint64_t shard_rows = 25008, shards = 5, rows_in_all = shard_rows * shards;  // 16 blocks each
constexpr hsize_t chunk_rows = 1563, chunk_columns = 8;
constexpr std::uint64_t pool_rows = 65536;
constexpr int steps_per_window = 16;
constexpr io::BertLimits limits{30522, 2, 512};
const io::BertLayout layout{128, 20, DType::u16};

using bench::cpu_s;
using bench::now_s;

// What reading took on this rank; wall time becomes that of the slowest rank.
struct Took {
  double wall_s = 0, cpu_used_s = 0, rows = 0;

  template <class Work>
  void time(const Work& work) {
    const double wall_start_s = now_s(), cpu_start_s = cpu_s();
    work();
    wall_s += now_s() - wall_start_s;
    cpu_used_s += cpu_s() - cpu_start_s;
  }
  double samples_per_s() const {
    double seconds_per_row = wall_s / rows;
    MPI_Allreduce(MPI_IN_PLACE, &seconds_per_row, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return 1 / seconds_per_row;
  }
};

// Token ids as frequent as words are, by Zipf's law: gzip finds little in them, as in real text.
std::int32_t token(std::uint64_t row, std::uint64_t column) {
  static const std::vector<std::int32_t> table = [] {
    std::vector<std::int32_t> ids(1 << 16);
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int32_t>(
          std::pow(30521.0, static_cast<double>(i) / static_cast<double>(ids.size())));
    return ids;
  }();
  const RandomKey key(1, Purpose::initialization, 0, static_cast<std::uint32_t>(column));
  return table[random_block(key, 0, static_cast<std::uint32_t>(row)).x >> 16];
}

std::vector<std::int32_t> column_values(const io::BertMember& member, std::uint64_t first,
                                        std::uint64_t rows) {
  std::vector<std::int32_t> values(rows * member.length);
  for (std::uint64_t i = 0; i < rows; ++i) {
    const std::uint64_t row = first + i;
    for (std::uint64_t j = 0; j < member.length; ++j) {
      std::int32_t& value = values[i * member.length + j];
      if (member.name == "input_ids") value = token(row, j);
      if (member.name == "input_mask") value = 1;
      if (member.name == "segment_ids") value = j > 40 + row * 7 % 60 ? 1 : 0;
      if (member.name == "masked_lm_positions")
        value = static_cast<std::int32_t>(j * 6 + 1 + (row * 13 + j) % 6);
      if (member.name == "masked_lm_ids") value = token(row, 1000 + j);
      if (member.name == "next_sentence_labels") value = static_cast<std::int32_t>(row * 31 % 7 % 2);
    }
  }
  return values;
}

void write_shard(const std::string& path, std::uint64_t first) {
  const io::Hdf5Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
  for (const io::BertMember& member : io::members_of(layout)) {
    const int dimensions = member.array ? 2 : 1;
    const hsize_t extents[] = {shard_rows, member.length}, chunk[] = {chunk_rows, chunk_columns};
    const io::Hdf5Handle space(H5Screate_simple(dimensions, extents, nullptr), H5Sclose);
    const io::Hdf5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_chunk(creation.get(), dimensions, chunk);
    H5Pset_deflate(creation.get(), 4);
    const hid_t type = member.dtype == DType::u8 ? H5T_STD_I8LE : H5T_STD_I32LE;
    const io::Hdf5Handle dataset(H5Dcreate2(file.get(), std::string(member.name).c_str(), type, space.get(),
                                            H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                                 H5Dclose);
    const auto values = column_values(member, first, shard_rows);
    H5Dwrite(dataset.get(), H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  }
}

// All records, as they should arrive.
std::vector<std::byte> all_records() {
  std::vector<std::byte> records(rows_in_all * layout.row_bytes());
  for (const io::BertMember& member : io::members_of(layout)) {
    const auto values = column_values(member, 0, rows_in_all);
    for (std::uint64_t row = 0; row < rows_in_all; ++row) {
      std::byte* out = records.data() + row * layout.row_bytes() + member.offset;
      for (std::size_t j = 0; j < member.length; ++j)  // little-endian: the low bytes come first
        std::memcpy(out + j * size_of(member.dtype), &values[row * member.length + j], size_of(member.dtype));
    }
  }
  return records;
}

struct Ranks {
  int rank = 0, size = 1;
  Ranks() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
  }
};

void verify(const std::vector<std::byte>& expected, const std::vector<std::uint64_t>& rows,
            const std::byte* got) {
  const std::size_t bytes = layout.row_bytes();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (std::memcmp(got + i * bytes, expected.data() + rows[i] * bytes, bytes) != 0)
      fail(ExitCode::internal, "row {} arrived with other values than were written", rows[i]);
  }
}

// The windows of this rank in one epoch.
std::vector<std::vector<std::uint64_t>> windows_of(const io::RowSource& source,
                                                   std::uint64_t samples_per_step) {
  const Ranks ranks;
  train::OrderOptions options;
  options.samples = source.rows;
  options.seed = 3;
  options.pool_rows = pool_rows;
  for (const io::Shard& shard : source.shards) options.shards.push_back({shard.rows, shard.block_rows});
  train::SampleOrder order(options);
  const std::uint64_t batch = samples_per_step * static_cast<std::uint64_t>(ranks.size);
  std::vector<std::vector<std::uint64_t>> windows;
  for (std::uint64_t first = 0, step = 0; first + batch <= source.rows; first += batch, ++step) {
    if (step % steps_per_window == 0) windows.emplace_back();
    const auto samples = order.step(1, first, batch);
    const auto mine = samples.begin() + static_cast<std::ptrdiff_t>(samples_per_step) * ranks.rank;
    windows.back().insert(windows.back().end(), mine, mine + static_cast<std::ptrdiff_t>(samples_per_step));
  }
  return windows;
}

// The windows of an epoch, one after the other.
Took read_epoch(const io::RowSource& source, const std::vector<std::byte>& expected,
                std::uint64_t samples_per_step) {
  const auto reader = io::make_reader(source, MPI_COMM_WORLD, 600, pool_rows);
  Took took;
  for (const auto& window : windows_of(source, samples_per_step)) {
    MPI_Barrier(MPI_COMM_WORLD);
    io::Window got;
    took.time([&] {
      reader->request(window);
      got = reader->take(600);
    });
    verify(expected, window, got.fields[0].data());
    took.rows += static_cast<double>(window.size());
  }
  return took;
}

// Each rank reads its part of the shards, each data set whole, as its own type.
Took read_shards_whole(const io::RowSource& source) {
  const Ranks ranks;
  Took took;
  MPI_Barrier(MPI_COMM_WORLD);
  for (std::size_t i = 0; i < source.shards.size(); ++i) {
    if (static_cast<int>(i) % ranks.size != ranks.rank) continue;
    took.time([&] {
      const io::Hdf5Handle file = io::open_hdf5(source.shards[i].path);
      for (const io::BertMember& member : io::members_of(layout)) {
        const io::Hdf5Handle dataset(H5Dopen2(file.get(), std::string(member.name).c_str(), H5P_DEFAULT),
                                     H5Dclose);
        std::vector<std::int32_t> values(shard_rows * member.length);
        const hid_t type = member.dtype == DType::u8 ? H5T_NATIVE_INT8 : H5T_NATIVE_INT32;
        if (H5Dread(dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0)
          fail(ExitCode::internal, "H5Dread failed");
      }
    });
    took.rows += shard_rows;
  }
  return took;
}

Took read_row_by_row(const io::RowSource& source, const std::vector<std::byte>& expected,
                     std::uint64_t samples_per_step) {
  const Descriptor file(source.path, O_RDONLY, ExitCode::input);
  const std::size_t bytes = layout.row_bytes();
  Took took;
  for (const auto& window : windows_of(source, samples_per_step)) {
    MPI_Barrier(MPI_COMM_WORLD);
    std::vector<std::byte> out;
    took.time([&] {
      out.resize(window.size() * bytes);
      for (std::size_t i = 0; i < window.size(); ++i)
        file.read_at(source.fields[0].file_offset + window[i] * bytes, out.data() + i * bytes, bytes);
    });
    verify(expected, window, out.data());
    took.rows += static_cast<double>(window.size());
  }
  return took;
}

void print(const char* what, std::uint64_t samples_per_step, const Took& ours, const char* peer,
           const Took& theirs) {
  const Ranks ranks;
  const double rate = ours.samples_per_s(), peer_rate = theirs.samples_per_s();
  if (ranks.rank != 0) return;
  fmt::print(
      R"({{"bench":"bert_reader","case":"{}, {} steps x {}","ranks":{},"samples_per_s":{:.0f},"peer":"{}",)"
      R"("peer_samples_per_s":{:.0f},"ratio":{:.2f},"cpu_us_per_sample":{:.2f},)"
      R"("peer_cpu_us_per_sample":{:.2f},"verified":true}})"
      "\n",
      what, steps_per_window, samples_per_step, ranks.size, rate, peer, peer_rate, rate / peer_rate,
      1e6 * ours.cpu_used_s / ours.rows, 1e6 * theirs.cpu_used_s / theirs.rows);
  std::fflush(stdout);
}

void run(const std::filesystem::path& directory) {
  const Ranks ranks;
  const std::filesystem::path files = directory / "motley-bert-reader-bench";
  std::vector<std::string> paths;
  for (std::uint64_t i = 0; i < shards; ++i) paths.push_back((files / fmt::format("{}.h5", i)).string());
  const std::string packed = (files / "packed.h5").string();
  const std::vector<std::byte> expected = all_records();
  if (ranks.rank == 0) {
    std::filesystem::create_directories(files);
    for (std::uint64_t i = 0; i < shards; ++i) write_shard(paths[i], i * shard_rows);
    const std::uint64_t offset = io::create_packed_bert(packed, layout, rows_in_all);
    Descriptor(packed, O_WRONLY, ExitCode::input).write_at(offset, expected.data(), expected.size());
  }
  MPI_Barrier(MPI_COMM_WORLD);
  const io::RowSource in_shards = io::describe_bert_set(paths, 0, limits);
  const io::RowSource in_one = io::describe_bert_set({packed}, 0, limits);
  for (const std::uint64_t samples_per_step : {64, 256}) {
    const auto ours = read_epoch(in_shards, expected, samples_per_step);
    print("gzip shards", samples_per_step, ours, "HDF5, whole shards", read_shards_whole(in_shards));
  }
  for (const std::uint64_t samples_per_step : {64, 256}) {
    const auto ours = read_epoch(in_one, expected, samples_per_step);
    print("packed", samples_per_step, ours, "pread per row",
          read_row_by_row(in_one, expected, samples_per_step));
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (ranks.rank == 0) std::filesystem::remove_all(files);
}

}  // namespace
}  // namespace motley

int main(int argc, char** argv) {
  try {
    const motley::comm::MpiSession session(&argc, &argv);
    motley::run(argc > 1 ? std::filesystem::path(argv[1]) : std::filesystem::temp_directory_path());
    return 0;
  } catch (const motley::Error& error) {
    fmt::print(stderr, "bert_reader_bench: {}\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(error.code()));
    return static_cast<int>(error.code());
  }
}
