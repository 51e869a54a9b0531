#include <filesystem>
#include <optional>

#include "cli/command.h"
#include "cli/option_set.h"
#include "comm/agree.h"
#include "core/files.h"
#include "core/log.h"
#include "io/line_reader.h"
#include "io/word_counts.h"
#include "io/wordpiece_trainer.h"
#include "report/terminal.h"
#include "report/work_line.h"

namespace motley::cli {
namespace {

struct VocabOptions {
  std::vector<std::string> input;
  std::string out;
  std::int64_t size = 30522, min_frequency = 2, limit_alphabet = 1000;
  bool cased = false, no_progress_bar = false;
  double timeout_s = 600;
};

void declare(OptionSet& set, VocabOptions& options) {
  set.group("options");
  set.add_paths("input", &options.input, "text files, .gz or not");
  set.add("out", &options.out, "vocabulary to write (vocab.txt); must not exist");
  set.add("size", &options.size, "tokens of the vocabulary, at most");
  set.add_switch("cased", &options.cased, "keep case and accents, for cased models");
  set.add("min-frequency", &options.min_frequency, "how often a pair must occur to become a token");
  set.add("limit-alphabet", &options.limit_alphabet,
          "how many different characters are kept, the most frequent ones");
  set.add("timeout", &options.timeout_s, "seconds that a rank waits for another before the job ends");
  set.add_switch("no-progress-bar", &options.no_progress_bar, "plain lines also on a terminal");
}

void check(const OptionSet& set, const VocabOptions& options) {
  set.require({"input", "out"});
  const auto at_least_one = [](const char* name, std::int64_t value, std::int64_t most) {
    if (value < 1 || value > most) fail(ExitCode::usage, "--{} is {}; expected 1 to {}", name, value, most);
  };
  at_least_one("size", options.size, 4'000'000);
  at_least_one("min-frequency", options.min_frequency, std::int64_t{1} << 40);
  at_least_one("limit-alphabet", options.limit_alphabet, 0x110000);
  if (!(options.timeout_s > 0))
    fail(ExitCode::usage, "--timeout is {}; expected more than 0", options.timeout_s);
}

// Learning, in portions short enough that other ranks need not wait past their deadline. Rank 0 alone works:
// counting is about as fast as reading.
class Learner {
 public:
  explicit Learner(const VocabOptions& options);
  // Each does a portion and returns whether there is more to do.
  bool count();
  bool merge();
  void write() const;

 private:
  static constexpr std::size_t longest_line = 1 << 20;
  static constexpr std::uint64_t portion_bytes = 16 << 20;
  static constexpr std::size_t portion_merges = 500;

  const VocabOptions& options_;
  io::LineReader lines_;
  io::WordCounts words_;
  std::optional<io::WordpieceTrainer> trainer_;
  report::WorkLine line_;
};

Learner::Learner(const VocabOptions& options)
    : options_(options),
      lines_(options.input, longest_line),
      words_(!options.cased),
      line_(!options.no_progress_bar && report::stdout_is_terminal(), 0) {}

bool Learner::count() {
  const std::uint64_t until = lines_.bytes_read() + portion_bytes;
  std::string_view text;
  while (lines_.bytes_read() < until) {
    const auto event = lines_.next(text);
    if (event == io::LineReader::Event::end) return false;
    if (event == io::LineReader::Event::line) words_.add(text);
  }
  line_.update(lines_.bytes_read(), fmt::format("{} different words", words_.distinct()));
  return true;
}

bool Learner::merge() {
  if (!trainer_) {
    if (words_.distinct() == 0) fail(ExitCode::input, "{} holds no words", options_.input[0]);
    trainer_.emplace(words_.sorted(),
                     io::WordpieceOptions{static_cast<std::size_t>(options_.size),
                                          static_cast<std::uint64_t>(options_.min_frequency),
                                          static_cast<std::size_t>(options_.limit_alphabet)});
  }
  const bool more = trainer_->step(portion_merges);
  line_.update(lines_.bytes_read(), fmt::format("{} tokens", trainer_->tokens().size()));
  return more;
}

void Learner::write() const {
  std::string text;
  for (const std::string& token : trainer_->tokens()) text += token + "\n";
  write_file_atomically(options_.out, text, ExitCode::input);
  if (words_.replaced_invalid() > 0) {
    log::warn("{} places of the text are not UTF-8; they were left out", words_.replaced_invalid());
  }
  if (words_.forgotten_up_to() > 0) {
    log::info("there are more different words than fit; some that occurred up to {} times were not counted",
              words_.forgotten_up_to());
  }
  log::info("{}: {} tokens, from {} different words", options_.out, trainer_->tokens().size(),
            words_.distinct());
}

void repeat_on_root(const comm::Communicator& world, const char* what, const std::function<bool()>& portion) {
  for (bool more = true; more;) {
    comm::agree_on_root(world, what, [&] { more = portion(); });
    more = world.broadcast(more ? 1.0 : 0.0, 0, what) != 0;
  }
}

}  // namespace

std::string data_vocab_help() {
  OptionSet set("data vocab");
  VocabOptions options;
  declare(set, options);
  return set.help("motley data vocab --input FILES... --out vocab.txt [OPTIONS]",
                  "Learns a WordPiece vocabulary for BERT from text.");
}

void data_vocab(const std::vector<std::string>& arguments, const Context& context) {
  VocabOptions options;
  comm::agree(context.world, "reading the options", [&] {
    OptionSet set("data vocab");
    declare(set, options);
    set.parse(arguments);
    check(set, options);
  });
  context.session.set_timeout(options.timeout_s);
  const comm::Communicator world(context.world.handle(), options.timeout_s);
  std::optional<Learner> learner;
  comm::agree_on_root(world, "looking at the input", [&] {
    check_replaceable(options.out, ExitCode::input);
    std::error_code unknown;
    if (std::filesystem::exists(options.out, unknown))
      fail(ExitCode::usage, "--out {} exists already; expected the name of a new file", options.out);
    for (const std::string& path : options.input) io::ByteStream(path).compressed();
    learner.emplace(options);
  });
  repeat_on_root(world, "counting words", [&] { return learner->count(); });
  repeat_on_root(world, "learning tokens", [&] { return learner->merge(); });
  comm::agree_on_root(world, "writing the vocabulary", [&] { learner->write(); });
}

}  // namespace motley::cli
