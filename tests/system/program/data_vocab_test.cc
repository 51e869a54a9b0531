// motley data vocab, and what it makes used by motley data bert.
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "core/files.h"
#include "support/expect_failure.h"
#include "support/paths.h"
#include "support/subprocess.h"

namespace motley {
namespace {

namespace fs = std::filesystem;

class DataVocab : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) {
    write_file(directory.path() / name, content, ExitCode::input);
    return (directory.path() / name).string();
  }
  test::MpiRun learn(int ranks, const std::string& input, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"data", "vocab", "--input", input, "--out", out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::run_motley(ranks, arguments);
  }
  // Besides what all commands do: no output.
  void expect_failure(const test::MpiRun& run, int code, const std::string& words) {
    test::expect_failure(run, code, {words});
    EXPECT_FALSE(fs::exists(out));
  }

  test::TemporaryDirectory directory;
  const std::string out = (directory.path() / "learned.txt").string();
  const std::string text =
      "The ship and the shop: shipping, shopping, shopped.\n\nTheir shapes\nare sharp; the sheep sleep.\n";
};

TEST_F(DataVocab, learns_a_vocabulary_that_data_bert_takes) {
  const std::string input = write("text", text);
  ASSERT_EQ(learn(2, input, {"--size", "80"}).job.exit_code, 0);
  const std::string learned = read_file(out, ExitCode::input);
  EXPECT_TRUE(learned.starts_with("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n,\n.\n:\n;\na\n"));
  EXPECT_NE(learned.find("\nthe\n"), std::string::npos);
  EXPECT_NE(learned.find("\nsh\n"), std::string::npos);
  EXPECT_EQ(learned.find("\nThe\n"), std::string::npos);
  fs::remove(out);
  ASSERT_EQ(learn(1, input, {"--size", "80"}).job.exit_code, 0);
  EXPECT_EQ(read_file(out, ExitCode::input), learned);
  const test::MpiRun run = test::run_motley(
      2, {"data", "bert", "--input", input, "--dict", out, "--out", (directory.path() / "shards").string()});
  EXPECT_EQ(run.job.exit_code, 0) << run.job.err;
}

TEST_F(DataVocab, cased_keeps_capitals) {
  ASSERT_EQ(learn(1, write("text", text), {"--size", "80", "--cased", "--min-frequency", "1"}).job.exit_code,
            0);
  EXPECT_NE(read_file(out, ExitCode::input).find("\nT\n"), std::string::npos);
}

TEST_F(DataVocab, a_file_that_is_there_is_never_overwritten) {
  const std::string input = write("text", text);
  const test::MpiRun run = test::run_motley(2, {"data", "vocab", "--input", input, "--out", input});
  EXPECT_EQ(run.exit_codes, (std::vector<int>{2, 2})) << run.job.err;
  EXPECT_NE(run.job.err.find("--out " + input + " exists already; expected the name of a new file"),
            std::string::npos)
      << run.job.err;
  EXPECT_EQ(read_file(input, ExitCode::input), text);
}

TEST_F(DataVocab, what_is_wrong_is_said) {
  const std::string input = write("text", text);
  expect_failure(learn(2, (directory.path() / "nothing").string()), 3, "nothing");
  expect_failure(learn(2, write("empty", "\n\n")), 3, "holds no words");
  expect_failure(learn(2, input, {"--size", "20"}), 2, "--size is 20");
  expect_failure(learn(2, input, {"--size", "0"}), 2, "--size is 0");
  expect_failure(learn(2, input, {"--min-frequency", "0"}), 2, "--min-frequency is 0");
  const test::MpiRun run = test::run_motley(
      2, {"data", "vocab", "--input", input, "--out", directory.path() / "no" / "vocab.txt"});
  EXPECT_EQ(run.exit_codes, (std::vector<int>{3, 3})) << run.job.err;
}

}  // namespace
}  // namespace motley
