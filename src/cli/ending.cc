#include "cli/ending.h"

#include <chrono>
#include <exception>
#include <thread>

#include "comm/mpi.h"
#include "core/error.h"
#include "core/log.h"

namespace motley::cli {
namespace {

// Deadlines pass on several ranks at about the same time; the rank that knows who is missing must get to say
// so before the first to abort takes all with it.
constexpr std::chrono::milliseconds time_to_speak{300};

[[noreturn]] void end(ExitCode code) {
  std::this_thread::sleep_for(time_to_speak);
  comm::abort_job(code);
}

}  // namespace

void run_or_abort(const std::function<void()>& work) {
  try {
    work();
  } catch (const AgreedError&) {
    throw;
  } catch (const Error& error) {
    log::error("{}", error.what());
    end(error.code());
  } catch (const std::exception& error) {
    log::error("this is a bug in motley, or memory ran out: {}", error.what());
    end(ExitCode::internal);
  }
}

}  // namespace motley::cli
