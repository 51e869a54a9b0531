// What tests ask the stand-in of cuDNN.
#pragma once

#include <string>
#include <vector>

namespace motley::sim {

// The algorithms of all convolutions since the last call, as "forward 1 nhwc" with cuDNN's number, and
// " f16" or " bf16" behind it where tensors were of that type.
std::vector<std::string> take_convolutions();

}  // namespace motley::sim
