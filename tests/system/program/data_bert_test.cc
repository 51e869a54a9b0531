// motley data bert as its users meet it: the same bytes from any number of ranks, the published statistics,
// memory that does not grow with the corpus, and one sentence for what is wrong.
#include <gtest/gtest.h>
#include <hdf5.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <thread>

#include "core/files.h"
#include "core/philox.h"
#include "support/expect_failure.h"
#include "support/paths.h"
#include "support/subprocess.h"

namespace motley {
namespace {

namespace fs = std::filesystem;

constexpr int documents_known = 400;  // words d0, d1, ... of the vocabulary
constexpr std::int32_t cls = 2, sep = 3, mask = 4, first_document = 5;

std::string vocabulary() {
  std::string text = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (int d = 0; d < documents_known; ++d) text += fmt::format("d{}\n", d);
  for (int w = 0; w < 1000; ++w) text += fmt::format("w{}\n", w);
  return text;
}

// Every second word of document d is "d<d>", so that a sequence says which documents it is from.
std::string corpus(int documents, int sentences) {
  std::string text;
  const RandomKey key(1, Purpose::augmentation, 0, 0);
  for (int d = 0; d < documents; ++d) {
    for (int s = 0; s < sentences; ++s) {
      const auto slot = static_cast<std::uint32_t>(d * sentences + s);
      for (std::uint32_t w = 0; w < 4 + random_u32(key, slot, 99) % 8; ++w) {
        text += fmt::format("d{} w{} ", d % documents_known, random_u32(key, slot, w) % 1000);
      }
      text += "\n";
    }
    text += "\n";
  }
  return text;
}

std::map<std::string, std::string> contents(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    files[entry.path().filename().string()] = read_file(entry.path(), ExitCode::input);
  }
  return files;
}

template <class T>
std::vector<T> read_column(const fs::path& path, const char* name, hid_t type) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
  const hid_t space = H5Dget_space(set);
  std::vector<T> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
  H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  H5Sclose(space);
  H5Dclose(set);
  H5Fclose(file);
  return values;
}

