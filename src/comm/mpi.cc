#include "comm/mpi.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "comm/backoff.h"
#include "core/log.h"

namespace motley::comm {
namespace {

// "MPI_Ibcast(data, ...)" as written in the source becomes "MPI_Ibcast".
std::string_view function_of(std::string_view call) {
  return call.substr(0, call.find('('));
}

// Whether every rank of the job came here in time.
bool all_arrived(double timeout_s) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS) return false;
  Backoff backoff;
  for (;;) {
    int done = 0;
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    if (done) return true;
    if (backoff.waited_s() > timeout_s) return false;
    backoff.pause();
  }
}

constexpr unsigned abort_deadline_s = 6;
volatile std::sig_atomic_t exit_code = 0;

// Ends this process, should MPI_Abort never return: Open MPI 4.1's mpirun has been seen to lose what it is told
// ("ORTE_ERROR_LOG: Data unpack would read past end of buffer") and to wait for ever. That a process has ended it
// notices all the same, and ends the others.
void exit_soon(ExitCode code) {
  exit_code = static_cast<int>(code);
  std::signal(SIGALRM, [](int) { std::_Exit(exit_code); });
  alarm(abort_deadline_s);
}

}  // namespace

MpiSession::MpiSession(int* argc, char*** argv) {
  int provided = MPI_THREAD_SINGLE;
  MOTLEY_MPI(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided));
  if (provided < MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    fail(ExitCode::communication,
         "this MPI library gives thread level {} of {}: motley needs one that was built with "
         "MPI_THREAD_MULTIPLE",
         provided, MPI_THREAD_MULTIPLE);
  }
  MOTLEY_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  MOTLEY_MPI(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
}

MpiSession::~MpiSession() {
  if (!all_arrived(timeout_s_)) {
    try {
      log::error("waited {:g} s for every rank to come to its end; ending the job", timeout_s_);
    } catch (...) {  // NOLINT: without memory for a sentence the job must still end
    }
    abort_job(ExitCode::communication);
  }
  MPI_Finalize();
  std::signal(SIGTERM, SIG_IGN);
}

void check_mpi(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  char message[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(result, message, &length) != MPI_SUCCESS) length = 0;
  fail(ExitCode::communication, "{} failed: {} (in {})", function_of(call),
       length > 0 ? message : fmt::format("MPI error {}", result), call);
}

std::string speaker() {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (!initialized || finalized) return {};
  int rank = 0, length = 0;
  char host[MPI_MAX_PROCESSOR_NAME] = "";
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Get_processor_name(host, &length);
  return fmt::format("rank {} (host {})", rank, host);
}

void abort_job(ExitCode code) {
  std::fflush(nullptr);
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized && !finalized) {
    exit_soon(code);
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  }
  std::_Exit(static_cast<int>(code));
}

}  // namespace motley::comm
