#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "cli/command.h"
#include "cli/option_set.h"
#include "comm/agree.h"
#include "core/files.h"
#include "core/log.h"
#include "io/bert_pack.h"
#include "io/bert_set.h"
#include "report/progress.h"
#include "report/terminal.h"
#include "report/work_line.h"

namespace motley::cli {
namespace {

// Blocks that each rank packs before the ranks compare notes: a rank that fails is noticed soon, and no rank
// waits long for another.
constexpr std::size_t blocks_per_round = 16;

struct PackOptions {
  std::string data, out, subset = "train";
  std::vector<std::string> valid_subsets = {"valid"};
  std::int64_t num_file = 0;
  double timeout_s = 600;
};

void declare(OptionSet& set, PackOptions& options) {
  set.group("options");
  set.add("data", &options.data, "directory of BERT shards, one shard, or several with commas between them");
  set.add("subset", &options.subset, "which subset of the directory");
  set.add("valid-subset", &options.valid_subsets,
          "files named after these are not packed as train, several with commas between them");
  set.add("num-file", &options.num_file, "pack the first this many shards; 0: all");
  set.add("out", &options.out, "HDF5 file to write; must not exist");
  set.add("timeout", &options.timeout_s, "seconds after which a rank that does not answer ends the run");
}

std::string progress_text(std::uint64_t done, std::uint64_t total, double seconds) {
  const double rate = static_cast<double>(done) / seconds;
  return fmt::format("{} of {} samples  {}/s  {} left", done, total, report::rate_text(rate),
                     report::duration_text(static_cast<double>(total - done) / rate));
}

// The file under its temporary name; removed by rank 0 unless it was put in its place.
class Unfinished {
 public:
  Unfinished(const std::string& path, const comm::Communicator& world) : path_(path), world_(world) {
    // One name for all ranks.
    const std::string mine = fmt::format("{}.tmp-{}", path, ::getpid());
    temporary_ = world.broadcast(mine, 0, "the name of the file");
  }
  ~Unfinished() {
    if (world_.rank() == 0 && made_) ::unlink(temporary_.c_str());
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  // On rank 0. Where the rows begin.
  std::uint64_t make(const io::BertLayout& layout, const io::RowSource& source) {
    {
      const Descriptor file(temporary_, O_WRONLY | O_CREAT | O_TRUNC, ExitCode::input);
      made_ = true;
      // As much as HDF5 is about to write itself: a disk that is full already is to be met here.
      const std::string zeros(16384, '\0');
      file.write_at(0, zeros.data(), zeros.size());
    }
    return io::create_packed_bert(temporary_, layout, source.rows, source.vocab_xxh3);
  }
  void put_in_place() {
    rename_durably(temporary_, path_, ExitCode::input);
    made_ = false;
  }
  const std::string& temporary() const { return temporary_; }

 private:
  std::string path_, temporary_;
  const comm::Communicator& world_;
  bool made_ = false;
};

std::uint64_t rows_of_rounds(const std::vector<io::ShardBlock>& blocks, std::size_t rounds) {
  std::uint64_t rows = 0;
  for (std::size_t i = 0; i < std::min(blocks.size(), rounds * blocks_per_round); ++i) rows += blocks[i].rows;
  return rows;
}

// Packs everything with ids of type `id`; false when some id needs more. Collective.
bool pack_as(DType id, const io::RowSource& source, Unfinished& file, const comm::Communicator& world) {
  io::BertLayout layout = *source.bert;
  layout.id = id;
  std::string offset;
  comm::agree_on_root(world, "making the file", [&] { offset = std::to_string(file.make(layout, source)); });
  offset = world.broadcast(offset, 0, "where the samples begin in the file");
  std::optional<io::BertPacker> packer;
  comm::agree(world, "opening the file",
              [&] { packer.emplace(source, file.temporary(), std::stoull(offset), id); });

  std::vector<std::vector<io::ShardBlock>> blocks;  // of every rank, for the progress
  std::size_t most = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    blocks.push_back(io::blocks_of_rank(source, rank, world.size()));
    most = std::max(most, blocks.back().size());
  }
  const std::vector<io::ShardBlock>& mine = blocks[static_cast<std::size_t>(world.rank())];
  std::optional<report::WorkLine> line;
  if (world.rank() == 0) line.emplace(report::stdout_is_terminal(), 0);
  for (std::size_t round = 0; round * blocks_per_round < most; ++round) {
    comm::agree(world, "packing", [&] {
      const std::size_t end = std::min(mine.size(), (round + 1) * blocks_per_round);
      for (std::size_t i = round * blocks_per_round; i < end; ++i) packer->pack(mine[i]);
    });
    double largest[] = {static_cast<double>(packer->largest_id())};
    world.all_reduce_max(largest, "the largest token id");
    if (id == DType::u16 && largest[0] > static_cast<double>(io::largest_u16)) return false;
    std::uint64_t done = 0;
    for (const auto& of_rank : blocks) done += rows_of_rounds(of_rank, round + 1);
    if (line) line->update([&](double seconds) { return progress_text(done, source.rows, seconds); });
  }
  comm::agree(world, "flushing the file", [&] { packer->finish(); });
  return true;
}

}  // namespace

std::string data_pack_help() {
  OptionSet set("data pack");
  PackOptions options;
  declare(set, options);
  return set.help(
      "mpirun -n RANKS motley data pack --data DIR --out FILE.h5",
      "Decodes shards of BERT samples, compressed or not, into one file that is read and shuffled as a "
      "whole, without\ndecoding. Every rank packs its part.");
}

void data_pack(const std::vector<std::string>& arguments, const Context& context) {
  PackOptions options;
  comm::agree(context.world, "reading the options", [&] {
    OptionSet set("data pack");
    declare(set, options);
    set.parse(arguments);
    set.require({"data", "out"});
    if (options.num_file < 0)
      fail(ExitCode::usage, "--num-file is {}; expected at least 0 (0: all)", options.num_file);
    if (!(options.timeout_s > 0))
      fail(ExitCode::usage, "--timeout is {}; expected seconds above 0", options.timeout_s);
  });
  context.session.set_timeout(options.timeout_s);
  const comm::Communicator world(context.world.handle(), options.timeout_s);
  std::string description;
  comm::agree_on_root(world, "opening the data", [&] {
    const auto paths = io::bert_subset_paths(options.data, options.subset, options.valid_subsets);
    const io::RowSource found = io::describe_bert_set(paths, options.num_file, {});
    if (found.shards.empty()) fail(ExitCode::input, "{} is packed already", found.path);
    for (const io::Shard& shard : found.shards) {
      std::error_code error;
      if (std::filesystem::equivalent(shard.path, options.out, error))
        fail(ExitCode::usage, "--out {} is one of the shards", options.out);
    }
    check_replaceable(options.out, ExitCode::input);
    std::error_code unknown;
    if (std::filesystem::exists(options.out, unknown))
      fail(ExitCode::usage, "--out {} exists already; expected the name of a new file", options.out);
    description = found.to_json();
  });
  const auto source =
      io::RowSource::from_json(world.broadcast(description, 0, "the description of the data"));
  Unfinished file(options.out, world);
  DType id = DType::u16;
  if (!pack_as(id, source, file, world)) {
    id = DType::u32;
    log::info("some token ids need more than 16 bits: starting again with 32");
    pack_as(id, source, file, world);
  }
  comm::agree_on_root(world, "putting the file in its place", [&] { file.put_in_place(); });
  log::info("{}: {} samples of {} tokens and {} predictions, ids {}", options.out, source.rows,
            source.bert->seq_length, source.bert->predictions, name_of(id));
}

}  // namespace motley::cli