class DataBert : public ::testing::Test {
 protected:
  DataBert() {
    write("vocab.txt", vocabulary());
    fs::create_directory(directory.path() / "outputs");
  }
  std::string write(const std::string& name, const std::string& content) {
    write_file(directory.path() / name, content, ExitCode::input);
    return (directory.path() / name).string();
  }
  test::MpiRun make(int ranks, const std::string& input, std::vector<std::string> more = {},
                    double timeout_s = 120) {
    std::vector<std::string> arguments = {"data",   "bert", "--input", input,
                                          "--dict", dict,   "--out",   out.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::run_motley(ranks, arguments, timeout_s);
  }
  // Besides what all commands do: no output.
  void expect_failure(const test::MpiRun& run, int code, const std::vector<std::string>& words) {
    test::expect_failure(run, code, words);
    EXPECT_TRUE(fs::is_empty(out.parent_path())) << "a command that failed left " << out;
  }

  test::TemporaryDirectory directory;
  const std::string dict = (directory.path() / "vocab.txt").string();
  fs::path out = directory.path() / "outputs" / "shards";
};

TEST_F(DataBert, the_same_bytes_from_any_number_of_ranks) {
  const std::string input = write("text", corpus(120, 80));
  std::map<std::string, std::string> expected;
  for (const int ranks : {1, 2, 3, 7}) {
    out = directory.path() / fmt::format("ranks-{}", ranks);
    const test::MpiRun run = make(ranks, input, {"--shard-bytes", "100000", "--dupe-factor", "2"});
    ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
    const auto files = contents(out);
    if (expected.empty()) {
      expected = files;
      EXPECT_GE(files.size(), 5U);
      for (const auto& [name, bytes] : files) {
        EXPECT_TRUE(name.starts_with("training-0000") &&
                    name.ends_with(fmt::format("-of-{:05}.h5", files.size())))
            << name;
      }
    }
    EXPECT_TRUE(files == expected) << ranks << " ranks made other files";
  }
  out = directory.path() / "other-seed";
  ASSERT_EQ(make(2, input, {"--shard-bytes", "100000", "--dupe-factor", "2", "--seed", "2"}).job.exit_code,
            0);
  EXPECT_FALSE(contents(out) == expected);
}

// 5 standard deviations of a binomial.
void expect_share(double count, double of, double probability, const char* what) {
  EXPECT_NEAR(count, of * probability, 5 * std::sqrt(of * probability * (1 - probability))) << what;
}

TEST_F(DataBert, has_the_statistics_of_the_reference) {
  const std::string input = write("text", corpus(documents_known, 150));
  const test::MpiRun run =
      make(2, input, {"--max-seq-length", "64", "--masked-lm-prob", "0.2", "--short-seq-prob", "0"});
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  double sequences = 0, random = 0, chosen = 0, masks = 0, kept = 0;
  for (const auto& [name, bytes] : contents(out)) {
    auto ids = read_column<std::int32_t>(out / name, "input_ids", H5T_NATIVE_INT32);
    const auto lengths = read_column<std::int8_t>(out / name, "input_mask", H5T_NATIVE_INT8);
    const auto positions = read_column<std::int32_t>(out / name, "masked_lm_positions", H5T_NATIVE_INT32);
    const auto labels = read_column<std::int32_t>(out / name, "masked_lm_ids", H5T_NATIVE_INT32);
    const auto next = read_column<std::int8_t>(out / name, "next_sentence_labels", H5T_NATIVE_INT8);
    const std::size_t most = positions.size() / next.size();
    ASSERT_EQ(ids.size(), next.size() * 64);
    ASSERT_EQ(most, 15U);  // 0.2 x 64 = 12.8, in fives
    for (std::size_t row = 0; row < next.size(); ++row) {
      std::int32_t* row_ids = ids.data() + row * 64;
      const auto length = std::count(lengths.begin() + static_cast<std::ptrdiff_t>(row * 64),
                                     lengths.begin() + static_cast<std::ptrdiff_t>(row * 64 + 64), 1);
      std::size_t number = 0;
      for (; number < most && positions[row * most + number] > 0; ++number) {
        std::int32_t& id = row_ids[positions[row * most + number]];
        const std::int32_t label = labels[row * most + number];
        ASSERT_TRUE(label != cls && label != sep && label != mask);
        masks += id == mask;
        kept += id == label;
        id = label;
      }
      ASSERT_EQ(static_cast<double>(number),
                std::max(1.0, std::nearbyint(static_cast<double>(length) * 0.2)));
      chosen += static_cast<double>(number);
      // The documents of A and of B, by their words.
      const auto document = [&](const std::int32_t* first, const std::int32_t* end) {
        const auto* found = std::find_if(first, end, [](std::int32_t id) {
          return id >= first_document && id < first_document + documents_known;
        });
        return found == end ? -1 : *found;
      };
      const std::int32_t* middle = std::find(row_ids, row_ids + 64, sep);
      const std::int32_t a = document(row_ids, middle), b = document(middle, row_ids + 64);
      if (a >= 0 && b >= 0) {
        ASSERT_EQ(a != b, next[row] == 1) << "row " << row;
      }
      random += next[row];
      ++sequences;
    }
  }
  EXPECT_GT(sequences, 5000);
  expect_share(masks, chosen, 0.8, "[MASK]");
  expect_share(kept, chosen, 0.1 + 0.1 / 1405, "kept");
  // Half, and always at the end of a document when only one sentence is left: once per document at most.
  const double noise = 5 * 0.5 * std::sqrt(sequences);
  EXPECT_GT(random, sequences / 2 - noise);
  EXPECT_LT(random, (sequences - documents_known) / 2 + documents_known + noise);
}

TEST_F(DataBert, without_masks_the_tokens_are_those_before_masking) {
  const std::string input = write("text", corpus(30, 30));
  ASSERT_EQ(make(1, input).job.exit_code, 0);
  const fs::path masked = out / "training-00000-of-00001.h5";
  const auto positions = read_column<std::int32_t>(masked, "masked_lm_positions", H5T_NATIVE_INT32);
  const auto labels = read_column<std::int32_t>(masked, "masked_lm_ids", H5T_NATIVE_INT32);
  auto ids = read_column<std::int32_t>(masked, "input_ids", H5T_NATIVE_INT32);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] > 0) ids[i / 20 * 128 + static_cast<std::size_t>(positions[i])] = labels[i];
  }
  out = directory.path() / "unmasked";
  ASSERT_EQ(make(1, input, {"--masking", "none"}).job.exit_code, 0);
  const fs::path plain = out / "training-00000-of-00001.h5";
  EXPECT_EQ(read_column<std::int32_t>(plain, "input_ids", H5T_NATIVE_INT32), ids);
  const hid_t file = H5Fopen(plain.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  EXPECT_EQ(H5Lexists(file, "masked_lm_positions", H5P_DEFAULT), 0);
  EXPECT_EQ(H5Lexists(file, "masked_lm_ids", H5P_DEFAULT), 0);
  H5Fclose(file);
}

