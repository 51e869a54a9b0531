#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi.h"

namespace motley::comm {
namespace {

// The processors that this process may run on, 32 to a number (exact in a double, which is what can be
// gathered).
std::vector<double> allowed_processors(int& count) {
  // The kernel refuses a set that is smaller than its own, which may be larger than cpu_set_t.
  for (std::size_t bytes = sizeof(cpu_set_t);; bytes *= 2) {
    std::vector<cpu_set_t> set(bytes / sizeof(cpu_set_t));
    if (::sched_getaffinity(0, bytes, set.data()) != 0) {
      if (errno == EINVAL && bytes < (std::size_t{1} << 20)) continue;
      count = 1;
      return {};
    }
    count = CPU_COUNT_S(bytes, set.data());
    std::vector<double> words(bytes / 4);
    for (std::size_t cpu = 0; cpu < 8 * bytes; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set.data())) words[cpu / 32] += static_cast<double>(1U << (cpu % 32));
    }
    return words;
  }
}

// OMP_NUM_THREADS, which may be a list with one number per nesting level; 0 when it says nothing.
int threads_from_environment() {
  const char* const text = std::getenv("OMP_NUM_THREADS");  // NOLINT(concurrency-mt-unsafe): nothing sets it
  return text == nullptr ? 0 : std::max(0, std::atoi(text));
}

// A Communicator of `part`, which is freed: a Communicator has a duplicate.
std::unique_ptr<Communicator> owned_part(MPI_Comm part, const Communicator& world) {
  auto made = std::make_unique<Communicator>(part, world.timeout_s());
  made->speak_as(world.spoken_rank());
  MOTLEY_MPI(MPI_Comm_free(&part));
  return made;
}

}  // namespace

std::unique_ptr<Communicator> ranks_of_host(const Communicator& world) {
  // MPI_Comm_split_type waits without a deadline: let it begin when all are there.
  world.barrier("the ranks of each host");
  MPI_Comm host = MPI_COMM_NULL;
  MOTLEY_MPI(MPI_Comm_split_type(world.handle(), MPI_COMM_TYPE_SHARED, world.rank(), MPI_INFO_NULL, &host));
  return owned_part(host, world);
}

std::unique_ptr<Communicator> part_of(const Communicator& world, bool member) {
  world.barrier("a part of the ranks");
  MPI_Comm part = MPI_COMM_NULL;
  MOTLEY_MPI(MPI_Comm_split(world.handle(), member ? 0 : MPI_UNDEFINED, world.rank(), &part));
  return part == MPI_COMM_NULL ? nullptr : owned_part(part, world);
}

ProcessorShare processor_share(const Communicator& world, bool has_gpu) {
  constexpr const char* what = "the number of ranks on each host";
  int processors = 1;
  std::vector<double> mine = allowed_processors(processors);
  mine.push_back(has_gpu ? 1.0 : 0.0);

  const std::unique_ptr<Communicator> host = ranks_of_host(world);
  const std::vector<double> all = host->all_gather(mine, what);
  ProcessorShare share{processors, 0, host->size()};
  for (auto theirs = all.begin(); theirs != all.end(); theirs += static_cast<std::ptrdiff_t>(mine.size())) {
    const bool same = std::equal(mine.begin(), mine.end() - 1, theirs);
    const bool gpu = theirs[static_cast<std::ptrdiff_t>(mine.size()) - 1] > 0;
    share.ranks += same;
    share.gpu_ranks += same && gpu;
    share.host_gpu_ranks += gpu;
  }
  return share;
}

int threads_per_rank(const ProcessorShare& share) {
  const int wanted = threads_from_environment();
  const int cpu_ranks = std::max(1, share.ranks - share.gpu_ranks);
  return wanted > 0 ? wanted : std::max(1, (share.processors - share.gpu_ranks) / cpu_ranks);
}

double crowding(const ProcessorShare& share, int threads) {
  return static_cast<double>(share.gpu_ranks + (share.ranks - share.gpu_ranks) * threads) / share.processors;
}

std::size_t memory_per_cpu_rank(std::size_t host_bytes, const ProcessorShare& share) {
  constexpr std::size_t most_of_gpu_rank = std::size_t{4} << 30;
  const auto ranks = static_cast<std::size_t>(share.host_ranks),
             gpu_ranks = static_cast<std::size_t>(share.host_gpu_ranks);
  const std::size_t of_gpu_ranks = gpu_ranks * std::min(most_of_gpu_rank, host_bytes / ranks);
  return (host_bytes - of_gpu_ranks) / std::max<std::size_t>(1, ranks - gpu_ranks);
}

}  // namespace motley::comm
