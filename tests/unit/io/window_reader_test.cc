#include "io/window_reader.h"

#include <gtest/gtest.h>
#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "failing_memory.h"
#include "io/image_set.h"
#include "io/mpi_file.h"
#include "support/paths.h"
#include "test_files.h"

namespace motley::io {
namespace {

constexpr double timeout_s = 60;
constexpr std::uint64_t rows_of_file = 1000, row_bytes = 12 * 11;

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

// A directory that all ranks see: made by rank 0 and removed when every rank is done with it.
class SharedDirectory {
 public:
  SharedDirectory() {
    std::string name;
    if (world_rank() == 0) {
      directory_ = std::make_unique<test::TemporaryDirectory>();
      name = directory_->path().string();
    }
    int length = static_cast<int>(name.size());
    MPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD);
    name.resize(static_cast<std::size_t>(length));
    MPI_Bcast(name.data(), length, MPI_CHAR, 0, MPI_COMM_WORLD);
    path_ = name;
  }
  ~SharedDirectory() { MPI_Barrier(MPI_COMM_WORLD); }

  // A file made by rank 0, complete on return for every rank.
  std::string file(const char* name, const std::function<void(const std::string&)>& make) const {
    const std::string path = (path_ / name).string();
    if (world_rank() == 0) make(path);
    MPI_Barrier(MPI_COMM_WORLD);
    return path;
  }

 private:
  std::unique_ptr<test::TemporaryDirectory> directory_;
  std::filesystem::path path_;
};

std::vector<std::uint8_t> labels_of(std::uint64_t rows) {
  std::vector<std::uint8_t> labels(rows);
  for (std::uint64_t i = 0; i < rows; ++i) labels[i] = static_cast<std::uint8_t>(i * i % 251);
  return labels;
}

void write_packed(const std::string& path) {
  ImageSetWriter writer(path, rows_of_file, 12, 11, 1);
  const auto images = test::pattern_rows(rows_of_file, row_bytes);
  writer.append(images.data(), labels_of(rows_of_file).data(), rows_of_file);
  writer.finish();
}

void write_chunked(const std::string& path) {
  test::Hdf5File file(path);
  const auto images = test::pattern_rows(rows_of_file, row_bytes);
  const std::vector<std::uint8_t> labels = labels_of(rows_of_file);
  // Chunks that divide neither the rows nor the columns, and labels that only HDF5 can turn around.
  file.add("images", {rows_of_file, 12, 11, 1}, H5T_STD_U8LE, H5T_NATIVE_UINT8, images.data(),
           {{37, 12, 4, 1}, 3});
  file.add("labels", {rows_of_file}, H5T_STD_I64BE, H5T_NATIVE_UINT8, labels.data());
}

void expect_rows(const Window& window, const std::vector<std::uint64_t>& rows, std::size_t label_bytes) {
  ASSERT_EQ(window.rows, rows.size());
  ASSERT_EQ(window.fields.size(), 2U);
  ASSERT_EQ(window.fields[0].size(), rows.size() * row_bytes);
  ASSERT_EQ(window.fields[1].size(), rows.size() * label_bytes);
  const auto* images = reinterpret_cast<const std::uint8_t*>(window.fields[0].data());
  const auto* labels = reinterpret_cast<const std::uint8_t*>(window.fields[1].data());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < row_bytes; ++j) {
      ASSERT_EQ(images[i * row_bytes + j], test::pattern(rows[i], j))
          << "row " << rows[i] << " at place " << i;
    }
    ASSERT_EQ(labels[i * label_bytes], rows[i] * rows[i] % 251) << "row " << rows[i] << " at place " << i;
    for (std::size_t j = 1; j < label_bytes; ++j) ASSERT_EQ(labels[i * label_bytes + j], 0);
  }
}

