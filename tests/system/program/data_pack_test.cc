// motley data pack and motley data inspect on BERT data, as a person would run them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/files.h"
#include "io/bert_set.h"
#include "support/expect_failure.h"
#include "support/paths.h"
#include "support/subprocess.h"
#include "unit/io/bert_files.h"

namespace motley {
namespace {

namespace fs = std::filesystem;
using Values = std::vector<std::int64_t>;

class DataPack : public ::testing::Test {
 protected:
  DataPack() { fs::create_directories(data / "train"); }

  void write(const std::string& name, const test::ShardForm& form) const {
    test::write_shard((data / "train" / name).string(), form);
  }
  test::MpiRun pack(int ranks, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"data", "pack", "--data", data.string(), "--out", out.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::run_motley(ranks, arguments);
  }
  // Besides what all commands do: no file, whole or not.
  void expect_failure(const test::MpiRun& run, int code, const std::vector<std::string>& words) const {
    test::expect_failure(run, code, words);
    EXPECT_TRUE(fs::is_empty(out.parent_path()))
        << "something was left: " << *fs::directory_iterator(out.parent_path());
  }
  std::string shard(const std::string& name) const { return (data / "train" / name).string(); }

  test::TemporaryDirectory directory;
  fs::path data = directory.path() / "data", out = directory.path() / "out" / "packed.h5";
};

class DataPackInto : public DataPack {
 protected:
  DataPackInto() { fs::create_directories(out.parent_path()); }
};

TEST_F(DataPackInto, one_rank_and_three_make_the_same_file) {
  write("b.h5", {.rows = 1500, .first = 0, .two_dimensions = {{500, 3}, 4}, .one_dimension = {{1500}, 4}});
  write("c.hdf5", {.rows = 2100, .first = 1500, .ids = H5T_STD_I64LE, .two_dimensions = {{700, 16}, 1}});
  write("d.h5", {.rows = 3, .first = 3600});
  std::string first;
  for (const int ranks : {1, 3}) {
    const test::MpiRun run = pack(ranks);
    ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
    EXPECT_NE(run.job.err.find("3603 samples of 16 tokens and 4 predictions, ids uint16"), std::string::npos)
        << run.job.err;
    const std::string bytes = read_file(out, ExitCode::input);
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first);
    if (ranks == 1) fs::remove(out);
  }
  const io::RowSource source = io::describe_bert_set({out.string()}, 0, {1000, 2, 512});
  ASSERT_EQ(source.rows, 3603u);
  const std::size_t row_bytes = source.bert->row_bytes();
  for (std::uint64_t row = 0; row < source.rows; ++row) {
    const auto* record =
        reinterpret_cast<const std::byte*>(first.data()) + source.fields[0].file_offset + row * row_bytes;
    ASSERT_NO_FATAL_FAILURE(test::expect_record(*source.bert, record, row));
  }
  const auto inspected = test::run_program({test::motley_program(), "data", "inspect", out.string()});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_NE(
      inspected.out.find("packed BERT samples: 3603 samples of 16 tokens and 4 predictions, ids uint16"),
      std::string::npos)
      << inspected.out;
  const auto of_shard = test::run_program({test::motley_program(), "data", "inspect", shard("c.hdf5")});
  EXPECT_NE(
      of_shard.out.find("a shard of BERT samples: 2100 samples of 16 tokens and 4 predictions, decoded in "
                        "blocks of 1400"),
      std::string::npos)
      << of_shard.out;
}

TEST_F(DataPackInto, num_file_takes_the_first_and_wide_ids_get_four_bytes) {
  write("a.h5",
        {.rows = 40, .vocab_xxh3 = "0123456789abcdef", .spoil = [](const std::string& name, Values& values) {
           if (name == "input_ids") values[39 * 16 + 2] = 70000;
         }});
  write("b.h5", {.rows = 10, .without = "input_mask"});
  const test::MpiRun run = pack(3, {"--num-file", "1"});
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  EXPECT_NE(run.job.err.find("40 samples of 16 tokens and 4 predictions, ids uint32"), std::string::npos)
      << run.job.err;
  const io::RowSource source = io::describe_bert_set({out.string()}, 0, {});
  EXPECT_EQ(source.rows, 40u);
  EXPECT_EQ(source.vocab_xxh3, "0123456789abcdef");
}

TEST_F(DataPackInto, what_is_wrong_with_a_shard_is_said_and_nothing_is_left) {
  const auto expect = [&](const test::ShardForm& form, const std::vector<std::string>& words) {
    write("a.h5", {.rows = 100});
    write("b.h5", form);
    expect_failure(pack(3), 3, words);
  };
  const auto spoiled = [](const std::string& of, std::size_t at, std::int64_t value) {
    return [=](const std::string& name, Values& values) {
      if (name == of) values.at(at) = value;
    };
  };
  const std::string b = shard("b.h5");
  expect({.without = "segment_ids"}, {b + " has no data set `segment_ids`; it has `"});
  expect({.tokens = 32}, {b, "samples of 32 tokens", "one sequence length in a run"});
  expect({.ids = H5T_STD_I64LE, .spoil = spoiled("input_ids", 55 * 16 + 1, 1LL << 40)},
         {b + ": row 55: `input_ids`[1] is 1099511627776; expected 0 to 4294967295"});
  expect({.ids = H5T_STD_I64LE, .spoil = spoiled("masked_lm_ids", 0, -7)},
         {b + ": row 0: `masked_lm_ids`[0] is -7; expected 0 to"});
  expect({.spoil = spoiled("masked_lm_positions", 99 * 4 + 3, 16)},
         {b + ": row 99: `masked_lm_positions`[3] is 16; expected 0 to 15 (the samples have 16 tokens)"});
  expect({.spoil = spoiled("next_sentence_labels", 4, 2)},
         {b + ": row 4: `next_sentence_labels` is 2; expected 0 or 1"});
  expect({.rows = 0}, {b + ": data set `input_ids` is empty"});
  write("b.h5", {.two_dimensions = {{100, 4}, 1}});
  fs::resize_file(b, fs::file_size(b) / 2);
  expect_failure(pack(3), 3, {b + ": HDF5 cannot open it"});
  write_file(b, "text", ExitCode::input);
  expect_failure(pack(3), 3, {b + " is not an HDF5 file"});
}

// HDF5 1.10 crashes when the process ends, if it is what notices.
TEST_F(DataPackInto, a_file_that_may_not_become_large_enough_is_an_input_error) {
  write("a.h5", {.rows = 4000});  // 324000 bytes when packed
  const std::string script = "trap '' XFSZ; ulimit -f 200; exec \"$@\"";
  const auto run =
      test::run_program(test::mpirun_command(1, {"bash", "-c", script, "bash", test::motley_program(), "data",
                                                 "pack", "--data", data.string(), "--out", out.string()}),
                        120, {{"OMPI_MCA_btl", "self"}});
  EXPECT_EQ(run.exit_code, 3) << run.err;
  EXPECT_NE(run.err.find("File too large"), std::string::npos) << run.err;
  EXPECT_TRUE(fs::is_empty(out.parent_path()));
}

TEST_F(DataPackInto, options_and_places) {
  expect_failure(pack(2), 3, {(data / "train").string() + " has no HDF5 files"});
  expect_failure(test::run_motley(2, {"data", "pack", "--data", data.string()}), 2, {"--out is missing"});
  expect_failure(pack(2, {"--num-file", "-1"}), 2, {"--num-file is -1"});
  expect_failure(pack(2, {"--subset", "valid"}), 3, {"has no subset valid"});
  write("a.h5", {.rows = 10});
  expect_failure(test::run_motley(2, {"data", "pack", "--data", data.string(), "--out", shard("a.h5")}), 2,
                 {"is one of the shards"});
  expect_failure(test::run_motley(2, {"data", "pack", "--data", data.string(), "--out", data.string()}), 3,
                 {"it is a directory"});
  const std::string twice = shard("a.h5") + "," + shard("a.h5");
  expect_failure(test::run_motley(2, {"data", "pack", "--data", twice, "--out", out.string()}), 3,
                 {"has the same file twice"});
  expect_failure(test::run_motley(2, {"data", "pack", "--data", ",", "--out", out.string()}), 3,
                 {"--data \",\" names no file"});
  ASSERT_EQ(pack(1).job.exit_code, 0);
  const std::string packed = read_file(out, ExitCode::input);
  const test::MpiRun over = pack(2);
  EXPECT_EQ(over.exit_codes, (std::vector<int>{2, 2})) << over.job.err;
  EXPECT_NE(over.job.err.find("--out " + out.string() + " exists already"), std::string::npos)
      << over.job.err;
  EXPECT_TRUE(read_file(out, ExitCode::input) == packed);
  const test::MpiRun again =
      test::run_motley(2, {"data", "pack", "--data", out.string(), "--out", (data / "again.h5").string()});
  EXPECT_EQ(again.job.exit_code, 3);
  EXPECT_NE(again.job.err.find("is packed already"), std::string::npos) << again.job.err;
}

TEST_F(DataPack, a_directory_that_is_not_there_cannot_be_written_to) {
  write("a.h5", {.rows = 10});
  const test::MpiRun run = pack(3);
  EXPECT_EQ(run.job.exit_code, 3) << run.job.err;
  EXPECT_NE(run.job.err.find(out.string()), std::string::npos) << run.job.err;
  EXPECT_FALSE(fs::exists(out.parent_path()));
}

}  // namespace
}  // namespace motley
