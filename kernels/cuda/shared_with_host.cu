// Counted randomness on the device, compiled so that it stays valid device code: the mask of a dropout must be
// the same on every kind of device (law 3).
#include "core/philox.h"

namespace motley {

static_assert(philox4x32_10({0, 0, 0, 0}, 0, 0).x == 0x6627e8d5u);

__global__ void random_words(RandomKey key, std::uint32_t slot, std::uint32_t elements, std::uint32_t* out) {
  const std::uint32_t element = blockIdx.x * blockDim.x + threadIdx.x;
  if (element < elements) out[element] = random_u32(key, slot, element);
}

}  // namespace motley
