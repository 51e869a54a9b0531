// How strict the stand-in of NCCL is. Runs under mpirun. The last test leaves the device with work that never ends.
#include <gtest/gtest.h>
#include <mpi.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "device_array.h"

namespace motley::test {
namespace {

using Clock = std::chrono::steady_clock;

class SimNccl : public testing::Test {
 protected:
  SimNccl() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    sim::set_order(1);
  }
  ~SimNccl() override { sim::set_fault(""); }

  // Collective.
  ncclComm_t begin() const {
    ncclUniqueId id{};
    if (rank == 0) {
      EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    }
    MPI_Bcast(id.internal, sizeof(id.internal), MPI_BYTE, 0, MPI_COMM_WORLD);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, size, id, rank, &config), ncclInProgress);
    return comm;
  }

  static ncclResult_t state_of(ncclComm_t comm) {
    ncclResult_t state = ncclSuccess;
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    return state;
  }
  static ncclResult_t wait_for(ncclComm_t comm) {
    ncclResult_t state = state_of(comm);
    while (state == ncclInProgress) state = state_of(comm);
    return state;
  }
  ncclComm_t ready() const {
    ncclComm_t const comm = begin();
    EXPECT_EQ(wait_for(comm), ncclSuccess);
    return comm;
  }
  static void end(ncclComm_t comm) {
    EXPECT_EQ(ncclCommFinalize(comm), ncclInProgress);
    EXPECT_EQ(wait_for(comm), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  }

  ncclResult_t sum(ncclComm_t comm) const {
    return ncclAllReduce(data->data(), data->data(), 8, ncclFloat32, ncclSum, comm, stream);
  }

  int rank = 0, size = 1;
  cuda::Stream stream;
  std::unique_ptr<DeviceArray<float>> data =
      std::make_unique<DeviceArray<float>>(std::vector<float>(8, 1.0f));
};

TEST_F(SimNccl, a_communicator_is_not_ready_when_it_is_begun) {
  ncclComm_t const comm = begin();
  expect_violation([&] { sum(comm); }, {"ncclAllReduce", "not ready"});
  EXPECT_EQ(wait_for(comm), ncclSuccess);
  end(comm);
}

TEST_F(SimNccl, neither_it_nor_the_stream_may_be_used_while_an_operation_is_in_progress) {
  ncclComm_t const comm = ready();
  ASSERT_EQ(sum(comm), ncclInProgress);
  expect_violation([&] { sum(comm); }, {"ncclAllReduce", "not ready"});
  const cuda::Event event;
  expect_violation([&] { cudaEventRecord(event, stream); }, {"ncclAllReduce", "ncclCommGetAsyncError"});
  EXPECT_EQ(wait_for(comm), ncclSuccess);
  EXPECT_EQ(data->values(stream), std::vector<float>(8, static_cast<float>(size)));
  end(comm);
}

TEST_F(SimNccl, two_threads_in_one_communicator_are_caught) {
  ncclComm_t const comm = ready();
  std::atomic<bool> caught = false;
  const auto poll = [&] {
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    try {
      while (!caught && Clock::now() < deadline) state_of(comm);
    } catch (const sim::Violation& violation) {
      EXPECT_NE(std::string(violation.what()).find("another thread"), std::string::npos);
      caught = true;
    }
  };
  std::thread other(poll);
  poll();
  other.join();
  EXPECT_TRUE(caught);
  end(comm);
}

TEST_F(SimNccl, the_end_waits_for_every_member_and_its_operations) {
  ncclComm_t const comm = ready();
  sum(comm);
  EXPECT_EQ(wait_for(comm), ncclSuccess);
  const auto began = Clock::now();
  if (rank == size - 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  end(comm);
  EXPECT_GE(Clock::now() - began, std::chrono::milliseconds(100));
  EXPECT_EQ(data->values(stream), std::vector<float>(8, static_cast<float>(size)));
}

TEST_F(SimNccl, nothing_is_destroyed_without_its_end_or_used_after_it) {
  ncclComm_t const comm = ready();
  expect_violation([&] { ncclCommDestroy(comm); }, {"ncclCommDestroy", "ncclCommFinalize"});
  EXPECT_EQ(ncclCommFinalize(comm), ncclInProgress);
  expect_violation([&] { ncclCommDestroy(comm); }, {"not ready"});
  EXPECT_EQ(wait_for(comm), ncclSuccess);
  expect_violation([&] { sum(comm); }, {"finalized"});
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  expect_violation([&] { state_of(comm); }, {"does not exist"});
}

TEST_F(SimNccl, an_error_stays_and_what_is_on_the_stream_never_ends) {
  ncclComm_t const comm = ready();
  sum(comm);
  EXPECT_EQ(wait_for(comm), ncclSuccess);
  sim::set_fault(std::to_string(rank) + ":ncclCommGetAsyncError:1:6");
  EXPECT_EQ(state_of(comm), ncclRemoteError);
  EXPECT_EQ(state_of(comm), ncclRemoteError);
  EXPECT_EQ(sum(comm), ncclRemoteError);
  EXPECT_EQ(ncclCommFinalize(comm), ncclRemoteError);
  for (const auto deadline = Clock::now() + std::chrono::milliseconds(50); Clock::now() < deadline;)
    ASSERT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  MPI_Barrier(MPI_COMM_WORLD);
  static_cast<void>(data.release());  // cudaFree would wait for ever, too
}

}  // namespace
}  // namespace motley::test
