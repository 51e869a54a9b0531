#include "report/progress.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"

namespace motley::report {
namespace {

StepRecord sample_record() {
  StepRecord record;
  record.step = 1204;
  record.epoch = 2;
  record.loss = 0.31239;
  record.samples = 21450;
  record.step_s = 1;
  record.metrics = {{"accuracy", 0.8871}};
  record.ranks = {{1, 0.97, 0}, {1, 0.951, 0}, {1, 0.99, 0}, {1, 0.308, 0}};
  return record;
}

constexpr RunLength length{4690, 5};

const std::string all =
    "epoch 2/5  step 1204/4690  loss 0.3124  accuracy 88.7 %  21,450 samples/s  3:07 left  work 97 95 99 31 "
    "%";

TEST(ProgressText, shows_every_field_when_there_is_room) {
  EXPECT_EQ(progress_text(sample_record(), length, 187, 0), all);
  EXPECT_EQ(progress_text(sample_record(), length, 187, 500), all);
  EXPECT_EQ(progress_text(sample_record(), length, 187, static_cast<int>(all.size())), all);
}

TEST(ProgressText, says_all_in_short_words_on_80_columns) {
  StepRecord record = sample_record();
  record.metrics.emplace_back("top5", 0.99);
  const std::string terse = "2/5  1204/4690  loss 0.3124  acc 88.7 %  21,450/s  eta 3:07  work 97 95 99 31 %";
  EXPECT_EQ(terse.size(), 79u);
  EXPECT_EQ(progress_text(record, length, 187, 79), terse);
  // Before words are shortened the further metrics go.
  EXPECT_EQ(progress_text(record, length, 187, 110), all);
}

TEST(ProgressText, narrower_terminals_lose_whole_fields_from_the_right) {
  const auto at = [](int columns) { return progress_text(sample_record(), length, 187, columns); };
  EXPECT_EQ(at(72), "2/5  1204/4690  loss 0.3124  acc 88.7 %  21,450/s  eta 3:07");
  EXPECT_EQ(at(58), "2/5  1204/4690  loss 0.3124  acc 88.7 %  21,450/s");
  EXPECT_EQ(at(40), "2/5  1204/4690  loss 0.3124  acc 88.7 %");
  EXPECT_EQ(at(25), "2/5  1204/4690");
  EXPECT_EQ(at(5), "2/5");
  EXPECT_EQ(at(2), "2/");
}

TEST(ProgressText, is_never_wider_than_the_terminal) {
  StepRecord record = sample_record();
  record.ranks.assign(300, RankTime{1, 0.5, 0});
  for (int columns = 1; columns < 300; ++columns) {
    EXPECT_LE(progress_text(record, length, 187, columns).size(), static_cast<std::size_t>(columns));
  }
}

TEST(ProgressText, many_ranks_are_shown_by_least_median_and_most) {
  StepRecord record = sample_record();
  record.metrics.clear();
  record.ranks.assign(60, RankTime{1, 0.9, 0});
  record.ranks[17].compute_s = 0.25;
  record.ranks[40].compute_s = 0.99;
  EXPECT_EQ(progress_text(record, length, 187, 120),
            "epoch 2/5  step 1204/4690  loss 0.3124  21,450 samples/s  3:07 left  work 25 least 90 median 99 "
            "most %");
}

TEST(ProgressText, leaves_out_what_is_not_known) {
  StepRecord record = sample_record();
  record.ranks.clear();
  record.step_s = 0;
  record.metrics = {{"top5", 1.0}, {"perplexity", 17.25}, {"mlm_accuracy", std::nan("")}};
  EXPECT_EQ(progress_text(record, RunLength{}, -1, 0),
            "epoch 2  step 1204  loss 0.3124  top5 100.0 %  perplexity 17.25  mlm_accuracy nan");
}

TEST(ProgressText, the_end_of_the_run_is_left_out_where_it_is_not_known) {
  EXPECT_EQ(progress_text(sample_record(), {2000, 0}, -1, 0).find("epoch 2  step 1204/2000  loss"), 0u);
  EXPECT_EQ(progress_text(sample_record(), {0, 5}, -1, 0).find("epoch 2/5  step 1204  loss"), 0u);
}

TEST(ValidText, reads_like_the_progress_line) {
  ValidRecord record;
  record.subset = "valid";
  record.epoch = 2;
  record.step = 938;
  record.loss = 0.2871;
  record.samples = 10000;
  record.seconds = 2.14;
  record.metrics = {{"accuracy", 0.9123}, {"top5", 0.999}};
  EXPECT_EQ(valid_text(record),
            "valid  epoch 2  step 938  loss 0.2871  accuracy 91.2 %  top5 99.9 %  10,000 samples in 2.1 s");
  record.seconds = 61;
  EXPECT_TRUE(valid_text(record).ends_with("10,000 samples in 1:01"));
}

TEST(DurationText, table) {
  const std::pair<double, const char*> table[] = {
      {0, "0:00"},         {0.4, "0:00"},       {0.6, "0:01"},
      {9, "0:09"},         {59.6, "1:00"},      {187, "3:07"},
      {3599, "59:59"},     {3599.7, "1:00:00"}, {8100, "2:15:00"},
      {86399, "23:59:59"}, {86400, "1 d 0 h"},  {4 * 86400 + 3 * 3600 + 3599, "4 d 3 h"},
      {-1, "?"},           {std::nan(""), "?"}, {std::numeric_limits<double>::infinity(), "?"},
  };
  for (const auto& [seconds, text] : table) EXPECT_EQ(duration_text(seconds), text) << seconds;
}

TEST(ValueText, four_digits) {
  const std::pair<double, const char*> table[] = {
      {0, "0.000"},        {0.31239, "0.3124"},   {2.302585, "2.303"},   {10.931, "10.93"},
      {1234.4, "1234"},    {999.96, "1000"},      {1, "1.000"},          {-0.5, "-0.5000"},
      {1e-5, "1.000e-05"}, {123456, "1.235e+05"}, {std::nan(""), "nan"},
  };
  for (const auto& [value, text] : table) EXPECT_EQ(value_text(value), text);
}

TEST(RateText, table) {
  const std::pair<double, const char*> table[] = {{0, "0.0"},          {20.34, "20.3"},
                                                  {100, "100"},        {999.6, "1,000"},
                                                  {21450.2, "21,450"}, {1234567, "1,234,567"}};
  for (const auto& [value, text] : table) EXPECT_EQ(rate_text(value), text);
}

TEST(LogFormatOption, is_parsed_or_refused_with_the_formats) {
  EXPECT_EQ(parse_log_format("none"), LogFormat::none);
  EXPECT_EQ(parse_log_format("simple"), LogFormat::simple);
  EXPECT_EQ(parse_log_format("tqdm"), LogFormat::simple);
  EXPECT_EQ(parse_log_format("json"), LogFormat::json);
  try {
    parse_log_format("JSON");
    FAIL() << "must throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_STREQ(error.what(), "--log-format is none, simple or json, not \"JSON\"");
  }
}

}  // namespace
}  // namespace motley::report