// Different on every rank and in every window, with repeats.
std::vector<std::uint64_t> random_rows(std::size_t count, unsigned window) {
  std::mt19937_64 random(1000 * window + static_cast<unsigned>(world_rank()));
  std::vector<std::uint64_t> rows(count);
  for (auto& row : rows) row = random() % rows_of_file;
  return rows;
}

// A packed and a chunked file of the same contents.
class WindowReaderOn : public ::testing::TestWithParam<bool> {
 protected:
  bool packed() const { return GetParam(); }
  std::size_t label_bytes() const { return packed() ? 1 : 8; }
  std::string make_file() const { return directory_.file("set.h5", packed() ? write_packed : write_chunked); }
  SharedDirectory directory_;
};

TEST_P(WindowReaderOn, gives_rows_in_the_order_asked_for_with_repeats) {
  const ImageSet set = describe_image_set(make_file());
  ASSERT_EQ(set.source.packed(), packed());
  WindowReader reader(set.source, MPI_COMM_WORLD);
  const std::vector<std::uint64_t> rows = {999, 0, 5, 4, 5, 3, 999, 999, 500, 1, 2};
  reader.request(rows);
  expect_rows(reader.take(timeout_s), rows, label_bytes());
  std::vector<std::uint64_t> all(rows_of_file);
  std::iota(all.rbegin(), all.rend(), 0);
  reader.request(all);
  expect_rows(reader.take(timeout_s), all, label_bytes());
}

TEST_P(WindowReaderOn, ranks_may_ask_for_different_numbers_of_rows_and_for_none) {
  const ImageSet set = describe_image_set(make_file());
  WindowReader reader(set.source, MPI_COMM_WORLD);
  for (unsigned window = 0; window < 6; ++window) {
    const int turn = (world_rank() + static_cast<int>(window)) % 3;
    const auto rows = random_rows(turn == 0 ? 0 : 17 * static_cast<std::size_t>(turn), window);
    reader.request(rows);
    expect_rows(reader.take(timeout_s), rows, label_bytes());
  }
  reader.request({});
  EXPECT_EQ(reader.take(timeout_s).rows, 0U);
}

// Open MPI 4.1.0 to 4.1.4 give the ranks with single rows wrong bytes here when they read collectively (issue
// 10546).
TEST_P(WindowReaderOn, single_rows_of_one_rank_inside_a_long_run_of_another_are_right) {
  const ImageSet set = describe_image_set(make_file());
  WindowReader reader(set.source, MPI_COMM_WORLD);
  // Rows closer than 4096 bytes are read in one piece: rank 0 reads rows 80 to 120 so, and the others one row
  // of them.
  const std::vector<std::uint64_t> rows = world_rank() == 0 ? std::vector<std::uint64_t>{0, 40, 80, 100, 120}
                                                            : std::vector<std::uint64_t>{41, 82};
  reader.request(rows);
  expect_rows(reader.take(timeout_s), rows, label_bytes());
}

TEST_P(WindowReaderOn, two_hundred_windows_arrive_in_order_while_the_main_thread_reduces) {
  const ImageSet set = describe_image_set(make_file());
  WindowReader reader(set.source, MPI_COMM_WORLD);
  constexpr unsigned windows = 200;
  const auto rows_of = [](unsigned window) { return random_rows(1 + (window * 7 + 31) % 90, window); };
  reader.request(rows_of(0));
  std::vector<double> values(1000);
  for (unsigned window = 0; window < windows; ++window) {
    if (window + 1 < windows) reader.request(rows_of(window + 1));
    values.assign(values.size(), window);
    MPI_Request reduction = MPI_REQUEST_NULL;
    MPI_Iallreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_SUM,
                   MPI_COMM_WORLD, &reduction);
    const Window got = reader.take(timeout_s);
    MPI_Wait(&reduction, MPI_STATUS_IGNORE);
    ASSERT_EQ(values.back(), window * world_size());
    ASSERT_NO_FATAL_FAILURE(expect_rows(got, rows_of(window), label_bytes()));
  }
}

