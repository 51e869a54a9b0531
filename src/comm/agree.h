// All ranks agree that they are failing (law 8).
#pragma once

#include <functional>

#include "comm/communicator.h"

namespace motley::comm {

// Runs `work` on this rank, then lets all ranks compare notes. If it threw an Error anywhere, every rank
// throws AgreedError with the code and sentence of the lowest rank that failed ("on rank 2 (host b): ..."
// unless it failed with the same sentence on all ranks). Collective: every rank must call it, and `work`
// itself must not communicate.
void agree(const Communicator& world, const char* what, const std::function<void()>& work);

// The same for work that only rank 0 does, such as reading a file's header.
void agree_on_root(const Communicator& world, const char* what, const std::function<void()>& work);

}  // namespace motley::comm
