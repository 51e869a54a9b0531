#include <unistd.h>

#include <filesystem>
#include <optional>

#include "cli/command.h"
#include "cli/ending.h"
#include "cli/option_set.h"
#include "comm/agree.h"
#include "core/files.h"
#include "core/log.h"
#include "io/bert_data.h"
#include "io/byte_stream.h"
#include "report/terminal.h"
#include "report/work_line.h"

namespace motley::cli {
namespace {

namespace fs = std::filesystem;

struct BertOptions {
  std::vector<std::string> input;
  std::string dict, out, masking = "static";
  std::int64_t predictions = 0, compression = 4;
  std::uint64_t shard_bytes = 16 << 20;
  bool no_progress_bar = false;
  double timeout_s = 600;
  io::BertDataOptions data;
};

void declare(OptionSet& set, BertOptions& options) {
  io::BertDataOptions& data = options.data;
  set.group("what to read and where to write");
  set.add_paths("input", &options.input,
                "text files, .gz or not: a sentence per line, an empty line between documents");
  set.add("dict", &options.dict, "vocabulary of the model (vocab.txt)");
  set.add("out", &options.out, "directory for the shards; it must not hold any");
  set.group("text");
  set.add_switch("cased", &data.cased, "keep case and accents, for cased models");
  set.add_switch("split-sentences", &data.split_sentences, "lines are paragraphs: cut them into sentences");
  set.group("sequences");
  set.add("max-seq-length", &data.max_sequence, "tokens per sequence, [CLS] and [SEP] included");
  set.add("short-seq-prob", &data.short_sequence_probability, "share of documents with shorter sequences");
  set.add("dupe-factor", &data.dupe_factor, "use each document so often, with other pairs and masks");
  set.add("seed", &data.seed, "of all random numbers");
  set.group("masks");
  set.add("masking", &options.masking, "static, or none: masks are then drawn while training");
  set.add("masked-lm-prob", &data.masking.probability, "share of the tokens to predict");
  set.add("max-predictions-per-seq", &options.predictions,
          "most tokens to predict; 0: what the share makes of max-seq-length, in fives");
  set.add_switch("whole-word", &data.masking.whole_word, "mask all pieces of a word together");
  set.group("files");
  set.add("compression", &options.compression, "gzip level of the shards, 0 to 9");
  set.add("shard-bytes", &options.shard_bytes, "bytes of text per shard; memory grows with it");
  set.add("timeout", &options.timeout_s, "seconds that a rank waits for another before the job ends");
  set.add_switch("no-progress-bar", &options.no_progress_bar, "plain lines also on a terminal");
}

void check_range(const char* name, double value, double least, double most) {
  if (value >= least && value <= most) return;
  fail(ExitCode::usage, "--{} is {}; expected {} to {}", name, value, least, most);
}

void check_masking(const OptionSet& set, BertOptions& options) {
  io::BertDataOptions& data = options.data;
  if (options.masking != "static" && options.masking != "none") {
    fail(ExitCode::usage, "--masking is \"{}\"; expected static or none", options.masking);
  }
  data.static_masks = options.masking == "static";
  if (!data.static_masks) {
    for (const char* name : {"masked-lm-prob", "max-predictions-per-seq", "whole-word"}) {
      if (set.given(name)) {
        fail(ExitCode::usage, "--{} says how to mask, and --masking none says not to; leave one out", name);
      }
    }
  }
  if (!(data.masking.probability > 0 && data.masking.probability <= 1)) {
    fail(ExitCode::usage, "--masked-lm-prob is {}; expected more than 0 and at most 1",
         data.masking.probability);
  }
  check_range("max-predictions-per-seq", static_cast<double>(options.predictions), 0,
              static_cast<double>(data.max_sequence));
  data.masking.max_predictions = options.predictions;
  if (options.predictions == 0) {
    // 20 of 128, 80 of 512, as everybody has it.
    const double share = static_cast<double>(data.max_sequence) * data.masking.probability;
    const std::int64_t in_fives = (static_cast<std::int64_t>(share) / 5 + 1) * 5;
    data.masking.max_predictions = std::min(in_fives, data.max_sequence);
  }
}

void check(const OptionSet& set, BertOptions& options) {
  set.require({"input", "dict", "out"});
  io::BertDataOptions& data = options.data;
  check_range("max-seq-length", static_cast<double>(data.max_sequence), 8, 65536);
  check_range("short-seq-prob", data.short_sequence_probability, 0, 1);
  check_range("dupe-factor", static_cast<double>(data.dupe_factor), 1, 100);
  check_range("compression", static_cast<double>(options.compression), 0, 9);
  check_range("shard-bytes", static_cast<double>(options.shard_bytes),
              static_cast<double>(io::DocumentPieces::min_piece_bytes), 1 << 30);
  if (!(options.timeout_s > 0))
    fail(ExitCode::usage, "--timeout is {}; expected more than 0", options.timeout_s);
  check_masking(set, options);
  data.gzip_level = static_cast<unsigned>(options.compression);
}

// The directory of the shards. Until they all are whole they have temporary names, and whatever this rank
// made is removed again when it does not come to that.
class Output {
 public:
  explicit Output(const std::string& path) : path_(path) {}
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // On rank 0: makes the directory if need be. Error(input) when there are shards in it already or nothing
  // can be written to it.
  void prepare();
  bool created() const { return created_; }
  void set_created(bool created) { created_ = created; }