TEST_P(WindowReaderOn, can_go_while_windows_are_outstanding) {
  const ImageSet set = describe_image_set(make_file());
  for (unsigned round = 0; round < 5; ++round) {
    WindowReader reader(set.source, MPI_COMM_WORLD);
    reader.request(random_rows(300, round));
    reader.request(random_rows(300, round));
    // The ranks leave at different times.
    std::this_thread::sleep_for(std::chrono::milliseconds(5 * world_rank()));
  }
}

TEST_P(WindowReaderOn, work_on_a_window_is_done_in_the_readers_thread_which_is_told_the_slots) {
  const ImageSet set = describe_image_set(make_file());
  std::thread::id worker;
  std::vector<SlotRun> told;
  const RowWork work = [&](Window& window) {
    if (window.ids.empty()) fail(ExitCode::input, "there is nothing to work on");
    worker = std::this_thread::get_id();
    told = window.runs;
    window.fields[0][0] = std::byte{7};
  };
  WindowReader reader(set.source, MPI_COMM_WORLD, timeout_s, work);
  reader.request({5, 6, 5}, {{3, 10, 2}, {4, 0, 1}});
  const Window window = reader.take(timeout_s);
  EXPECT_EQ(window.fields[0][0], std::byte{7});
  EXPECT_EQ(std::to_integer<int>(window.fields[0][1]), test::pattern(5, 1));
  EXPECT_NE(worker, std::thread::id());
  EXPECT_NE(worker, std::this_thread::get_id());
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[0].step, 3U);
  EXPECT_EQ(told[0].first_slot, 10U);
  EXPECT_EQ(told[1].rows, 1U);
  reader.request({});
  test::expect_error(ExitCode::input, "there is nothing to work on", [&] { reader.take(timeout_s); });
}

TEST_P(WindowReaderOn, an_out_of_range_row_is_an_internal_error_of_that_rank_alone) {
  const ImageSet set = describe_image_set(make_file());
  WindowReader reader(set.source, MPI_COMM_WORLD);
  const bool wrong = world_rank() == world_size() - 1;
  const std::vector<std::uint64_t> rows = {3, wrong ? rows_of_file : 4};
  reader.request(rows);
  if (wrong) {
    test::expect_error(
        ExitCode::internal,
        "this is a bug in motley: row 1000 of " + set.source.path + " was asked for, which has 1000",
        [&] { reader.take(timeout_s); });
  } else {
    expect_rows(reader.take(timeout_s), rows, label_bytes());
  }
  reader.request({7});
  expect_rows(reader.take(timeout_s), {7}, label_bytes());
}

// Whichever allocation of the reader's thread fails: that rank hears of it, the others get their rows, and
// the next window is right for all.
TEST_P(WindowReaderOn, a_rank_whose_reader_runs_out_of_memory_goes_on_taking_part) {
  const ImageSet set = describe_image_set(make_file());
  test::spare_this_thread();
  WindowReader reader(set.source, MPI_COMM_WORLD);
  const bool poor = world_rank() == world_size() - 1;
  int failures = 0;
  for (int failing = 1, more = 1; more != 0; ++failing) {
    ASSERT_LT(failing, 1000);
    const auto rows = random_rows(20, static_cast<unsigned>(failing));
    if (poor) test::fail_allocation(failing);
    reader.request(rows);
    try {
      expect_rows(reader.take(timeout_s), rows, label_bytes());
    } catch (const Error& error) {
      ++failures;
      EXPECT_TRUE(poor) << error.what();
      EXPECT_EQ(error.code(), ExitCode::device);
      EXPECT_EQ(std::string(error.what()),
                "reading " + set.source.path + ": the memory of this machine ran out");
    }
    more = poor && test::allocation_failed() ? 1 : 0;
    MPI_Bcast(&more, 1, MPI_INT, world_size() - 1, MPI_COMM_WORLD);
    reader.request({7});
    expect_rows(reader.take(timeout_s), {7}, label_bytes());
  }
  if (poor) {
    EXPECT_GE(failures, 5);
  }
}

