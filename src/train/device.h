// The device of this rank.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "kernels/backend.h"

namespace motley::train {

// The backend that --device asks for, with `threads` threads on a CPU, or, when that is 0, this rank's part
// of the processors that it may use. All ranks of a host have equal parts of its memory as their limits.
// Collective; AgreedError(device) when it cannot be had.
std::unique_ptr<Backend> make_backend(const std::string& device, int threads,
                                      const comm::Communicator& world);

}  // namespace motley::train
