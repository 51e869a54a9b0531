// Dropout whose mask is recomputed from counted random numbers wherever it is needed and never stored.
#include "core/philox.h"
#include "kernels/cpu/checks.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"

namespace motley {
namespace {

constexpr int group = 16;               // Philox calls made side by side: one vector register of 32-bit lanes
constexpr int group_words = 4 * group;  // random numbers they give
constexpr std::int64_t block_words = 64 * group_words;  // elements of a row that one thread takes at a time

// words[i] = random_u32(key, slot, 4 * first_block + i) for i in [0, group_words).
inline void random_words(const RandomKey& key, std::uint32_t slot, std::uint32_t first_block,
                         std::uint32_t* words) {
#pragma omp simd
  for (int i = 0; i < group; ++i) {
    const Philox4 r = random_block(key, slot, first_block + static_cast<std::uint32_t>(i));
    words[4 * i] = r.x;
    words[4 * i + 1] = r.y;
    words[4 * i + 2] = r.z;
    words[4 * i + 3] = r.w;
  }
}

struct Rule {
  std::uint32_t threshold;  // a smaller random number drops the element
  float factor;             // of those that are kept
};

Rule rule_of(const char* operation, const DropoutMask& mask) {
  if (!(mask.probability >= 0 && mask.probability < 1)) {
    fail(ExitCode::internal, "{}: the probability is {}, but it must be at least 0 and below 1", operation,
         mask.probability);
  }
  return {drop_threshold(mask.probability), static_cast<float>(1.0 / (1.0 - mask.probability))};
}

}  // namespace

void CpuBackend::dropout(const DropoutMask& mask, ConstView x, View y) {
  constexpr auto name = "dropout";
  check_dtype(name, "x", x, DType::f32);
  check_view(name, "y", y, DType::f32, x.shape);
  MOTLEY_CHECK(x.shape.rank() >= 1);
  const Rule rule = rule_of(name, mask);
  const std::int64_t rows = x.shape[0], row_elements = x.shape.elements_from(1);
  if (x.elements() == 0) return;
  const std::int64_t blocks = ceil_div(row_elements, block_words);
  const float* in = x.as<float>();
  float* out = y.as<float>();
  parallel_for(threads(), rows * blocks, [&](std::int64_t index) {
    const std::int64_t row = index / blocks;
    const auto slot = mask.first_slot + static_cast<std::uint32_t>(row);
    const std::int64_t begin = index % blocks * block_words,
                       end = std::min(row_elements, begin + block_words);
    for (std::int64_t e = begin; e < end; e += group_words) {
      std::uint32_t words[group_words];
      random_words(mask.key, slot, static_cast<std::uint32_t>(e / 4), words);
      const float* from = in + row * row_elements + e;
      float* to = out + row * row_elements + e;
      const auto count = static_cast<int>(std::min<std::int64_t>(group_words, end - e));
#pragma omp simd
      for (int i = 0; i < count; ++i) to[i] = words[i] < rule.threshold ? 0.0f : from[i] * rule.factor;
    }
  });
}

void CpuBackend::dropout_channels(const DropoutMask& mask, ConstView x, View y) {
  constexpr auto name = "dropout_channels";
  check_rank(name, "x", x, DType::f32, 4);
  check_view(name, "y", y, DType::f32, x.shape);
  const Rule rule = rule_of(name, mask);
  const std::int64_t rows = x.shape[0], pixels = x.shape[1] * x.shape[2], channels = x.shape[3];
  const std::int64_t groups = ceil_div(channels, group_words);
  const float* in = x.as<float>();
  float* out = y.as<float>();
  parallel_for(threads(), rows * groups, [&](std::int64_t index) {
    const std::int64_t row = index / groups, first = index % groups * group_words;
    std::uint32_t words[group_words];
    random_words(mask.key, mask.first_slot + static_cast<std::uint32_t>(row),
                 static_cast<std::uint32_t>(first / 4), words);
    const auto count = static_cast<int>(std::min<std::int64_t>(group_words, channels - first));
    for (std::int64_t p = 0; p < pixels; ++p) {
      const std::int64_t at = (row * pixels + p) * channels + first;
#pragma omp simd
      for (int c = 0; c < count; ++c)
        out[at + c] = words[c] < rule.threshold ? 0.0f : in[at + c] * rule.factor;
    }
  });
}

}  // namespace motley