INSTANTIATE_TEST_SUITE_P(, WindowReaderOn, ::testing::Values(true, false),
                         [](const auto& which) { return which.param ? "packed" : "chunked"; });

TEST(WindowReader, at_most_two_windows_may_be_outstanding) {
  const SharedDirectory directory;
  const ImageSet set = describe_image_set(directory.file("set.h5", write_packed));
  WindowReader reader(set.source, MPI_COMM_WORLD);
  EXPECT_THROW(reader.take(1), Error);
  reader.request({1});
  reader.request({2});
  EXPECT_THROW(reader.request({3}), Error);
  expect_rows(reader.take(timeout_s), {1}, 1);
  expect_rows(reader.take(timeout_s), {2}, 1);
}

TEST(WindowReader, a_file_cut_short_while_open_is_an_input_error_where_rows_are_missing_and_nowhere_else) {
  const SharedDirectory directory;
  const ImageSet set = describe_image_set(directory.file("set.h5", write_packed));
  WindowReader reader(set.source, MPI_COMM_WORLD);
  const std::uint64_t images_at = set.source.fields[0].file_offset, kept = images_at + 500 * row_bytes + 7;
  MPI_Barrier(MPI_COMM_WORLD);
  if (world_rank() == 0) {
    ASSERT_EQ(::truncate(set.source.path.c_str(), static_cast<off_t>(kept)), 0);
  }
  MPI_Barrier(MPI_COMM_WORLD);

  const bool hit = world_rank() == 0;
  reader.request(hit ? std::vector<std::uint64_t>{2, 800, 500} : std::vector<std::uint64_t>{499, 1});
  if (hit) {
    test::expect_error(
        ExitCode::input,
        fmt::format("{} was cut short while it was in use: row 500 of `images` ends at byte {}, and "
                    "the file now has {} bytes",
                    set.source.path, images_at + 501 * row_bytes, kept),
        [&] { reader.take(timeout_s); });
  } else {
    expect_rows(reader.take(timeout_s), {499, 1}, 1);
  }
  reader.request({0});
  expect_rows(reader.take(timeout_s), {0}, 1);
}

TEST(WindowReader, a_missing_file_is_the_same_error_on_every_rank) {
  RowSource source{"/nowhere/at/all.h5", 1, {{"images", DType::u8, {4}, true, 0}}};
  test::expect_error(ExitCode::input, "cannot open /nowhere/at/all.h5: No such file or directory",
                     [&] { WindowReader reader(source, MPI_COMM_WORLD); });
}

TEST(WindowReader, a_file_that_one_rank_cannot_open_is_an_error_on_every_rank) {
  const SharedDirectory directory;
  RowSource source = describe_image_set(directory.file("set.h5", write_packed)).source;
  const int unlucky = world_size() - 1;
  if (world_rank() == unlucky) source.path += "x";
  const std::string prefix = world_size() == 1 ? "" : fmt::format("on rank {}: ", unlucky);
  test::expect_error_with(ExitCode::input, {prefix + "cannot open ", "set.h5x: No such file or directory"},
                          [&] { WindowReader reader(source, MPI_COMM_WORLD); });
}

TEST(WindowReader, a_file_that_is_shorter_than_described_is_an_error_on_every_rank) {
  const SharedDirectory directory;
  RowSource source = describe_image_set(directory.file("set.h5", write_packed)).source;
  source.rows = 2000;
  test::expect_error_with(ExitCode::input, {"data set `images` ends at byte", "but the file has"},
                          [&] { WindowReader reader(source, MPI_COMM_WORLD); });
}

