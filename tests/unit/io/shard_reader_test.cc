#include "io/shard_reader.h"

#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <filesystem>
#include <numeric>
#include <random>
#include <thread>

#include "bert_files.h"
#include "failing_memory.h"
#include "io/bert_set.h"
#include "io/mpi_file.h"
#include "support/paths.h"

namespace motley::io {
namespace {

constexpr double timeout_s = 60;
constexpr BertLimits limits{test::bert_vocabulary, 2, 512};

// A set of shards of unequal lengths: 3000 + 1 + 2500 + 1024 rows, in blocks of 1024, 1 and 1250. Each rank
// makes its own, so that ranks have nothing to wait for.
class ShardReaderOn : public ::testing::Test {
 protected:
  ShardReaderOn() {
    const test::ShardForm forms[] = {
        {.rows = 3000, .first = 0, .two_dimensions = {{512, 5}, 1}, .one_dimension = {{3000}, 1}},
        {.rows = 1, .first = 3000},
        {.rows = 2500, .first = 3001, .ids = H5T_STD_I64BE, .two_dimensions = {{1250, 16}, 1}},
        {.rows = 1024, .first = 5501, .two_dimensions = {{300, 2}}}};
    for (const test::ShardForm& form : forms) {
      paths.push_back((directory.path() / fmt::format("{}.h5", paths.size())).string());
      test::write_shard(paths.back(), form);
    }
    source = describe_bert_set(paths, 0, limits);
  }

  void expect_rows(const Window& window, const std::vector<std::uint64_t>& rows) const {
    ASSERT_EQ(window.rows, rows.size());
    ASSERT_EQ(window.ids, rows);
    ASSERT_EQ(window.fields.size(), 1u);
    const std::size_t bytes = source.bert->row_bytes();
    ASSERT_EQ(window.fields[0].size(), rows.size() * bytes);
    for (std::size_t i = 0; i < rows.size(); ++i)
      ASSERT_NO_FATAL_FAILURE(
          test::expect_record(*source.bert, window.fields[0].data() + i * bytes, rows[i]));
  }

  std::vector<std::uint64_t> random_rows(std::size_t count, unsigned seed) const {
    std::mt19937_64 random(seed);
    std::vector<std::uint64_t> rows(count);
    for (auto& row : rows) row = random() % source.rows;
    return rows;
  }