  // The temporary name of a shard that this rank is about to write.
  std::string add(std::uint32_t index);
  // Gives this rank's shards their names, of `total` that there are.
  void name_shards(std::uint32_t total);
  void keep() { shards_.clear(), created_ = false; }

 private:
  struct Shard {
    std::uint32_t index;
    fs::path path;
  };
  fs::path path_;
  bool created_ = false;
  std::vector<Shard> shards_;
};

constexpr const char* temporary_prefix = ".tmp-training-";

Output::~Output() {
  std::error_code ignored;
  for (const Shard& shard : shards_) fs::remove(shard.path, ignored);
  if (created_) fs::remove(path_, ignored);  // works for the last rank that gets here, when it is empty
}

void Output::prepare() {
  std::error_code unknown;
  const bool existed = fs::exists(path_, unknown);
  make_directories(path_, ExitCode::input);
  created_ = !existed;
  for (const auto& entry : fs::directory_iterator(path_, unknown)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".h5") && name.starts_with(temporary_prefix)) {
      fs::remove(entry.path(), unknown);  // of a run that was killed
    } else if (name.ends_with(".h5") || name.ends_with(".hdf5")) {
      fail(ExitCode::input, "{} already holds {}; expected a directory without HDF5 files", path_.string(),
           name);
    }
  }
  const fs::path trial = path_ / fmt::format("{}trial-{}.h5", temporary_prefix, ::getpid());
  write_file(trial, "", ExitCode::input);
  fs::remove(trial, unknown);
}

std::string Output::add(std::uint32_t index) {
  shards_.push_back({index, path_ / fmt::format("{}{:05}.h5", temporary_prefix, index)});
  return shards_.back().path.string();
}

void Output::name_shards(std::uint32_t total) {
  for (Shard& shard : shards_) {
    const fs::path name = path_ / fmt::format("training-{:05}-of-{:05}.h5", shard.index, total);
    rename_durably(shard.path, name, ExitCode::input);
    shard.path = name;
  }
}

// What all ranks have done so far.
struct Totals {
  std::array<double, 5> counts{};  // as in BertDataCounts

