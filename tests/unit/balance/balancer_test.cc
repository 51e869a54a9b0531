#include "balance/balancer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "core/error.h"

namespace motley::balance {
namespace {

// What a step of a share n costs a rank, at a step of the run.
using Cost = std::function<double(std::size_t rank, std::int64_t n, std::int64_t step)>;

struct Course {
  std::vector<double> step_s;  // slowest rank of each step
  std::vector<std::vector<std::int64_t>> shares;
  std::int64_t changes = 0;

  double mean(std::size_t first, std::size_t last) const {
    return std::accumulate(step_s.begin() + static_cast<std::ptrdiff_t>(first),
                           step_s.begin() + static_cast<std::ptrdiff_t>(last), 0.0) /
           static_cast<double>(last - first);
  }
  // Steps from the start until all later windows of 8 stay within 5 % of `value`.
  std::size_t settled(double value, std::size_t from = 0) const {
    std::size_t last = from;
    for (std::size_t i = from; i + 8 <= step_s.size(); ++i)
      if (mean(i, i + 8) > 1.05 * value) last = i + 8;
    return last - from;
  }
};

// As the trainer does it: a window is planned when the one before it starts, so with the times of those
// that ended.
Course run(const BalancerOptions& options, std::int64_t steps, const Cost& cost,
           std::int64_t epoch_steps = 1 << 30) {
  Balancer balancer(options);
  Course result;
  std::vector<RankTimes> measured;
  std::int64_t planned = 0, index = 0;
  const auto plan = [&] {
    std::vector<std::vector<std::int64_t>> window;
    balancer.plan(static_cast<int>(planned / epoch_steps) + 1, options.batch);
    const std::int64_t length = options.policy == PolicyKind::automatic ? ramped_window(index, 16) : 16;
    ++index;
    const std::int64_t left = epoch_steps - planned % epoch_steps;
    for (std::int64_t i = 0; i < std::min(length, left); ++i)
      window.push_back(balancer.shares(options.batch, i));
    planned += static_cast<std::int64_t>(window.size());
    return window;
  };
  auto window = plan();
  while (static_cast<std::int64_t>(result.step_s.size()) < steps) {
    auto ahead = plan();
    std::vector<RankTimes> times(static_cast<std::size_t>(options.ranks));
    for (const auto& shares : window) {
      double slowest = 0;
      const auto step = static_cast<std::int64_t>(result.step_s.size()) + 1;
      for (std::size_t r = 0; r < shares.size(); ++r) {
        const double seconds = shares[r] == 0 ? 0 : cost(r, shares[r], step);
        times[r].push_back({shares[r], seconds});
        slowest = std::max(slowest, seconds);
      }
      result.step_s.push_back(slowest);
      result.shares.push_back(shares);
    }
    balancer.observe(times);
    window = std::move(ahead);
  }
  result.changes = balancer.changes();
  return result;
}

BalancerOptions options_for(PolicyKind policy, int ranks, std::int64_t batch) {
  BalancerOptions options;
  options.policy = policy;
  options.ranks = ranks;
  options.batch = batch;
  return options;
}

struct Noise {
  std::mt19937 random{7};
  std::normal_distribution<double> normal{0, 1};
  double operator()(double relative) { return std::exp(relative * normal(random)); }
};

TEST(BalancerAuto, settles_at_the_min_max_shares_within_40_steps) {
  for (const std::vector<double>& speeds :
       {std::vector<double>{1, 1, 2, 4}, {1, 8}, {1, 1, 1, 1, 2, 2, 4, 4}, {1, 3, 5}}) {
    Noise noise;
    const auto ranks = static_cast<int>(speeds.size());
    const double all = std::accumulate(speeds.begin(), speeds.end(), 0.0);
    const Course result = run(options_for(PolicyKind::automatic, ranks, 512), 200,
                              [&](std::size_t r, std::int64_t n, std::int64_t) {
                                return 1e-3 * static_cast<double>(n) / speeds[r] * noise(0.01);
                              });
    const double ideal = 512 * 1e-3 / all;
    EXPECT_LT(result.settled(ideal), 40u) << ranks;
    EXPECT_LT(result.mean(40, 200), 1.05 * ideal) << ranks;
  }
}

TEST(BalancerAuto, comes_to_the_best_whole_shares_where_one_sample_is_a_hundredth_of_a_step) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(0, 0.001);
    const std::vector<double> speeds = {1, 1, 2, 4};
    const Course result = run(
        options_for(PolicyKind::automatic, 4, 512), 120, [&](std::size_t r, std::int64_t n, std::int64_t) {
          return 3e-4 + 1.25e-3 * static_cast<double>(n) / speeds[r] * std::exp(normal(random));
        });
    // 64, 64, 128, 256 takes 80.3 ms; one sample elsewhere up to 1.2 ms more.
    EXPECT_LT(result.mean(60, 120), 0.0808) << seed;
  }
}

