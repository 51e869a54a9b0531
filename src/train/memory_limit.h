// --memory-limit RANK:BYTES[@STEP][,...]: ranks that pretend to have less memory than they have, so that
// ranks of one machine behave like machines of several sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "kernels/backend.h"

namespace motley::train {

// All that is said of one rank.
struct MemoryLimits {
  struct Part {
    std::int64_t first_step = 1;  // steps count from 1
    std::size_t bytes = 0;
  };
  std::vector<Part> parts;  // by first step, each of which is there once

  // What holds in `step`; nothing where nothing is said.
  std::optional<std::size_t> bytes(std::int64_t step) const;
  bool empty() const { return parts.empty(); }
};

// Parses the limits of each rank out of, for example, "1:600M,2:2G@100,2:1.5G@200": K, M, G and T are powers
// of 1024; @STEP is the step from which on a limit holds, otherwise it does from the start. A rank may be
// named several times with different steps. Throws Error(usage) for a rank that does not exist, a rank and
// step that are named twice, no bytes at all, or any other form.
std::vector<MemoryLimits> parse_memory_limit(const std::string& text, int ranks);

// What `text`, which has been checked, says of this rank; the limit that holds from the start is set.
MemoryLimits begin_with_memory_limit(const std::string& text, const comm::Communicator& world,
                                     Backend& backend);

// For commands that have no steps: Error(usage) when `text`, which parse_memory_limit() takes, names one.
void refuse_limit_steps(const std::string& text);

}  // namespace motley::train
