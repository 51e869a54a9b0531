// The one exception type of the program. Every failure carries the exit code that the process ends with and a
// sentence for the person who started it: what is wrong, where, and what was expected.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace motley {

// Exit codes that job scripts act on (docs/command-line.md lists them for users).
enum class ExitCode : int {
  done = 0,
  usage = 2,
  input = 3,
  checkpoint = 4,
  communication = 5,
  device = 6,
  internal = 70,
  stopped = 75,
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

// A device has no more memory: what was begun can be begun again with less of it.
class OutOfMemory : public Error {
 public:
  explicit OutOfMemory(const std::string& sentence) : Error(ExitCode::device, sentence) {}
};

// An error that every rank of the run knows of and throws at the same point (see comm/agree.h). Rank 0 alone
// prints it; an Error that is not agreed ends the whole job by MPI_Abort instead.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// Throws Error with a formatted sentence.
template <class... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// For conditions that only a bug in this program can break; throws Error(internal) naming the place.
[[noreturn]] void fail_internal(const char* condition, const char* file, int line);

}  // namespace motley

#define MOTLEY_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::motley::fail_internal(#condition, __FILE__, __LINE__))
