// The rule by which counted random numbers drop elements, the same on every device.
#pragma once

#include <cstdint>

#include "core/error.h"
#include "core/philox.h"
#include "kernels/backend.h"

namespace motley {

struct DropRule {
  std::uint32_t threshold;  // a smaller random number drops the element
  float factor;             // of those that are kept

  MOTLEY_HOST_DEVICE float operator()(std::uint32_t word, float x) const { return word < threshold ? 0.0f : x * factor; }
};

inline DropRule drop_rule(const char* operation, const DropoutMask& mask) {
  if (!(mask.probability >= 0 && mask.probability < 1)) {
    fail(ExitCode::internal, "{}: the probability is {}, but it must be at least 0 and below 1", operation,
         mask.probability);
  }
  return {drop_threshold(mask.probability), static_cast<float>(1.0 / (1.0 - mask.probability))};
}

}  // namespace motley
