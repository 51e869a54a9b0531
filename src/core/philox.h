// Counted randomness (law 3): every random number of a run is Philox4x32-10 of (seed, purpose, step or epoch,
// slot in the global batch, element). Nothing carries state from one step to the next, so a number does not
// depend on which rank draws it, nor on what was drawn before.
//
// Philox: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
#pragma once

#include <array>
#include <cstdint>

// Functions that the CUDA kernels share with the host.
#if defined(__CUDACC__)
#define MOTLEY_HOST_DEVICE __host__ __device__
#else
#define MOTLEY_HOST_DEVICE
#endif

namespace motley {

struct Philox4 {
  std::uint32_t x, y, z, w;
};

// Ten rounds of Philox4x32 on a 128-bit counter under a 64-bit key.
MOTLEY_HOST_DEVICE constexpr Philox4 philox4x32_10(Philox4 counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter.x;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter.z;
    counter = {
        static_cast<std::uint32_t>(product1 >> 32) ^ counter.y ^ key0, static_cast<std::uint32_t>(product1),
        static_cast<std::uint32_t>(product0 >> 32) ^ counter.w ^ key1, static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// What a random number is for. The low 8 bits of the purpose word; the upper 24 carry an index (which layer,
// which parameter), so that two dropouts of one network draw different masks.
enum class Purpose : std::uint8_t {
  initialization = 1,
  dropout = 2,
  shuffle = 3,
  augmentation = 4,
  delay = 5,
  masking = 6,
  sentence_pairs = 7,
  noise = 8,
  synthesis = 9
};

// A stream of counted random numbers: everything but slot and element fixed.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint32_t purpose = 0;
  std::uint32_t time = 0;  // step or epoch

  RandomKey() = default;
  MOTLEY_HOST_DEVICE constexpr RandomKey(std::uint64_t seed_, Purpose kind, std::uint32_t index,
                                         std::uint32_t time_)
      : seed(seed_), purpose(static_cast<std::uint32_t>(kind) | (index << 8)), time(time_) {}
};

// The four numbers for elements 4*block .. 4*block+3 of `slot`.
MOTLEY_HOST_DEVICE constexpr Philox4 random_block(const RandomKey& key, std::uint32_t slot,
                                                  std::uint32_t block) {
  return philox4x32_10({block, slot, key.time, key.purpose}, static_cast<std::uint32_t>(key.seed),
                       static_cast<std::uint32_t>(key.seed >> 32));
}

// The number of one element of one slot.
MOTLEY_HOST_DEVICE constexpr std::uint32_t random_u32(const RandomKey& key, std::uint32_t slot,
                                                      std::uint32_t element) {
  const Philox4 block = random_block(key, slot, element / 4);
  switch (element % 4) {
    case 0:
      return block.x;
    case 1:
      return block.y;
    case 2:
      return block.z;
    default:
      return block.w;
  }
}

// Uniform in [0, 1) with 24 random bits: every value is exact in float32.
MOTLEY_HOST_DEVICE constexpr float to_unit_float(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * (1.0f / 16777216.0f);
}

// An element is dropped when its random word is below this: p = 0 keeps all, p = 1 would drop all but is not
// representable and is refused by the layers.
MOTLEY_HOST_DEVICE constexpr std::uint32_t drop_threshold(double probability) {
  return static_cast<std::uint32_t>(probability * 4294967296.0);
}

}  // namespace motley