  void add(const io::BertDataCounts& more) {
    counts[0] += static_cast<double>(more.documents);
    counts[1] += static_cast<double>(more.sentences);
    counts[2] += static_cast<double>(more.tokens);
    counts[3] += static_cast<double>(more.sequences);
    counts[4] += static_cast<double>(more.replaced_invalid);
  }
  Totals over_all_ranks(const comm::Communicator& world) const {
    Totals all = *this;
    world.all_reduce_sum(all.counts, "counting what was made");
    return all;
  }
};

std::uint64_t known_bytes(const std::vector<std::string>& paths) {
  std::uint64_t bytes = 0;
  bool known = true;
  for (const std::string& path : paths) {
    const auto size = io::ByteStream(path).known_size();  // that it can be opened is seen here, too
    known = known && size.has_value();
    bytes += size.value_or(0);
  }
  return known ? bytes : 0;
}

// Every rank reads the whole input and works on each `ranks`-th piece: that costs less than sending the text
// around, and needs no file system that is good at more than reading.
void make_shards(const BertOptions& options, const io::Vocabulary& vocabulary, std::uint64_t total_bytes,
                 const comm::Communicator& world, Output& output) {
  std::optional<report::WorkLine> line;
  if (world.rank() == 0) {
    line.emplace(!options.no_progress_bar && report::stdout_is_terminal(), total_bytes);
  }
  io::DocumentPieces pieces(options.input, options.shard_bytes);
  io::BertDataMaker maker(vocabulary, options.data);
  Totals mine;
  std::uint32_t shards = 0;
  for (bool more = true; more;) {
    comm::agree(world, "making shards", [&] {
      io::Piece piece;
      for (int rank = 0; rank < world.size() && more; ++rank) {
        more = pieces.next(piece);
        if (!more) break;
        ++shards;
        if (rank == world.rank()) mine.add(maker.make_shard(piece, output.add(piece.index)));
      }
    });
    const Totals all = mine.over_all_ranks(world);
    if (line) {
      line->update(pieces.bytes_read(), fmt::format("{} shards, {:.0f} sequences", shards, all.counts[3]));
    }
  }
  comm::agree(world, "naming the shards", [&] { output.name_shards(shards); });
  output.keep();
  line.reset();
  const auto [documents, sentences, tokens, sequences, replaced] = mine.over_all_ranks(world).counts;
  if (world.rank() == 0 && replaced > 0) {
    log::warn("{:.0f} places of the text are not UTF-8; each was read as U+FFFD, which BERT drops", replaced);
  }
  log::info(
      "{}: {} shards with {:.0f} sequences, from {:.0f} documents with {:.0f} sentences and {:.0f} tokens",
      options.out, shards, sequences, documents, sentences, tokens);
}

}  // namespace

std::string data_bert_help() {
  OptionSet set("data bert");
  BertOptions options;
  declare(set, options);
  return set.help("mpirun -n RANKS motley data bert --input FILES... --dict vocab.txt --out DIR [OPTIONS]",
                  "Makes BERT training data from text: masked tokens and sentence pairs, in HDF5 shards.");
}

void data_bert(const std::vector<std::string>& arguments, const Context& context) {
  BertOptions options;
  comm::agree(context.world, "reading the options", [&] {
    OptionSet set("data bert");
    declare(set, options);
    set.parse(arguments);
    check(set, options);
  });
  context.session.set_timeout(options.timeout_s);
  const comm::Communicator world(context.world.handle(), options.timeout_s);
  std::optional<io::Vocabulary> vocabulary;
  comm::agree(world, "reading the vocabulary",
              [&] { vocabulary.emplace(io::Vocabulary::read(options.dict)); });
  std::uint64_t total_bytes = 0;
  comm::agree(world, "looking at the input", [&] { total_bytes = known_bytes(options.input); });
  Output output(options.out);
  comm::agree_on_root(world, "preparing the output", [&] { output.prepare(); });
  output.set_created(world.broadcast(output.created() ? 1.0 : 0.0, 0, "whether the output is new") != 0);
  make_shards(options, *vocabulary, total_bytes, world, output);
}

}  // namespace motley::cli
