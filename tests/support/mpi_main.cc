// main() of tests that run under mpirun: every rank runs every test, in step; only rank 0 and ranks with
// failures print; every rank ends with a failure when any had one.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>

#include "comm/mpi.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  // Of an exception on one rank the others know nothing: it ends the process, and mpirun ends them.
  GTEST_FLAG_SET(catch_exceptions, false);
  const motley::comm::MpiSession session(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    delete listeners.Release(listeners.default_xml_generator());  // of --gtest_output, one file for all ranks
    struct FailurePrinter : ::testing::EmptyTestEventListener {
      explicit FailurePrinter(int rank_) : rank(rank_) {}
      void OnTestPartResult(const ::testing::TestPartResult& result) override {
        if (result.failed()) {
          std::fprintf(stderr, "[rank %d] %s:%d: %s\n", rank, result.file_name() ? result.file_name() : "?",
                       result.line_number(), result.message());
        }
      }
      int rank;
    };
    listeners.Append(new FailurePrinter(rank));
  }
  int failed = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return failed;
}
