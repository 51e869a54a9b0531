// MPI, wrapped once: every call is checked and every wait has a deadline (law 5).
#pragma once

#include <mpi.h>

#include <string>

#include "core/error.h"

namespace motley::comm {

// Initialises MPI with MPI_THREAD_MULTIPLE for the life of the object; Error(communication) when the library
// cannot give that. Errors of MPI calls are returned, not fatal, so that they become sentences.
//
// The destructor waits until every rank has come to its end, because mpirun kills the others as soon as one
// rank ends with a code that is not 0: print what is to be said before the session ends. When a rank does not
// come within the timeout the job ends with ExitCode::communication; a failure that only this rank knows of
// must therefore become abort_job() while the session lives. After it SIGTERM is ignored, so that each rank's
// own exit code is what is delivered.
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  // How long the destructor waits for the other ranks.
  void set_timeout(double timeout_s) { timeout_s_ = timeout_s; }

 private:
  double timeout_s_ = 600;
};

// Throws Error(communication) naming the call and MPI's message when `result` is not MPI_SUCCESS.
void check_mpi(int result, const char* call);

// "rank 3 (host b)", of the whole job; for sentences of errors that only this rank knows of. Empty before MPI is
// initialised and after it is finalised.
std::string speaker();

// Ends every process of the job with `code`. For failures that the other ranks cannot know of, and after
// every Error(communication). Also works before MPI is initialised and after it is finalised: then this
// process alone ends.
[[noreturn]] void abort_job(ExitCode code);

}  // namespace motley::comm

// MOTLEY_MPI(MPI_Bcast(...)) checks the call and names it in the error.
#define MOTLEY_MPI(call) ::motley::comm::check_mpi((call), #call)