TEST(BalancerAuto, moves_for_a_moderate_imbalance_too) {
  for (const double slower : {1.57, 1.25, 1.11}) {
    for (const double relative : {0.0, 0.002, 0.02}) {
      Noise noise;
      const Course result = run(
          options_for(PolicyKind::automatic, 2, 512), 200, [&](std::size_t r, std::int64_t n, std::int64_t) {
            return 1e-3 * static_cast<double>(n) * (r == 1 ? slower : 1) * noise(relative);
          });
      const double ideal = 0.512 / (1 + 1 / slower);
      EXPECT_LT(result.mean(40, 200), (1.02 + relative) * ideal) << slower << " " << relative;
      EXPECT_LT(result.settled(ideal * (1 + relative / 2)), 40u) << slower << " " << relative;
    }
  }
}

TEST(BalancerAuto, gives_a_rank_with_a_constant_delay_what_the_affine_optimum_gives) {
  // Two ranks, one delayed by 0.9 of its batch time at equal shares: 0.9 + n = 2 - n in those units.
  Noise noise;
  const Course result =
      run(options_for(PolicyKind::automatic, 2, 256), 200, [&](std::size_t r, std::int64_t n, std::int64_t) {
        return (static_cast<double>(n) / 128 + (r == 1 ? 0.9 : 0)) * 0.1 * noise(0.01);
      });
  EXPECT_LT(result.mean(40, 200), 1.05 * 0.145);
  EXPECT_LT(result.settled(0.145), 40u);
}

TEST(BalancerAuto, noise_does_not_move_equal_shares) {
  for (const double relative : {0.01, 0.05, 0.15}) {
    Noise noise;
    const Course result =
        run(options_for(PolicyKind::automatic, 8, 512), 2000, [&](std::size_t, std::int64_t n, std::int64_t) {
          return 1e-3 * static_cast<double>(n) * noise(relative);
        });
    const Course sync = [&] {
      Noise same;
      return run(options_for(PolicyKind::sync, 8, 512), 2000, [&](std::size_t, std::int64_t n, std::int64_t) {
        return 1e-3 * static_cast<double>(n) * same(relative);
      });
    }();
    EXPECT_LT(result.mean(0, 2000), 1.01 * sync.mean(0, 2000)) << relative;
    EXPECT_LE(result.changes, 4) << relative;
  }
}

TEST(BalancerAuto, follows_a_rank_that_slows_down_within_three_windows_and_back) {
  Noise noise;
  const Course result = run(options_for(PolicyKind::automatic, 4, 512), 600,
                            [&](std::size_t r, std::int64_t n, std::int64_t step) {
                              const double factor = r == 1 && step >= 200 && step <= 400 ? 3 : 1;
                              return 1e-3 * static_cast<double>(n) * factor * noise(0.01);
                            });
  const double slowed = 0.512 / (3 + 1.0 / 3);
  std::size_t late = 0;
  for (std::size_t i = 200; i < 400; ++i)
    if (result.step_s[i] > 1.08 * slowed) late = i + 1;
  EXPECT_LE(late, 200u + 3 * 16 + 1);
  for (std::size_t i = 401; i < 600; ++i)
    if (result.step_s[i] > 1.08 * 0.128) late = i + 1;
  EXPECT_LE(late, 400u + 3 * 16 + 1);
}

