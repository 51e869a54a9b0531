#include "comm/agree.h"

#include <array>
#include <exception>
#include <optional>
#include <string>

#include "core/error.h"

namespace motley::comm {
namespace {

struct Failure {
  int code;
  std::string sentence;
  bool operator==(const Failure&) const = default;
};

std::optional<Failure> failure_of(const std::function<void()>& work) {
  constexpr int internal = static_cast<int>(ExitCode::internal);
  try {
    work();
    return std::nullopt;
  } catch (const Error& error) {
    return Failure{static_cast<int>(error.code()), error.what()};
  } catch (const std::exception& error) {
    return Failure{internal, error.what()};
  } catch (...) {
    return Failure{internal, "something was thrown that is not an exception"};
  }
}

[[noreturn]] void throw_agreed(const Failure& failure, const std::string& prefix) {
  throw AgreedError(static_cast<ExitCode>(failure.code), prefix + failure.sentence);
}

}  // namespace

void agree(const Communicator& world, const char* what, const std::function<void()>& work) {
  const std::optional<Failure> mine = failure_of(work);

  // The largest of (size - rank) over the ranks that failed is that of the lowest.
  std::array<double, 1> votes{mine ? static_cast<double>(world.size() - world.rank()) : 0.0};
  world.all_reduce_max(votes, what);
  if (votes[0] == 0) return;
  const int lowest = world.size() - static_cast<int>(votes[0]);

  const bool speaker = world.rank() == lowest;
  Failure agreed;
  agreed.code = std::stoi(world.broadcast(speaker ? std::to_string(mine->code) : "", lowest, what));
  agreed.sentence = world.broadcast(speaker ? mine->sentence : "", lowest, what);
  const std::string host = world.broadcast(world.host(), lowest, what);

  std::array<double, 1> differs{mine == agreed ? 0.0 : 1.0};
  world.all_reduce_max(differs, what);
  throw_agreed(agreed, differs[0] == 0 ? "" : fmt::format("on rank {} (host {}): ", lowest, host));
}

void agree_on_root(const Communicator& world, const char* what, const std::function<void()>& work) {
  std::optional<Failure> failure;
  if (world.rank() == 0) failure = failure_of(work);
  const std::string code = world.broadcast(failure ? std::to_string(failure->code) : "", 0, what);
  if (code.empty()) return;
  const std::string sentence = world.broadcast(failure ? failure->sentence : "", 0, what);
  throw_agreed({std::stoi(code), sentence}, "");
}

}  // namespace motley::comm
