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

ProcessorShare processor_share(const Communicator& world) {
  constexpr const char* what = "the number of ranks on each host";
  int processors = 1;
  const std::vector<double> mine = allowed_processors(processors);

  const std::unique_ptr<Communicator> host = ranks_of_host(world);
  const std::vector<double> all = host->all_gather(mine, what);
  int sharing = 0;
  if (mine.empty()) sharing = host->size();
  for (auto theirs = all.begin(); theirs != all.end(); theirs += static_cast<std::ptrdiff_t>(mine.size())) {
    sharing += std::equal(mine.begin(), mine.end(), theirs);
  }
  return {processors, std::max(1, sharing), host->size()};
}

int threads_per_rank(const ProcessorShare& share) {
  const int wanted = threads_from_environment();
  return wanted > 0 ? wanted : std::max(1, share.processors / share.ranks);
}

}  // namespace motley::comm
