// The share solver against the hand-out that defines it (every sample to the rank that would finish it first,
// with a heap of ranks), both in turn in the same run:
//
//   solver_bench [RANKS [ROUNDS]]
//
// One line of JSON per case. Times are of the processor (all is done by one thread), medians over the rounds,
// in milliseconds. The hand-out takes as long as the batch is large and is left out (null) for the largest.
// "verified" says that every division was proved to be the fastest, and was the hand-out's if there is one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "balance/solver.h"
#include "clocks.h"
#include "core/error.h"
#include "support/division.h"

namespace motley::bench {
namespace {

using balance::RankCost;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A cluster of everything between a laptop and an accelerator: a factor of 100 in speed, up to 50 ms per step
// that do not depend on the share, and one rank in ten whose memory holds but few samples.
std::vector<RankCost> mixed_ranks(std::size_t ranks) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> exponent(-4, -2), fixed_s(0, 0.05);
  std::vector<RankCost> costs(ranks);
  for (RankCost& cost : costs) {
    cost = {fixed_s(random), std::pow(10, exponent(random))};
    if (random() % 10 == 0) cost.cap = static_cast<std::int64_t>(random() % 64);
  }
  return costs;
}

void measure(const std::string& name, const std::vector<RankCost>& costs, std::int64_t batch, bool by_hand,
             int rounds) {
  std::vector<double> ours_ms, greedy_ms;
  bool verified = true;
  for (int round = 0; round < rounds; ++round) {
    double start = cpu_s();
    const balance::Division division = balance::min_max_shares(batch, costs);
    ours_ms.push_back((cpu_s() - start) * 1e3);
    verified = verified && test::fault_of(division, batch, costs).empty();
    if (!by_hand) continue;
    start = cpu_s();
    const std::vector<std::int64_t> shares = test::greedy_shares(batch, costs);
    greedy_ms.push_back((cpu_s() - start) * 1e3);
    verified = verified && shares == division.shares;
  }
  const double ours = median(ours_ms);
  const std::string against = by_hand ? fmt::format("\"greedy_ms\": {:.3f}, \"ratio\": {:.3g}",
                                                    median(greedy_ms), median(greedy_ms) / ours)
                                      : "\"greedy_ms\": null, \"ratio\": null";
  fmt::print(
      "{{\"bench\": \"solver\", \"case\": \"{}\", \"ranks\": {}, \"batch\": {}, \"ms\": {:.3f}, {}, "
      "\"verified\": "
      "{}}}\n",
      name, costs.size(), batch, ours, against, verified);
  std::fflush(stdout);
}

void run(int argc, char** argv) {
  const auto most = static_cast<std::size_t>(argc > 1 ? std::atoll(argv[1]) : 100'000);
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  for (const std::size_t ranks : {most / 1000, most}) {
    const std::vector<RankCost> mixed = mixed_ranks(ranks), equal(ranks, RankCost{0.01, 0.001});
    const auto count = static_cast<std::int64_t>(ranks);
    measure("mixed, 1 sample per rank", mixed, count, true, rounds);
    measure("mixed, 64 samples per rank", mixed, 64 * count, true, rounds);
    measure("equal, 64 samples per rank", equal, 64 * count, true, rounds);
    measure("mixed, huge batch", mixed, 1'000'000'000'000, false, rounds);
  }
}

}  // namespace
}  // namespace motley::bench

int main(int argc, char** argv) {
  try {
    motley::bench::run(argc, argv);
  } catch (const motley::Error& error) {
    std::fprintf(stderr, "solver_bench: %s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