TEST(BalancerAuto, random_delays_cost_no_more_than_with_the_best_fixed_shares) {
  struct Case {
    const char* name;
    std::function<double(std::mt19937&)> delay;
  };
  const Case cases[] = {
      {"gamma", [](std::mt19937& r) { return std::gamma_distribution<double>(2, 0.05)(r); }},
      {"exp", [](std::mt19937& r) { return std::exponential_distribution<double>(1 / 0.08)(r); }}};
  for (const Case& delayed : cases) {
    for (const int ranks : {2, 4, 8}) {
      const std::int64_t batch = 128 * ranks;
      std::mt19937 random(3);
      const auto cost = [&](std::size_t r, std::int64_t n, std::int64_t) {
        return 1e-3 * static_cast<double>(n) + (r == 1 ? delayed.delay(random) : 0);
      };
      const Course automatic = run(options_for(PolicyKind::automatic, ranks, batch), 3000, cost);
      // The best fixed share of rank 1, by trying.
      double best = 1e9;
      for (std::int64_t n = 0; n <= 128; n += 4) {
        const double others = 1e-3 * static_cast<double>(batch - n) / (ranks - 1);
        std::mt19937 draws(5);
        double sum = 0;
        for (int i = 0; i < 20000; ++i)
          sum += std::max(others, n == 0 ? 0 : 1e-3 * static_cast<double>(n) + delayed.delay(draws));
        best = std::min(best, sum / 20000);
      }
      EXPECT_LT(automatic.mean(200, 3000), 1.05 * best) << delayed.name << " " << ranks;
    }
  }
}

TEST(BalancerAuto, leaves_a_rank_out_that_costs_more_than_it_brings_and_takes_it_back_when_it_is_well_again) {
  Noise noise;
  const Course result = run(options_for(PolicyKind::automatic, 4, 256), 1500,
                            [&](std::size_t r, std::int64_t n, std::int64_t step) {
                              const double delay = r == 2 && step < 500 ? 0.2 : 0;
                              return (1e-3 * static_cast<double>(n) + delay) * noise(0.01);
                            });
  EXPECT_EQ(result.shares[300][2], 0);
  EXPECT_GT(result.shares[1400][2], 40);
  // Looking at it now and then costs little.
  EXPECT_LT(result.mean(100, 500), 1.03 * 0.256 / 3);
}

TEST(BalancerAuto, a_batch_smaller_than_the_ranks_is_planned) {
  const Course result =
      run(options_for(PolicyKind::automatic, 8, 3), 100,
          [&](std::size_t, std::int64_t n, std::int64_t) { return 1e-3 * static_cast<double>(n); });
  for (const auto& shares : result.shares)
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), std::int64_t{0}), 3);
}

TEST(BalancerPublished, new_share_is_old_share_over_time_once_per_epoch) {
  // Rank 1 has a constant delay. dp takes the whole time for proportional to the share.
  for (const PolicyKind policy : {PolicyKind::dp, PolicyKind::edp}) {
    const Course result = run(
        options_for(policy, 2, 200), 40 * 5,
        [&](std::size_t r, std::int64_t n, std::int64_t) {
          return static_cast<double>(n) + (r == 1 ? 50 : 0);
        },
        40);
    EXPECT_EQ(result.shares[39], (std::vector<std::int64_t>{100, 100}));
    // 100/100 : 100/150 of 200.
    EXPECT_EQ(result.shares[40], (std::vector<std::int64_t>{120, 80}));
    EXPECT_EQ(result.shares[79], result.shares[40]) << "within an epoch nothing moves";
    // One window of the first epoch, its last, is measured with the second: mean share over mean time.
    const double n1 = (8 * 100 + 32 * 80) / 40.0, speed1 = n1 / (n1 + 50);
    EXPECT_NEAR(static_cast<double>(result.shares[80][1]), 200 * speed1 / (1 + speed1), 1);
  }
}

TEST(BalancerPublished, never_takes_the_last_sample_of_a_rank) {
  const Course result = run(
      options_for(PolicyKind::dp, 2, 16), 200,
      [&](std::size_t r, std::int64_t n, std::int64_t) {
        return static_cast<double>(n) * (r == 1 ? 1000 : 1);
      },
      20);
  EXPECT_EQ(result.shares.back(), (std::vector<std::int64_t>{15, 1}));
}

