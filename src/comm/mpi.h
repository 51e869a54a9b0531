// MPI, wrapped once: every call is checked and every wait has a deadline (law 5).
#pragma once

#include <mpi.h>

#include <string>

#include "core/error.h"

namespace motley::comm {

// Initialises MPI with MPI_THREAD_MULTIPLE for the life of the object; Error(communication) when the library
// cannot give that. Errors of MPI calls are returned, not fatal, so that they become sentences.
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
};

// Throws Error(communication) naming the call and MPI's message when `result` is not MPI_SUCCESS.
void check_mpi(int result, const char* call);

// Ends every process of the job with `code`. For failures that the other ranks cannot know of.
[[noreturn]] void abort_job(ExitCode code);

}  // namespace motley::comm

// MOTLEY_MPI(MPI_Bcast(...)) checks the call and names it in the error.
#define MOTLEY_MPI(call) ::motley::comm::check_mpi((call), #call)
