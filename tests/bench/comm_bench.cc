// HostReducer against one blocking MPI_Allreduce of the same gradients, both in turn in the same run:
//
//   mpirun -n RANKS comm_bench [MEGABYTES [ROUNDS]]
//
// One line of JSON per case, by rank 0. Times are medians over the rounds of the slowest rank, in
// milliseconds:
//   reduce   no compute: reducer_ms is begin() to the end of finish(), mpi_ms is MPI_Allreduce
//   step     with compute_ms of compute (busy, in 20 pieces that each finish a part of the gradients):
//            reducer_ms is compute with the reducer beside it, mpi_ms is compute and then MPI_Allreduce;
//            exposed_ms is reducer_ms minus the compute alone, which is timed in turn as well
//   latency  one all_reduce_sum of 64 doubles against MPI_Allreduce (microseconds)
// Every sum is compared with the one that is known in closed form; "verified" says that all were right.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/host_reducer.h"
#include "comm/mpi.h"

namespace motley::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int pieces = 20;

struct Bench {
  const Communicator& world;
  std::size_t elements;
  int rounds;
  std::vector<float> gradients = std::vector<float>(elements);
  bool verified = true;

  // Small whole numbers, whose sum is exact in float32.
  float value_of(int rank, std::size_t i) const {
    return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 13) % 64);
  }

  void fill() {
    for (std::size_t i = 0; i < elements; ++i) gradients[i] = value_of(world.rank(), i);
  }

  void verify() {
    for (std::size_t i = 0; i < elements; i += 97) {
      float sum = 0;
      for (int rank = 0; rank < world.size(); ++rank) sum += value_of(rank, i);
      verified = verified && gradients[i] == sum;
    }
  }

  // Milliseconds of the slowest rank.
  double time_of(const std::function<void()>& work) const {
    MOTLEY_MPI(MPI_Barrier(world.handle()));
    const auto start = Clock::now();
    work();
    double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    world.all_reduce_max({&ms, 1}, "the time of a round");
    return ms;
  }

  void mpi_all_reduce() {
    MOTLEY_MPI(MPI_Allreduce(MPI_IN_PLACE, gradients.data(), static_cast<int>(elements), MPI_FLOAT, MPI_SUM,
                             world.handle()));
  }

  // Takes `ms` of processor time, however many ranks share the processor.
  static void compute(double ms) {
    timespec time{};
    const auto thread_ms = [&time] {
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
    };
    const double end = thread_ms() + ms;
    while (thread_ms() < end) {
    }
  }
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void print_line(const Bench& bench, const std::string& what, const std::string& fields) {
  double failed = bench.verified ? 0 : 1;
  bench.world.all_reduce_max({&failed, 1}, "the verdict");
  if (bench.world.rank() != 0) return;
  fmt::print(
      "{{\"bench\": \"comm\", \"case\": \"{}\", \"ranks\": {}, \"mb\": {:.3g}, {}, \"verified\": {}}}\n",
      what, bench.world.size(), static_cast<double>(bench.elements) * 4e-6, fields, failed == 0);
  std::fflush(stdout);
}

void bench_reduce(Bench& bench, double bucket_mb) {
  HostReducer reducer(bench.world, bench.elements, static_cast<std::size_t>(bucket_mb * 1e6));
  std::vector<double> ours, theirs;
  for (int round = 0; round < bench.rounds; ++round) {
    bench.fill();
    ours.push_back(bench.time_of([&] {
      reducer.begin(view_of(bench.gradients));
      reducer.finish();
    }));
    bench.verify();
    bench.fill();
    theirs.push_back(bench.time_of([&] { bench.mpi_all_reduce(); }));
    bench.verify();
  }
  print_line(bench, "reduce",
             fmt::format("\"bucket_mb\": {}, \"reducer_ms\": {:.3f}, \"mpi_ms\": {:.3f}, \"ratio\": {:.3f}",
                         bucket_mb, median(ours), median(theirs), median(ours) / median(theirs)));
}

void bench_step(Bench& bench, double bucket_mb, double compute_ms) {
  HostReducer reducer(bench.world, bench.elements, static_cast<std::size_t>(bucket_mb * 1e6));
  std::vector<double> ours, theirs, alone;
  for (int round = 0; round < bench.rounds; ++round) {
    bench.fill();
    ours.push_back(bench.time_of([&] {
      reducer.begin(view_of(bench.gradients));
      for (std::size_t piece = 1; piece <= pieces; ++piece) {
        Bench::compute(compute_ms / pieces);
        reducer.ready_up_to(bench.elements * piece / pieces);
      }
      reducer.finish();
    }));
    bench.verify();
    bench.fill();
    theirs.push_back(bench.time_of([&] {
      for (int piece = 0; piece < pieces; ++piece) Bench::compute(compute_ms / pieces);
      bench.mpi_all_reduce();
    }));
    bench.verify();
    alone.push_back(bench.time_of([&] {
      for (int piece = 0; piece < pieces; ++piece) Bench::compute(compute_ms / pieces);
    }));
  }
  print_line(
      bench, "step",
      fmt::format("\"bucket_mb\": {}, \"compute_ms\": {:g}, \"reducer_ms\": {:.3f}, \"mpi_ms\": {:.3f}, "
                  "\"ratio\": {:.3f}, \"exposed_ms\": {:.3f}",
                  bucket_mb, compute_ms, median(ours), median(theirs), median(ours) / median(theirs),
                  median(ours) - median(alone)));
}

void bench_latency(Bench& bench) {
  constexpr int calls = 200;
  std::vector<double> values(64), ours, theirs;
  for (int round = 0; round < bench.rounds; ++round) {
    std::fill(values.begin(), values.end(), 0.0);
    ours.push_back(bench.time_of([&] {
      for (int call = 0; call < calls; ++call) bench.world.all_reduce_sum(values, "a test");
    }));
    theirs.push_back(bench.time_of([&] {
      for (int call = 0; call < calls; ++call) {
        MOTLEY_MPI(MPI_Allreduce(MPI_IN_PLACE, values.data(), 64, MPI_DOUBLE, MPI_SUM, bench.world.handle()));
      }
    }));
  }
  print_line(
      bench, "latency",
      fmt::format("\"all_reduce_us\": {:.2f}, \"mpi_us\": {:.2f}, \"ratio\": {:.3f}",
                  median(ours) * 1e3 / calls, median(theirs) * 1e3 / calls, median(ours) / median(theirs)));
}

void run(int argc, char** argv) {
  const Communicator world(MPI_COMM_WORLD);
  const double megabytes = argc > 1 ? std::atof(argv[1]) : 4.8;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 21;
  Bench bench{world, static_cast<std::size_t>(megabytes * 1e6 / sizeof(float)), rounds};
  bench_latency(bench);
  for (const double bucket_mb : {1.0, 4.0, 25.0}) bench_reduce(bench, bucket_mb);
  for (const double bucket_mb : {1.0, 4.0, 25.0}) bench_step(bench, bucket_mb, 40);
}

}  // namespace
}  // namespace motley::comm

int main(int argc, char** argv) {
  const motley::comm::MpiSession session(&argc, &argv);
  try {
    motley::comm::run(argc, argv);
  } catch (const motley::Error& error) {
    std::fprintf(stderr, "comm_bench: %s\n", error.what());
    motley::comm::abort_job(error.code());
  }
  return 0;
}