TEST(BalancerPublished, a_rank_that_a_small_batch_has_no_sample_for_comes_back) {
  Balancer balancer(options_for(PolicyKind::edp, 2, 200));
  const auto epoch = [&](int number, std::int64_t batch) {
    balancer.plan(number, batch);
    std::vector<RankTimes> times(2);
    const auto shares = balancer.shares(batch);
    for (int step = 0; step < 8; ++step)
      for (std::size_t r = 0; r < 2; ++r)
        times[r].push_back({shares[r], static_cast<double>(shares[r]) * (r == 1 ? 60 : 1)});
    balancer.observe(times);
    return shares;
  };
  epoch(1, 200);
  EXPECT_EQ(epoch(2, 200)[1], 3);
  EXPECT_EQ(epoch(3, 10)[1], 1) << "rounded it would be 0";
  EXPECT_EQ(epoch(4, 200)[1], 3);
}

TEST(BalancerAuto, the_batch_may_change_from_epoch_to_epoch) {
  Balancer balancer(options_for(PolicyKind::automatic, 2, 90));
  for (int window = 0; window < 12; ++window) {
    const std::int64_t batch = window / 4 % 2 == 0 ? 90 : 30;
    balancer.plan(window / 4 + 1, batch);
    const auto shares = balancer.shares(batch);
    EXPECT_EQ(shares[0] + shares[1], batch);
    if (window >= 3) {
      EXPECT_EQ(shares[0], 2 * shares[1]) << window;
    }
    std::vector<RankTimes> times(2);
    for (int step = 0; step < 8; ++step)
      for (std::size_t r = 0; r < 2; ++r)
        times[r].push_back({shares[r], 0.01 * static_cast<double>(shares[r]) * (r + 1.0)});
    balancer.observe(times);
  }
}

TEST(BalancerAuto, lucky_steps_of_a_rank_that_scatters_do_not_bring_it_back) {
  std::mt19937 random(9);
  std::exponential_distribution<double> delay(1 / 0.3);
  const Course result =
      run(options_for(PolicyKind::automatic, 8, 256), 3000, [&](std::size_t r, std::int64_t n, std::int64_t) {
        return 1e-3 * static_cast<double>(n) + (r == 2 ? delay(random) : 0);
      });
  EXPECT_LT(result.mean(200, 3000), 1.06 * 0.256 / 7);
}

TEST(BalancerFixed, sync_and_static_stay_whatever_is_measured) {
  BalancerOptions fixed = options_for(PolicyKind::fixed, 3, 40);
  fixed.weights = {1, 0, 3};
  const Cost uneven = [](std::size_t r, std::int64_t n, std::int64_t) {
    return static_cast<double>(n) * (r + 1.0);
  };
  EXPECT_EQ(run(fixed, 100, uneven).shares.back(), (std::vector<std::int64_t>{10, 0, 30}));
  EXPECT_EQ(run(options_for(PolicyKind::sync, 3, 40), 100, uneven).shares.back(),
            (std::vector<std::int64_t>{14, 13, 13}));
}

TEST(Balancer, shares_of_a_smaller_batch_sum_to_it) {
  Balancer balancer(options_for(PolicyKind::automatic, 4, 100));
  for (const std::int64_t batch : {0, 1, 7, 100, 250}) {
    const auto shares = balancer.shares(batch);
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), std::int64_t{0}), batch);
  }
}

