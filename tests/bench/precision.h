// How the benches of training steps are told a precision.
#pragma once

#include <string>

#include "core/dtype.h"
#include "core/error.h"

namespace motley::bench {

// "fp32", "bf16" or "fp16".
inline DType type_of_precision(const std::string& precision) {
  if (precision == "bf16") return DType::bf16;
  if (precision == "fp16") return DType::f16;
  if (precision != "fp32")
    fail(ExitCode::usage, "there is no precision {}: expected fp32, bf16 or fp16", precision);
  return DType::f32;
}

}  // namespace motley::bench
