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
    // Sentences about communication name their rank themselves.
    const bool named = error.code() != ExitCode::communication && !comm::speaker().empty();
    log::error("{}{}", named ? comm::speaker() + ": " : "", error.what());
    end(error.code());
  } catch (const std::exception& error) {
    const std::string speaker = comm::speaker();
    log::error("{}this is a bug in motley, or memory ran out: {}", speaker.empty() ? "" : speaker + ": ",
               error.what());
    end(ExitCode::internal);
  }
}

}  // namespace motley::cli