TEST_F(DataBert, takes_several_files) {
  const std::string a = write("a", corpus(3, 3)), b = write("b", corpus(5, 4));
  const test::MpiRun run =
      test::run_motley(2, {"data", "bert", "--dict", dict, "--out", out.string(), "--input", a, b + "," + a});
  EXPECT_EQ(run.job.exit_code, 0) << run.job.err;
  EXPECT_NE(run.job.err.find("from 11 documents with 38 sentences"), std::string::npos) << run.job.err;
}

TEST_F(DataBert, bad_input_is_said) {
  const std::string good = write("text", corpus(5, 5));
  const std::string missing = (directory.path() / "nothing").string();
  expect_failure(make(3, missing), 3, {missing, "No such file"});
  expect_failure(make(2, good + "," + missing), 3, {missing});
  expect_failure(make(2, write("empty", "")), 3, {"empty holds no text"});
  expect_failure(make(3, write("one", "a sentence\nand another\n")), 3, {"one holds a single document"});
  expect_failure(make(2, write("unknown", "\u200b\n\n\u200b\n")), 3,
                 {"unknown, line 1", "none has any characters"});
  std::string words = vocabulary();
  words.erase(words.find("[MASK]\n"), 7);
  write("vocab.txt", words);
  expect_failure(make(3, good), 3, {"vocab.txt", "[MASK]"});
  fs::remove(dict);
  expect_failure(make(2, good), 3, {"vocab.txt", "No such file"});
}

TEST_F(DataBert, an_output_that_cannot_be_is_said) {
  const std::string good = write("text", corpus(5, 5));
  out = directory.path() / "vocab.txt" / "below";
  const test::MpiRun blocked = make(3, good);
  EXPECT_EQ(blocked.exit_codes, (std::vector<int>{3, 3, 3})) << blocked.job.err;
  EXPECT_NE(blocked.job.err.find("vocab.txt/below"), std::string::npos) << blocked.job.err;
  out = "/proc/motley";
  EXPECT_EQ(make(2, good).exit_codes, (std::vector<int>{3, 3}));
}

TEST_F(DataBert, shards_that_are_there_are_left_alone) {
  const std::string good = write("text", corpus(5, 5));
  fs::create_directory(out);
  write_file(out / "notes.txt", "mine", ExitCode::input);
  ASSERT_EQ(make(2, good).job.exit_code, 0);
  const auto before = contents(out);
  EXPECT_EQ(before.size(), 2U);
  const test::MpiRun again = make(2, good, {"--seed", "5"});
  EXPECT_EQ(again.exit_codes, (std::vector<int>{3, 3}));
  EXPECT_NE(again.job.err.find("already holds training-00000-of-00001.h5"), std::string::npos)
      << again.job.err;
  EXPECT_TRUE(contents(out) == before);
}

