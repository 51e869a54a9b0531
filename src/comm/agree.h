// All ranks agree that they are failing (law 8).
#pragma once

#include <functional>

#include "comm/communicator.h"

namespace motley::comm {

// Runs `work` on this rank, then lets all ranks compare notes. If it threw anywhere, every rank throws
// AgreedError with the code and sentence of the lowest rank that failed ("on rank 2 (host b): ..." unless all
// ranks failed with the same code and sentence). An exception that is not an Error counts as
// ExitCode::internal with its text. `what` names the work for the case that a rank never comes to compare
// notes. Collective: every rank must call it, and `work` itself must not communicate.
void agree(const Communicator& world, const char* what, const std::function<void()>& work);

// The same for work that only rank 0 does, such as reading a file's header. Its sentence stands alone: that
// it was rank 0 who looked explains nothing.
void agree_on_root(const Communicator& world, const char* what, const std::function<void()>& work);

}  // namespace motley::comm