// Rank 0 alone prints it, and every rank ends with its code.
TEST(WindowReader, an_error_in_opening_is_one_that_all_ranks_have_agreed_on) {
  const SharedDirectory directory;
  RowSource source = describe_image_set(directory.file("set.h5", write_packed)).source;
  RowSource missing = source, longer = source;
  if (world_rank() == world_size() - 1) missing.path += "x";
  longer.rows = 2000;
  EXPECT_THROW(WindowReader(missing, MPI_COMM_WORLD), AgreedError);
  EXPECT_THROW(WindowReader(longer, MPI_COMM_WORLD), AgreedError);
}

TEST(MpiFile, knows_which_open_mpi_reads_wrong_bytes_collectively) {
  EXPECT_FALSE(collective_reads_are_right("Open MPI v4.1.4, package: Debian OpenMPI", nullptr));
  EXPECT_FALSE(collective_reads_are_right("Open MPI v4.1.0rc1", "1"));
  EXPECT_TRUE(collective_reads_are_right("Open MPI v4.1.4, package: Debian OpenMPI", "0"));
  EXPECT_TRUE(collective_reads_are_right("Open MPI v4.1.5", nullptr));
  EXPECT_TRUE(collective_reads_are_right("Open MPI v4.1.10", nullptr));
  EXPECT_TRUE(collective_reads_are_right("Open MPI v4.0.3", nullptr));
  EXPECT_TRUE(collective_reads_are_right("MPICH Version: 4.1.4", nullptr));
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(WindowReader,
     a_window_that_another_rank_never_asks_for_is_a_communication_error_and_leaving_does_not_hang) {
  if (world_size() == 1) GTEST_SKIP() << "there is no other rank to wait for";
  const SharedDirectory directory;
  const ImageSet set = describe_image_set(directory.file("set.h5", write_packed));
  const auto start = std::chrono::steady_clock::now();
  {
    WindowReader reader(set.source, MPI_COMM_WORLD);
    if (world_rank() == 0) {
      reader.request({1});
      test::expect_error(
          ExitCode::communication,
          fmt::format("rank 0: window 0 of {} was not read within 2 s: the reader is still waiting "
                      "for the other ranks to begin the same window",
                      set.source.path),
          [&] { reader.take(2); });
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  EXPECT_LT(seconds_since(start), 20.0);
}

TEST(WindowReader, a_rank_that_leaves_early_is_noticed_by_those_that_still_read) {
  if (world_size() == 1) GTEST_SKIP() << "there is no other rank to leave early";
  const SharedDirectory directory;
  const ImageSet set = describe_image_set(directory.file("set.h5", write_packed));
  const auto start = std::chrono::steady_clock::now();
  {
    WindowReader reader(set.source, MPI_COMM_WORLD);
    if (world_rank() > 0) {
      reader.request({1});
      test::expect_error(
          ExitCode::communication,
          set.source.path + ": a rank closed its reader while another still asked for a window",
          [&] { reader.take(timeout_s); });
      reader.request({1});
      EXPECT_THROW(reader.take(timeout_s), Error);
    }
  }
  EXPECT_LT(seconds_since(start), 20.0);
}

// The last test: rank 0's half of a new communicator stays behind.
TEST(WindowReader, a_rank_that_never_comes_to_open_the_file_is_a_communication_error) {
  if (world_size() == 1) GTEST_SKIP() << "there is no other rank to wait for";
  const SharedDirectory directory;
  const ImageSet set = describe_image_set(directory.file("set.h5", write_packed));
  MPI_Comm parent = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &parent);
  if (world_rank() == 0) {
    const auto start = std::chrono::steady_clock::now();
    test::expect_error(ExitCode::communication,
                       fmt::format("rank 0: {} was not opened within 2 s: the reader is still waiting for "
                                   "the other ranks to come and open it",
                                   set.source.path),
                       [&] { WindowReader reader(set.source, parent, 2); });
    EXPECT_LT(seconds_since(start), 20.0);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace
}  // namespace motley::io