TEST_F(DataBert, options_out_of_range_are_said) {
  const std::string good = write("text", corpus(5, 5));
  const std::pair<std::vector<std::string>, std::vector<std::string>> wrong[] = {
      {{"--max-seq-length", "7"}, {"--max-seq-length is 7; expected 8 to 65536"}},
      {{"--masked-lm-prob", "0"}, {"--masked-lm-prob is 0"}},
      {{"--masked-lm-prob", "1.5"}, {"--masked-lm-prob is 1.5"}},
      {{"--max-predictions-per-seq", "129"}, {"--max-predictions-per-seq is 129; expected 0 to 128"}},
      {{"--short-seq-prob", "-0.1"}, {"--short-seq-prob is -0.1"}},
      {{"--dupe-factor", "0"}, {"--dupe-factor is 0"}},
      {{"--compression", "10"}, {"--compression is 10; expected 0 to 9"}},
      {{"--shard-bytes", "1000"}, {"--shard-bytes is 1000"}},
      {{"--masking", "dynamic"}, {"--masking is \"dynamic\"; expected static or none"}},
      {{"--masking", "none", "--whole-word"}, {"--whole-word", "--masking none"}},
      {{"--max-sequence-length", "64"}, {"did you mean --max-seq-length?"}}};
  for (const auto& [options, words] : wrong) {
    // Without mpirun, which takes its time when a rank fails; that all ranks agree is shown above and below.
    std::vector<std::string> arguments = {
        test::motley_program(), "data", "bert", "--input", good, "--dict", dict, "--out", out.string()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const test::Finished alone = test::run_program(arguments);
    expect_failure({alone, {alone.exit_code}}, 2, words);
  }
  expect_failure(test::run_motley(2, {"data", "bert", "--dict", dict, "--out", out.string()}), 2,
                 {"--input"});
  expect_failure(test::run_motley(2, {"data", "bert", "--input", good, "--out", out.string()}), 2,
                 {"--dict"});
}

// What is wrong shows only when some shards are made: the second file ends inside its gzip stream.
TEST_F(DataBert, a_failure_on_the_way_leaves_nothing) {
  const std::string good = write("text", corpus(120, 80));
  const std::string damaged = write("damaged.gz", std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03\x4b", 11));
  expect_failure(make(3, good + "," + damaged, {"--shard-bytes", "65536"}), 3, {"damaged.gz", "cut short"});
}

// Peak memory, in kB, of the ranks of a run.
long peak_kb(const std::function<void()>& work) {
  int ends[2];
  if (::pipe(ends) != 0) return -1;
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    rusage usage{};
    ::getrusage(RUSAGE_CHILDREN, &usage);
    const ssize_t written = ::write(ends[1], &usage.ru_maxrss, sizeof usage.ru_maxrss);
    ::_exit(written == sizeof usage.ru_maxrss ? 0 : 1);
  }
  long peak = -1;
  ::close(ends[1]);
  if (::read(ends[0], &peak, sizeof peak) != sizeof peak) peak = -1;
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return peak;
}

TEST_F(DataBert, memory_does_not_grow_with_the_corpus) {
  std::string text = corpus(200, 100);  // 3 MB
  const std::string small = write("small", text);
  const std::size_t small_bytes = text.size();
  for (int i = 0; i < 9; ++i) text += corpus(200, 100);
  const std::string large = write("large", text);
  // One document of ten times as much, and a second one.
  std::string one_document;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\n' || i + 1 == text.size() || text[i + 1] != '\n') one_document += text[i];
  }
  const std::string huge = write("huge", one_document + "\n\nd1 w1\n");
  // And all of it in a single line.
  std::replace(one_document.begin(), one_document.end(), '\n', ' ');
  const std::string line = write("line", one_document + "\n\nd1 w1\n");
  std::map<std::string, long> peaks;
  for (const std::string& input : {small, large, huge, line}) {
    out = directory.path() / ("out-" + fs::path(input).filename().string());
    peaks[input] = peak_kb([&] {
      make(2, input, {"--shard-bytes", "500000", "--compression", "1", "--split-sentences"});
    });
    ASSERT_GT(peaks[input], 10000);
    EXPECT_FALSE(fs::is_empty(out)) << input;
  }
  const long allowed_kb = static_cast<long>(small_bytes / 1000) * 2;  // a small part of what came on top
  for (const std::string& input : {large, huge, line}) {
    EXPECT_LT(peaks[input], peaks[small] + allowed_kb) << input;
  }
}

std::size_t begun_shards(const fs::path& out) {
  std::error_code not_there_yet;
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(out, not_there_yet)) {
    count += entry.path().filename().string().starts_with(".tmp-training-0");
  }
  return count;
}

TEST_F(DataBert, a_run_that_is_killed_leaves_no_shard_and_can_be_repeated) {
  std::string text;
  for (int i = 0; i < 20; ++i) text += corpus(200, 100);
  const std::string input = write("text", text);
  const std::string pid_file = (directory.path() / "pid").string();
  const std::vector<std::string> words = test::mpirun_command(
      2, {"sh", "-c", "[ $OMPI_COMM_WORLD_RANK = 1 ] && echo $$ > " + pid_file + "; exec \"$@\"", "sh",
          test::motley_program(), "data", "bert", "--input", input, "--dict", dict, "--out", out.string(),
          "--shard-bytes", "200000", "--dupe-factor", "20"});
  std::thread job([&] { test::run_program(words, 100); });
  for (int tries = 0; tries < 6000 && begun_shards(out) < 4; ++tries) ::usleep(10000);
  EXPECT_GE(begun_shards(out), 4U);
  const int rank = std::atoi(read_file(pid_file, ExitCode::input).c_str());
  EXPECT_GT(rank, 1);
  EXPECT_EQ(rank > 1 ? ::kill(rank, SIGKILL) : -1, 0);
  job.join();
  EXPECT_GE(begun_shards(out), 4U) << "it was over before it was killed";
  for (const auto& [name, bytes] : contents(out)) EXPECT_TRUE(name.starts_with(".tmp-")) << name;
  ASSERT_EQ(make(2, write("text", corpus(5, 5))).job.exit_code, 0);
  EXPECT_EQ(contents(out).size(), 1U) << "what the killed run left is still there";
}

}  // namespace
}  // namespace motley
