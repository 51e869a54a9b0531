// Runs that end badly: `ending CASE`. The last rank does not come to where the others wait;
// tests/unit/comm/CMakeLists.txt says which sentence and exit code must come out of it.
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/agree.h"
#include "comm/communicator.h"
#include "comm/host_reducer.h"
#include "comm/host_sum.h"
#include "comm/mpi.h"

// In the case abort-hangs mpirun never hears of it.
bool abort_hangs = false;

extern "C" int MPI_Abort(MPI_Comm comm, int code) {
  while (abort_hangs) pause();
  return PMPI_Abort(comm, code);
}

namespace motley::comm {
namespace {

// For what is to be late. The ranks start at different times on a busy machine, so they meet first, under a
// deadline that is not to pass.
constexpr double timeout_s = 1, generous_s = 60;

// Far beyond every deadline; the job is over before.
void never_arrive() {
  std::this_thread::sleep_for(std::chrono::seconds(30));
}

void wait_for_nobody(const Communicator& world, const std::string& play) {
  std::vector<double> values(1000, 1.0);
  const bool missing = world.rank() == world.size() - 1 || (play == "barrier-two" && world.rank() == 1);
  if (missing) never_arrive();
  if (play == "barrier" || play == "barrier-two" || play == "abort-hangs") world.barrier("the end of the epoch");
  if (play == "broadcast") world.broadcast(std::string("text"), world.size() - 1, "the options");
  if (play == "all-reduce") world.all_reduce_sum(values, "the loss");
  if (play == "all-gather") world.all_gather(values, "the shares");
  if (play == "scatter") world.scatter({}, world.size() - 1, "the plan of window 12");
  if (play == "communicator") const Communicator another(world.handle(), timeout_s);
  if (play == "agree") agree(world, "opening the data", [] {});
}

void reduce_without_the_last_rank(const Communicator& world) {
  std::vector<float> gradients(4 * 64, 1.0F);
  HostReducer reducer(world, gradients.size(), 64 * sizeof(float));
  reducer.begin(view_of(gradients));
  reducer.ready_up_to(128);
  if (world.rank() == world.size() - 1) never_arrive();
  reducer.finish();
}

void add_up_without_the_last_rank(const Communicator& world) {
  HostSum sum(world);
  std::vector<double> values(64, 1.0);
  for (int i = 1; i <= 3; ++i) {
    if (i == 3 && world.rank() == world.size() - 1) never_arrive();
    sum.add_up(view_of(values), fmt::format("sum {} of batch norm's statistics in step 12", i).c_str());
  }
}

void fail_in_the_middle_of_a_step(const Communicator& world) {
  std::vector<float> gradients(1 << 20, 1.0F);
  HostReducer reducer(world, gradients.size(), 1 << 20);
  reducer.begin(view_of(gradients));
  if (world.rank() == world.size() - 1) never_arrive();
  reducer.ready_up_to(gradients.size());
  throw std::runtime_error("thrown in the middle of a step");
}

void play_case(const std::string& play) {
  const Communicator start(MPI_COMM_WORLD, generous_s);
  start.barrier("the start");
  const Communicator world(MPI_COMM_WORLD, play == "agreed" ? generous_s : timeout_s);
  start.barrier("the beginning of the play");
  if (play == "reducer") return reduce_without_the_last_rank(world);
  if (play == "small-sum") return add_up_without_the_last_rank(world);
  if (play == "reducer-abandoned") return fail_in_the_middle_of_a_step(world);
  if (play == "agreed") {
    agree(world, "reading the checkpoint", [&] {
      if (world.rank() == 1) fail(ExitCode::checkpoint, "step-00000100 is damaged");
    });
  }
  if (play == "session") {
    if (world.rank() == world.size() - 1) never_arrive();
    return;
  }
  wait_for_nobody(world, play);
}

int run(int argc, char** argv) {
  MpiSession session(&argc, &argv);
  const std::string play = argc > 1 ? argv[1] : "";
  abort_hangs = play == "abort-hangs";
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  ExitCode code = ExitCode::internal;
  try {
    play_case(play);
    session.set_timeout(play == "session" ? timeout_s : generous_s);
    return 0;
  } catch (const AgreedError& error) {
    if (rank == 0) std::fprintf(stderr, "agreed: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    code = error.code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  // The other ranks come to their own deadlines at about the same time, and may know more: let them speak.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  abort_job(code);
}

}  // namespace
}  // namespace motley::comm

int main(int argc, char** argv) {
  return motley::comm::run(argc, argv);
}
