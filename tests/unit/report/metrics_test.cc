#include "report/metrics.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <random>

#include "core/files.h"
#include "core/json.h"
#include "support/paths.h"

namespace motley::report {
namespace {

StepRecord sample_record(std::int64_t step) {
  StepRecord record;
  record.step = step;
  record.steps = 4;
  record.epoch = 2;
  record.loss = 0.1;
  record.lr = 1e-3;
  record.grad_norm = 2.5;
  record.samples = 256;
  record.step_s = 2.0;
  record.metrics = {{"accuracy", 0.875}, {"a_second", 1}};
  record.ranks = {{48, 1.5, 0.25}, {16, 1.0, 0.75}};
  return record;
}

ValidRecord sample_valid(std::int64_t step) {
  ValidRecord record;
  record.subset = "valid";
  record.step = step;
  record.loss = 0.5;
  record.samples = 10000;
  record.seconds = 1.25;
  record.metrics = {{"accuracy", 0.75}};
  return record;
}

std::string lines(std::initializer_list<std::int64_t> steps) {
  std::string text;
  for (const std::int64_t step : steps) text += to_json_line(sample_record(step)) + "\n";
  return text;
}

class MetricsFileTest : public ::testing::Test {
 protected:
  void put(const std::string& content) { write_file(path_, content, ExitCode::input); }
  std::string content() const { return read_file(path_, ExitCode::input); }

  test::TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "metrics.jsonl";
};

TEST(MetricsLine, training_line_has_means_per_step_in_the_documented_order) {
  EXPECT_EQ(
      to_json_line(sample_record(8)),
      R"({"step":8,"epoch":2,"loss":0.1,"lr":0.001,"grad_norm":2.5,"samples_per_s":128.0,"step_s":0.5,)"
      R"("accuracy":0.875,"a_second":1.0,)"
      R"("ranks":[{"n":48.0,"compute_s":0.375,"wait_s":0.0625,"read_s":0.0,"sleep_s":0.0,"micro_batches":0.0},)"
      R"({"n":16.0,"compute_s":0.25,"wait_s":0.1875,"read_s":0.0,"sleep_s":0.0,"micro_batches":0.0}]})");
}

TEST(MetricsLine, validation_line_names_its_subset) {
  EXPECT_EQ(
      to_json_line(sample_valid(8)),
      R"({"valid":"valid","step":8,"epoch":1,"loss":0.5,"samples":10000,"seconds":1.25,"accuracy":0.75})");
}

TEST(MetricsLine, every_double_is_read_back_exactly) {
  std::mt19937_64 bits(7);
  for (int i = 0; i < 20000; ++i) {
    StepRecord record = sample_record(1);
    const std::uint64_t word = bits();
    static_assert(sizeof word == sizeof record.loss);
    std::memcpy(&record.loss, &word, sizeof word);
    if (!std::isfinite(record.loss)) continue;
    EXPECT_EQ(Json::parse(to_json_line(record)).at("loss").get<double>(), record.loss);
  }
}

TEST(MetricsLine, numbers_that_are_not_finite_are_null) {
  StepRecord record = sample_record(1);
  record.loss = std::nan("");
  record.grad_norm = std::numeric_limits<double>::infinity();
  record.step_s = 0;
  record.metrics = {{"accuracy", -std::numeric_limits<double>::infinity()}};
  const Json line = Json::parse(to_json_line(record));
  for (const char* key : {"loss", "grad_norm", "samples_per_s", "accuracy"})
    EXPECT_TRUE(line.at(key).is_null()) << key;
}

TEST(MetricsLine, a_metric_may_not_take_the_name_of_a_fixed_field) {
  StepRecord record = sample_record(1);
  record.metrics = {{"loss", 1}};
  EXPECT_THROW(to_json_line(record), Error);
}

TEST_F(MetricsFileTest, a_new_run_starts_empty) {
  put(lines({1, 2}));
  MetricsFile file(path_, 0);
  EXPECT_EQ(content(), "");
  file.add(sample_record(1));
  file.add(sample_valid(1));
  EXPECT_EQ(content(), lines({1}) + to_json_line(sample_valid(1)) + "\n");
}

TEST_F(MetricsFileTest, resuming_drops_what_lies_beyond_the_checkpoint) {
  const std::string valid = to_json_line(sample_valid(4)) + "\n";
  put(lines({2, 4}) + valid + lines({6, 8}) + to_json_line(sample_valid(8)) + "\n");
  MetricsFile file(path_, 4);
  EXPECT_EQ(content(), lines({2, 4}) + valid);
  file.add(sample_record(6));
  EXPECT_EQ(content(), lines({2, 4}) + valid + lines({6}));
}

TEST_F(MetricsFileTest, wherever_the_last_line_was_torn_the_whole_lines_before_it_stay) {
  const std::string before = lines({2, 4});
  const std::string last = lines({6});
  for (std::size_t length = 0; length <= last.size(); ++length) {
    put(before + last.substr(0, length));
    const MetricsFile file(path_, 100);
    // Without only its newline the line is whole.
    EXPECT_EQ(content(), length + 1 >= last.size() ? before + last : before) << length;
  }
}

TEST_F(MetricsFileTest, lines_that_are_no_records_go) {
  put("\n[]\n{\"epoch\":1}\n{\"step\":\"1\"}\n" + lines({2}) + std::string(3, '\0') + "\n" + lines({4}));
  const MetricsFile file(path_, 10);
  EXPECT_EQ(content(), lines({2, 4}));
}

TEST_F(MetricsFileTest, resuming_without_a_file_makes_one) {
  const MetricsFile file(path_, 10);
  EXPECT_EQ(content(), "");
}

TEST_F(MetricsFileTest, a_path_that_cannot_be_written_is_an_input_error_with_its_name) {
  const auto path = directory_.path() / "no such directory" / "metrics.jsonl";
  try {
    const MetricsFile file(path, 0);
    FAIL() << "must throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::input);
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
  }
}

TEST(MetricsFile, a_full_disk_is_warned_of_once) {
  ::testing::internal::CaptureStderr();
  {
    MetricsFile file("/dev/full", 0);
    file.add(sample_record(1));
    file.add(sample_record(2));
  }
  EXPECT_EQ(
      ::testing::internal::GetCapturedStderr(),
      "motley: warning: cannot write /dev/full: No space left on device; training goes on without it\n");
}

TEST_F(MetricsFileTest, a_line_that_fits_only_in_part_is_taken_back) {
  MetricsFile file(path_, 0);
  file.add(sample_record(1));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = content().size() + 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  file.add(sample_record(2));
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(content(), lines({1}));
  file.add(sample_record(3));
  EXPECT_EQ(content(), lines({1, 3}));
}

}  // namespace
}  // namespace motley::report