TEST(Balancer, goes_on_from_its_json) {
  BalancerOptions options = options_for(PolicyKind::automatic, 2, 100);
  Balancer balancer(options);
  for (int i = 0; i < 6; ++i) {
    const auto shares = balancer.shares(100);
    std::vector<RankTimes> times(2);
    for (int step = 0; step < 8; ++step)
      for (std::size_t r = 0; r < 2; ++r)
        times[r].push_back({shares[r], static_cast<double>(shares[r]) * (r + 1.0)});
    balancer.observe(times);
    balancer.plan(1, 100);
  }
  EXPECT_EQ(balancer.shares(100), (std::vector<std::int64_t>{67, 33}));
  Balancer next(options);
  EXPECT_TRUE(next.restore(Json::parse(balancer.to_json().dump()), "trainer.json"));
  EXPECT_EQ(next.shares(100), balancer.shares(100));
  EXPECT_EQ(next.predicted_s(), balancer.predicted_s());
  options.batch = 10;
  Balancer smaller(options);
  EXPECT_TRUE(smaller.restore(balancer.to_json(), "trainer.json"));
  EXPECT_EQ(smaller.shares(10), (std::vector<std::int64_t>{7, 3}));
  Balancer other(options_for(PolicyKind::automatic, 3, 100));
  EXPECT_FALSE(other.restore(balancer.to_json(), "trainer.json"));
  Balancer dp(options_for(PolicyKind::dp, 2, 100));
  EXPECT_FALSE(dp.restore(balancer.to_json(), "trainer.json"));
}

TEST(Balancer, damaged_json_is_refused_and_changes_nothing) {
  Balancer balancer(options_for(PolicyKind::automatic, 2, 100));
  Json json = balancer.to_json();
  json["shares"] = {-1, 101};
  EXPECT_THROW(balancer.restore(json, "trainer.json"), Error);
  EXPECT_EQ(balancer.shares(100), (std::vector<std::int64_t>{50, 50}));
}

TEST(PublishedGradientWeight, dp_is_the_mean_of_means_and_edp_the_mean_over_the_batch) {
  EXPECT_EQ(published_gradient_weight(PolicyKind::dp, 30, 100, 4), 0.25);
  EXPECT_EQ(published_gradient_weight(PolicyKind::edp, 30, 100, 4), 0.3);
  EXPECT_EQ(published_gradient_weight(PolicyKind::dp, 0, 100, 4), 0);
}

TEST(RampedWindow, is_short_at_first) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 9; ++i) lengths.push_back(ramped_window(i, 16));
  EXPECT_EQ(lengths, (std::vector<std::int64_t>{2, 2, 4, 4, 8, 8, 16, 16, 16}));
  EXPECT_EQ(ramped_window(1000, 16), 16);
  EXPECT_EQ(ramped_window(0, 1), 1);
}

TEST(ParsePolicy, names_are_those_of_the_command_line) {
  for (const char* name : {"sync", "static", "dp", "edp", "auto"})
    EXPECT_STREQ(policy_name(parse_policy(name)), name);
  try {
    parse_policy("fair");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_STREQ(error.what(), "--policy is \"fair\"; expected one of: sync, static, dp, edp, auto");
  }
}

TEST(Balancer, no_share_is_above_its_cap_whatever_the_policy) {
  for (const char* name : {"sync", "static", "auto", "dp", "edp"}) {
    BalancerOptions options;
    options.policy = parse_policy(name);
    options.ranks = 3;
    options.batch = 60;
    options.weights =
        options.policy == PolicyKind::sync ? std::vector<double>{} : std::vector<double>{1, 2, 3};
    Balancer balancer(options);
    const std::vector<std::int64_t> caps = {30, 12, 40};
    balancer.limit(caps);
    for (int window = 0; window < 12; ++window) {
      balancer.plan(window + 1, 60);
      std::vector<RankTimes> times(3);
      for (std::int64_t i = 0; i < 8; ++i) {
        const std::vector<std::int64_t> shares = balancer.shares(i == 7 ? 31 : 60, i);
        ASSERT_EQ(std::accumulate(shares.begin(), shares.end(), std::int64_t{0}), i == 7 ? 31 : 60);
        for (std::size_t r = 0; r < 3; ++r) {
          ASSERT_LE(shares[r], caps[r]) << name << ", window " << window;
          // The rank with the smallest cap is the fastest.
          times[r].push_back({shares[r], (r == 1 ? 0.001 : 0.004) * static_cast<double>(shares[r]) + 0.01});
        }
      }
      balancer.observe(times);
    }
    EXPECT_EQ(balancer.shares(60)[1], 12) << name;
  }
}

}  // namespace
}  // namespace motley::balance
