#include "checkpoint/retention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "checkpoint/directory.h"
#include "sample.h"
#include "support/paths.h"

namespace motley::checkpoint {
namespace {

namespace fs = std::filesystem;
using Steps = std::vector<std::int64_t>;

TEST(ToRemove, by_hand) {
  const std::vector<Kept> present = {{10, false, true}, {20, true, false},  {30, false, true},
                                     {40, true, true},  {50, false, false}, {60, false, true}};
  EXPECT_EQ(to_remove(present, {-1, -1}, -1), (Steps{50}));
  EXPECT_EQ(to_remove(present, {1, 1}, -1), (Steps{10, 20, 30, 50}));
  EXPECT_EQ(to_remove(present, {2, 0}, 20), (Steps{10, 30, 50}));
  EXPECT_EQ(to_remove(present, {0, 0}, -1), (Steps{10, 20, 30, 40, 50}));
  EXPECT_EQ(to_remove({}, {0, 0}, -1), Steps{});
  EXPECT_EQ(to_remove({{7, false, false}}, {0, 0}, -1), Steps{});
}

// Straight from the words of the header: is `kept` held by anything?
bool is_held(const Kept& kept, const std::vector<Kept>& present, const RetentionOptions& options,
             std::int64_t best) {
  const auto newer = [&](auto&& counts) {
    return std::count_if(present.begin(), present.end(),
                         [&](const Kept& other) { return other.step > kept.step && counts(other); });
  };
  const auto newer_of_all = newer([](const Kept&) { return true; });
  const auto newer_intervals = newer([](const Kept& other) { return other.interval; });
  const auto newer_epochs = newer([](const Kept& other) { return other.epoch_end; });
  if (newer_of_all == 0 || kept.step == best) return true;
  if (kept.interval && (options.keep_interval_updates < 0 || newer_intervals < options.keep_interval_updates))
    return true;
  return kept.epoch_end && (options.keep_last_epochs < 0 || newer_epochs < options.keep_last_epochs);
}

TEST(ToRemove, agrees_with_the_definition_on_random_directories) {
  std::mt19937 random(1);
  for (int round = 0; round < 5000; ++round) {
    std::vector<Kept> present;
    const auto count = random() % 12;
    for (std::size_t i = 0; i < count; ++i) {
      present.push_back({static_cast<std::int64_t>(i * 3), random() % 2 == 0, random() % 2 == 0});
    }
    std::shuffle(present.begin(), present.end(), random);
    const RetentionOptions options{static_cast<std::int64_t>(random() % 5) - 1,
                                   static_cast<std::int64_t>(random() % 5) - 1};
    const std::int64_t best = static_cast<std::int64_t>(random() % 14) * 3 - 3;
    Steps expected;
    for (const Kept& kept : present) {
      if (!is_held(kept, present, options, best)) expected.push_back(kept.step);
    }
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(to_remove(present, options, best), expected);
  }
}

TEST(KindText, is_read_back) {
  for (const bool epoch : {false, true}) {
    for (const bool interval : {false, true}) {
      const Kept back = kept_from(5, kind_text({5, epoch, interval}));
      EXPECT_EQ(back.epoch_end, epoch);
      EXPECT_EQ(back.interval, interval);
    }
  }
  EXPECT_EQ(kind_text({1, true, true}), "epoch+interval");
  EXPECT_TRUE(kept_from(1, "signal+interval").interval);
  EXPECT_FALSE(kept_from(1, "intervals+epochal").interval);
}

class ApplyRetention : public ::testing::Test {
 protected:
  void put(std::int64_t step, const Json& kind) {
    test::Sample sample(1);
    sample.contents.trainer["kind"] = kind;
    write(directory_.path(), step, sample.contents);
  }
  Steps left() const {
    Steps steps;
    for (const Listed& checkpoint : list(directory_.path())) steps.push_back(checkpoint.step);
    return steps;
  }
  motley::test::TemporaryDirectory directory_;
};

TEST_F(ApplyRetention, removes_what_neither_kind_nor_best_holds_and_leaves_no_trace) {
  put(1, "interval");
  put(2, "epoch+interval");
  put(3, "interval");
  put(4, "epoch");
  put(5, "last");
  put(6, "interval");
  mark_best(directory_.path(), directory_.path() / "step-00000001");
  apply_retention(directory_.path(), {1, 1});
  EXPECT_EQ(left(), (Steps{1, 4, 6}));
  EXPECT_EQ(test::names_in(directory_.path()),
            (std::vector<std::string>{"best", "latest", "step-00000001", "step-00000004", "step-00000006"}));
  apply_retention(directory_.path(), {1, 1});
  EXPECT_EQ(left(), (Steps{1, 4, 6}));
}

TEST_F(ApplyRetention, leaves_alone_what_it_cannot_read) {
  put(1, "interval");
  put(2, "interval");
  put(3, 17);
  put(4, "interval");
  write_file(directory_.path() / "step-00000001" / "trainer.json", "{", ExitCode::input);
  fs::create_directory(directory_.path() / "step-00000000");
  apply_retention(directory_.path(), {1, 1});
  EXPECT_EQ(left(), (Steps{0, 1, 3, 4}));
}

TEST_F(ApplyRetention, of_nothing_does_nothing) {
  apply_retention(directory_.path() / "not there", {1, 1});
}

}  // namespace
}  // namespace motley::checkpoint
