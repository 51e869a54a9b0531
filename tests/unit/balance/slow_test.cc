#include "balance/slow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/error.h"
#include "support/usage_sentence.h"

namespace motley::balance {
namespace {

using Kind = Slowness::Kind;

std::string sentence_of(const char* text, int ranks) {
  return test::usage_sentence([&] { parse_slow(text, ranks); });
}

// The only thing said of rank 0.
Slowness part_of(const std::string& text) {
  const auto specs = parse_slow("0:" + text, 1);
  EXPECT_EQ(specs.at(0).parts.size(), 1u) << text;
  return specs.at(0).parts.at(0);
}

TEST(ParseSlow, gives_one_spec_per_rank) {
  const auto specs = parse_slow("1:3x,2:1.5x", 4);
  ASSERT_EQ(specs.size(), 4u);
  EXPECT_TRUE(specs[0].empty());
  EXPECT_EQ(specs[1].factor(1), 3);
  EXPECT_EQ(specs[2].factor(1), 1.5);
  EXPECT_TRUE(specs[3].empty());
}

TEST(ParseSlow, of_nothing_slows_nobody) {
  ASSERT_EQ(parse_slow("", 3).size(), 3u);
  for (const auto& spec : parse_slow("", 3)) {
    EXPECT_TRUE(spec.empty());
    EXPECT_EQ(spec.factor(1), 1);
    EXPECT_EQ(spec.delay_s(1, 0, 5), 0);
    EXPECT_EQ(spec.mean_delay_s(1), 0);
  }
}

TEST(ParseSlow, reads_every_form) {
  const Slowness factor = part_of("2.5x");
  EXPECT_EQ(factor.kind, Kind::factor);
  EXPECT_EQ(factor.factor, 2.5);
  EXPECT_EQ(factor.first_step, 1);
  EXPECT_EQ(factor.last_step, std::numeric_limits<std::int64_t>::max());

  const Slowness constant = part_of("+100ms");
  EXPECT_EQ(constant.kind, Kind::constant);
  EXPECT_EQ(constant.scale_s, 0.1);

  const Slowness gamma = part_of("gamma(2,50ms)");
  EXPECT_EQ(gamma.kind, Kind::gamma);
  EXPECT_EQ(gamma.shape, 2);
  EXPECT_EQ(gamma.scale_s, 0.05);

  const Slowness exponential = part_of("exp(80ms)");
  EXPECT_EQ(exponential.kind, Kind::exponential);
  EXPECT_EQ(exponential.scale_s, 0.08);
}

TEST(ParseSlow, reads_seconds_and_their_thousandths_and_millionths) {
  EXPECT_EQ(part_of("+2s").scale_s, 2);
  EXPECT_EQ(part_of("+0.25s").scale_s, 0.25);
  EXPECT_EQ(part_of("+1.5ms").scale_s, 0.0015);
  EXPECT_EQ(part_of("+300us").scale_s, 0.0003);
  EXPECT_EQ(part_of("exp(1e3us)").scale_s, 0.001);
  EXPECT_EQ(part_of("gamma(0.5,3us)").scale_s, 3e-6);
  EXPECT_EQ(part_of("+0s").scale_s, 0);
}

TEST(ParseSlow, reads_the_steps_behind_every_form) {
  for (const char* form : {"3x", "+100ms", "gamma(2,50ms)", "exp(80ms)"}) {
    const Slowness some = part_of(std::string(form) + "@200-400");
    EXPECT_EQ(some.first_step, 200) << form;
    EXPECT_EQ(some.last_step, 400) << form;
    const Slowness from = part_of(std::string(form) + "@7-");
    EXPECT_EQ(from.first_step, 7) << form;
    EXPECT_EQ(from.last_step, std::numeric_limits<std::int64_t>::max()) << form;
    EXPECT_EQ(part_of(std::string(form) + "@5-5").last_step, 5) << form;
  }
}

TEST(ParseSlow, takes_commas_inside_parentheses_for_part_of_the_form) {
  const auto specs = parse_slow("1:gamma(2,50ms)@200-400,0:2x,1:exp(80ms),1:gamma(3,1s)", 2);
  ASSERT_EQ(specs[0].parts.size(), 1u);
  ASSERT_EQ(specs[1].parts.size(), 3u);
  EXPECT_EQ(specs[1].parts[0].shape, 2);
  EXPECT_EQ(specs[1].parts[1].kind, Kind::exponential);
  EXPECT_EQ(specs[1].parts[2].shape, 3);
}

TEST(ParseSlow, says_what_is_wrong) {
  EXPECT_EQ(sentence_of("4:2x", 4),
            "--slow 4:2x: \"4:2x\" names a rank that does not exist; the ranks of this run are 0 to 3");
  EXPECT_EQ(sentence_of("-1:2x", 4),
            "--slow -1:2x: \"-1:2x\" names a rank that does not exist; the ranks of this run are 0 to 3");
  EXPECT_NE(sentence_of("99999999999999:2x", 4).find("a rank that does not exist"), std::string::npos);
  EXPECT_EQ(sentence_of("0:2x,1:0.5x", 2),
            "--slow 0:2x,1:0.5x: \"1:0.5x\" would make its rank faster; the least factor is 1");
  EXPECT_EQ(sentence_of("1:+-5ms", 2), "--slow 1:+-5ms: \"1:+-5ms\" has a negative delay; the least is 0");
  EXPECT_EQ(sentence_of("1:-5ms", 2), "--slow 1:-5ms: \"1:-5ms\" has a negative delay; the least is 0");
  EXPECT_EQ(sentence_of("1:exp(-1s)", 2),
            "--slow 1:exp(-1s): \"1:exp(-1s)\" has a negative delay; the least is 0");
  EXPECT_EQ(sentence_of("1:gamma(2,-1s)", 2),
            "--slow 1:gamma(2,-1s): \"1:gamma(2,-1s)\" has a negative delay; the least is 0");
  EXPECT_EQ(sentence_of("1:gamma(0,1s)", 2),
            "--slow 1:gamma(0,1s): the shape in \"1:gamma(0,1s)\" is 0; it must be more than 0");
  EXPECT_EQ(sentence_of("1:3x@400-200", 2),
            "--slow 1:3x@400-200: \"1:3x@400-200\" ends before it begins: step 200 comes before step 400");
  EXPECT_EQ(sentence_of("1:3x@0-9", 2), "--slow 1:3x@0-9: \"1:3x@0-9\" begins at step 0; steps count from 1");
  EXPECT_EQ(sentence_of("1:3x@-5-9", 2),
            "--slow 1:3x@-5-9: \"1:3x@-5-9\" begins at step -5; steps count from 1");
}

TEST(ParseSlow, says_which_forms_there_are_for_any_other) {
  EXPECT_EQ(
      sentence_of("0:2x,1:2", 2),
      "--slow 0:2x,1:2: \"1:2\" has none of the forms RANK:3x, RANK:+100ms, RANK:gamma(2,50ms) and "
      "RANK:exp(80ms), each for some steps only with @200-400 or @200- at its end; the units of time are us, "
      "ms and s");
  for (const char* text : {"1",
                           "1:",
                           ":",
                           "x",
                           "1:x",
                           "1:2x,",
                           ",1:2x",
                           "1:2xx",
                           "1:nanx",
                           "1:infx",
                           "1 :2x",
                           "1: 2x",
                           "1:1e999x",
                           "1:2x;0:2x",
                           "a:2x",
                           "1.5:2x",
                           "1:+100",
                           "1:+ms",
                           "1:100ms",
                           "1:++100ms",
                           "1:+100 ms",
                           "1:+100m",
                           "1:+nans",
                           "1:+infs",
                           "1:gamma",
                           "1:gamma()",
                           "1:gamma(2)",
                           "1:gamma(2,)",
                           "1:gamma(,50ms)",
                           "1:gamma(2,50)",
                           "1:gamma(2,50ms",
                           "1:gamma2,50ms)",
                           "1:gamma(2,50ms))",
                           "1:gamma(2,50ms,1)",
                           "1:gamma(nan,50ms)",
                           "1:gamma(x,1s)",
                           "1:exp",
                           "1:exp()",
                           "1:exp(",
                           "1:exp(80)",
                           "1:exp(80ms",
                           "1:exp80ms",
                           "1:exp(1s,2s)",
                           "1:normal(1s)",
                           "1:2x@",
                           "1:2x@5",
                           "1:2x@-",
                           "1:2x@-5",
                           "1:2x@a-b",
                           "1:2x@5-b",
                           "1:2x@5-9-",
                           "1:2x@5-9@7-",
                           "1:2x@1.5-3",
                           "1:2x@5-99999999999999999999",
                           "1:@5-9"}) {
    EXPECT_NE(sentence_of(text, 2).find("has none of the forms"), std::string::npos) << text;
  }
}

TEST(SlowSpec, multiplies_factors_and_adds_delays) {
  const SlowSpec spec = parse_slow("0:3x,0:+100ms,0:2x,0:+0.5s", 1)[0];
  EXPECT_EQ(spec.factor(1), 6);
  EXPECT_DOUBLE_EQ(spec.delay_s(1, 0, 7), 0.6);
  EXPECT_DOUBLE_EQ(spec.mean_delay_s(1), 0.6);
}

TEST(SlowSpec, holds_from_the_first_to_the_last_step_and_both_belong_to_it) {
  const SlowSpec spec = parse_slow("0:3x@10-20,0:2x@20-,0:+1s@5-5,0:gamma(2,1s)@30-31", 1)[0];
  EXPECT_EQ(spec.factor(9), 1);
  EXPECT_EQ(spec.factor(10), 3);
  EXPECT_EQ(spec.factor(20), 6);
  EXPECT_EQ(spec.factor(21), 2);
  EXPECT_EQ(spec.factor(4'000'000'000), 2);
  EXPECT_EQ(spec.delay_s(4, 0, 7), 0);
  EXPECT_EQ(spec.delay_s(5, 0, 7), 1);
  EXPECT_EQ(spec.delay_s(6, 0, 7), 0);
  EXPECT_EQ(spec.mean_delay_s(29), 0);
  EXPECT_EQ(spec.mean_delay_s(30), 2);
  EXPECT_GT(spec.delay_s(31, 0, 7), 0);
  EXPECT_EQ(spec.delay_s(32, 0, 7), 0);
}

// --- Random delays ----------------------------------------------------------------------------------------

struct Moments {
  double mean = 0, variance = 0, skewness = 0, least = std::numeric_limits<double>::infinity();
};

constexpr int draws = 100'000;

Moments moments_of(const std::string& text) {
  const SlowSpec spec = parse_slow("0:" + text, 1)[0];
  std::vector<double> delays;
  Moments moments;
  for (int step = 1; step <= draws; ++step) {
    delays.push_back(spec.delay_s(step, 3, 2024));
    moments.mean += delays.back() / draws;
    moments.least = std::min(moments.least, delays.back());
  }
  double third = 0;
  for (const double delay : delays) {
    moments.variance += std::pow(delay - moments.mean, 2) / draws;
    third += std::pow(delay - moments.mean, 3) / draws;
  }
  moments.skewness = third / std::pow(moments.variance, 1.5);
  return moments;
}

TEST(GammaDelays, have_the_mean_the_variance_and_the_skewness_of_the_distribution) {
  for (const double shape : {0.2, 0.5, 1.0, 2.0, 7.5, 200.0}) {
    const Moments moments = moments_of(fmt::format("gamma({},50ms)", shape));
    // Five standard errors; the kurtosis of a gamma distribution is 3 + 6 / shape.
    EXPECT_NEAR(moments.mean, shape * 0.05, 5 * 0.05 * std::sqrt(shape / draws)) << shape;
    const double variance = shape * 0.05 * 0.05;
    EXPECT_NEAR(moments.variance, variance, 5 * variance * std::sqrt((2 + 6 / shape) / draws)) << shape;
    EXPECT_NEAR(moments.skewness, 2 / std::sqrt(shape), 0.1 * (1 + 2 / std::sqrt(shape))) << shape;
    EXPECT_GE(moments.least, 0) << shape;
  }
}

TEST(ExponentialDelays, have_the_mean_the_variance_and_the_skewness_of_the_distribution) {
  const Moments moments = moments_of("exp(80ms)");
  EXPECT_NEAR(moments.mean, 0.08, 5 * 0.08 / std::sqrt(draws));
  EXPECT_NEAR(moments.variance, 0.08 * 0.08, 5 * 0.08 * 0.08 * std::sqrt(8.0 / draws));
  EXPECT_NEAR(moments.skewness, 2, 0.2);
  EXPECT_GE(moments.least, 0);
}

// The largest distance between the share of draws up to x and the distribution function at x.
double kolmogorov_distance(std::vector<double> values, double (*distribution)(double)) {
  std::sort(values.begin(), values.end());
  double distance = 0;
  const auto count = static_cast<double>(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double at = distribution(values[i]), rank = static_cast<double>(i);
    distance = std::max({distance, at - rank / count, (rank + 1) / count - at});
  }
  return distance;
}

TEST(RandomDelays, follow_their_distribution_functions) {
  struct Known {
    const char* text;
    double (*distribution)(double);
  };
  // In closed form: the exponential, gamma of shape 2 (Erlang) and gamma of shape 1/2 (chi-squared).
  for (const Known& known : {Known{"exp(2s)", [](double x) { return -std::expm1(-x / 2); }},
                             Known{"gamma(2,1s)", [](double x) { return 1 - (1 + x) * std::exp(-x); }},
                             Known{"gamma(0.5,1s)", [](double x) { return std::erf(std::sqrt(x)); }}}) {
    const SlowSpec spec = parse_slow(std::string("0:") + known.text, 1)[0];
    std::vector<double> delays;
    for (int step = 1; step <= draws; ++step) delays.push_back(spec.delay_s(step, 0, 99));
    // Exceeded once in a million times.
    EXPECT_LT(kolmogorov_distance(delays, known.distribution), 2.7 / std::sqrt(draws)) << known.text;
  }
}

TEST(RandomDelays, have_the_mean_that_they_are_said_to_have) {
  const SlowSpec spec = parse_slow("0:gamma(2,50ms),0:exp(80ms),0:+1s,0:4x", 1)[0];
  EXPECT_DOUBLE_EQ(spec.mean_delay_s(1), 2 * 0.05 + 0.08 + 1);
}

TEST(RandomDelays, are_the_same_whenever_they_are_asked_for) {
  const SlowSpec spec = parse_slow("0:gamma(2,50ms),0:exp(80ms)", 1)[0];
  const double first = spec.delay_s(17, 3, 42);
  for (int step = 1; step < 100; ++step) spec.delay_s(step, 3, 42);
  EXPECT_EQ(spec.delay_s(17, 3, 42), first);
  EXPECT_EQ(parse_slow("5:gamma(2,50ms),5:exp(80ms)", 6)[5].delay_s(17, 3, 42), first);
}

TEST(RandomDelays, of_other_steps_ranks_and_seeds_differ) {
  for (const char* text : {"0:gamma(2,50ms)", "0:gamma(0.5,50ms)", "0:exp(80ms)"}) {
    const SlowSpec spec = parse_slow(text, 1)[0];
    std::set<double> seen;
    for (const std::int64_t step : {std::int64_t{1}, std::int64_t{2}, std::int64_t{4'000'000'000}}) {
      for (const int rank : {0, 1, 7}) {
        for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 40})
          seen.insert(spec.delay_s(step, rank, seed));
      }
    }
    EXPECT_EQ(seen.size(), 27u) << text;
  }
}

TEST(RandomDelays, of_two_parts_of_a_rank_differ) {
  const SlowSpec one = parse_slow("0:exp(1s)", 1)[0], two = parse_slow("0:exp(1s),0:exp(1s)", 1)[0];
  EXPECT_NE(two.delay_s(1, 0, 42), 2 * one.delay_s(1, 0, 42));
}

TEST(ParseSlow, what_nobody_lives_to_see_is_refused) {
  EXPECT_EQ(sentence_of("0:1e300x", 1),
            "--slow 0:1e300x: \"0:1e300x\" is too much; expected a factor of at most 1000000");
  EXPECT_EQ(sentence_of("0:+100000s", 1),
            "--slow 0:+100000s: \"0:+100000s\" is too much; expected delays of at most a day");
  EXPECT_EQ(
      sentence_of("0:gamma(1e300,1ms)", 1),
      "--slow 0:gamma(1e300,1ms): \"0:gamma(1e300,1ms)\" is too much; expected a shape of at most 1000000");
}

}  // namespace
}  // namespace motley::balance