  test::TemporaryDirectory directory;
  std::vector<std::string> paths;
  RowSource source;
};

TEST_F(ShardReaderOn, gives_rows_in_the_order_asked_for_with_repeats) {
  ASSERT_EQ(source.rows, 6525u);
  const auto reader = make_reader(source, MPI_COMM_WORLD);
  const std::vector<std::uint64_t> rows = {6524, 0, 3000, 2999, 3001, 3001, 5500, 5501, 0, 1023, 1024};
  reader->request(rows);
  expect_rows(reader->take(timeout_s), rows);
  std::vector<std::uint64_t> all(source.rows);
  std::iota(all.rbegin(), all.rend(), 0);
  reader->request(all);
  reader->request({});
  expect_rows(reader->take(timeout_s), all);
  EXPECT_EQ(reader->take(timeout_s).rows, 0u);
}

// A cache that holds everything, a few blocks, one.
TEST_F(ShardReaderOn, gives_the_same_rows_whatever_it_keeps) {
  for (const std::uint64_t cache_rows : {100000, 2000, 1, 0}) {
    ShardReader reader(source, MPI_COMM_WORLD, timeout_s, cache_rows);
    reader.request(random_rows(50, 1));
    for (unsigned window = 1; window < 20; ++window) {
      reader.request(random_rows(50, window + 1));
      ASSERT_NO_FATAL_FAILURE(expect_rows(reader.take(timeout_s), random_rows(50, window)));
    }
  }
}

// Blocks that are kept are not read again: the shards may even be gone.
TEST_F(ShardReaderOn, keeps_blocks_for_the_next_windows) {
  ShardReader reader(source, MPI_COMM_WORLD, timeout_s, 100000);
  std::vector<std::uint64_t> all(source.rows);
  std::iota(all.begin(), all.end(), 0);
  reader.request(all);
  expect_rows(reader.take(timeout_s), all);
  for (const std::string& path : paths) {
    std::filesystem::resize_file(path, 0);
  }
  reader.request(random_rows(500, 3));
  expect_rows(reader.take(timeout_s), random_rows(500, 3));
}

// Ranks may ask for other rows, other numbers of them, and at other times: none waits for another.
TEST_F(ShardReaderOn, ranks_do_not_wait_for_each_other) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const auto reader = make_reader(source, MPI_COMM_WORLD);
  if (rank != 0) return;
  for (unsigned window = 0; window < 3; ++window) {
    reader->request(random_rows(100, window));
    expect_rows(reader->take(timeout_s), random_rows(100, window));
  }
}

TEST_F(ShardReaderOn, an_error_names_shard_and_row_and_the_next_window_is_read) {
  test::write_shard(paths[2], {.rows = 2500,
                               .first = 3001,
                               .flags = H5T_STD_I64LE,
                               .spoil = [](const std::string& name, std::vector<std::int64_t>& values) {
                                 if (name == "input_mask") values[2100 * 16 + 7] = -5;
                               }});
  const auto reader = make_reader(describe_bert_set(paths, 0, limits), MPI_COMM_WORLD);
  reader->request({0, 3001 + 2400});
  test::expect_error(ExitCode::input, paths[2] + ": row 2100: `input_mask`[7] is -5; expected 0 or 1",
                     [&] { reader->take(timeout_s); });
  reader->request({1, 3001});
  expect_rows(reader->take(timeout_s), {1, 3001});
}

TEST_F(ShardReaderOn, a_shard_that_has_gone_or_changed_is_an_input_error) {
  const auto reader = make_reader(source, MPI_COMM_WORLD);
  std::filesystem::remove(paths[1]);
  test::write_shard(paths[3], {.rows = 1025});
  reader->request({3000});
  test::expect_error(ExitCode::input, "cannot open " + paths[1] + ": No such file or directory",
                     [&] { reader->take(timeout_s); });
  reader->request({6000});
  test::expect_error_with(ExitCode::input,
                          {paths[3] + " has 1025 samples", "is it the same file on all machines?"},
                          [&] { reader->take(timeout_s); });
  std::filesystem::remove(paths[0]);
  test::expect_error(ExitCode::input, "cannot open " + paths[0] + ": No such file or directory",
                     [&] { check_reachable(source); });
}

TEST_F(ShardReaderOn, a_row_that_is_not_there_is_a_bug) {
  const auto reader = make_reader(source, MPI_COMM_WORLD);
  reader->request({6525});
  test::expect_error(ExitCode::internal,
                     "this is a bug in motley: row 6525 of " + source.path + " was asked for, which has 6525",
                     [&] { reader->take(timeout_s); });
}

TEST_F(ShardReaderOn, running_out_of_memory_is_an_error_of_one_window) {
  test::spare_this_thread();
  ShardReader reader(source, MPI_COMM_WORLD, timeout_s, 0);  // every window decodes
  int failures = 0;
  for (int failing = 1;; ++failing) {
    ASSERT_LT(failing, 2000);
    const auto rows = random_rows(20, static_cast<unsigned>(failing));
    test::fail_allocation(failing);
    reader.request(rows);
    try {
      expect_rows(reader.take(timeout_s), rows);
    } catch (const Error& error) {
      ++failures;
      EXPECT_EQ(error.code(), ExitCode::device) << error.what();
    }
    const bool more = test::allocation_failed();
    reader.request({7});
    ASSERT_NO_FATAL_FAILURE(expect_rows(reader.take(timeout_s), {7}));
    if (!more) break;
  }
  EXPECT_GE(failures, 5);
}

TEST_F(ShardReaderOn, can_go_while_windows_are_outstanding_and_takes_no_more_than_two) {
  const auto reader = make_reader(source, MPI_COMM_WORLD);
  EXPECT_THROW(reader->take(1), Error);
  reader->request(random_rows(3000, 1));
  reader->request(random_rows(3000, 2));
  EXPECT_THROW(reader->request({1}), Error);
}

// HDF5 is busy elsewhere in this process for longer than the caller will wait.
TEST_F(ShardReaderOn, a_window_that_is_late_is_a_communication_error) {
  ShardReader reader(source, MPI_COMM_WORLD, timeout_s);
  {
    const Hdf5Lock busy;
    reader.request({1});
    test::expect_error_with(
        ExitCode::communication,
        {fmt::format("window 0 of {} was not read within 0.3 s: the reader is still decoding "
                     "shards",
                     source.path)},
        [&] { reader.take(0.3); });
  }
}

}  // namespace
}  // namespace motley::io
