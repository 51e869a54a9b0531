// Dropout whose mask is recomputed from counted random numbers wherever it is needed and never stored.
#include "kernels/checks.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/random.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

constexpr std::int64_t block_words =
    64 * random_group_words;  // elements of a row that one thread takes at a time

template <class T>
void drop_elements(int threads, const DropoutMask& mask, const DropRule& rule, std::int64_t rows,
                   std::int64_t row_elements, const T* in, T* out) {
  const std::int64_t blocks = ceil_div(row_elements, block_words);
  parallel_for(threads, rows * blocks, [&](std::int64_t index) {
    const std::int64_t row = index / blocks;
    const auto slot = mask.first_slot + static_cast<std::uint32_t>(row);
    const std::int64_t begin = index % blocks * block_words,
                       end = std::min(row_elements, begin + block_words);
    for (std::int64_t e = begin; e < end; e += random_group_words) {
      std::uint32_t words[random_group_words];
      random_words(mask.key, slot, static_cast<std::uint32_t>(e / 4), words);
      const T* from = in + row * row_elements + e;
      T* to = out + row * row_elements + e;
      const auto count = static_cast<int>(std::min<std::int64_t>(random_group_words, end - e));
#pragma omp simd
      for (int i = 0; i < count; ++i) to[i] = from_float<T>(rule(words[i], to_float(from[i])));
    }
  });
}

template <class T>
void drop_channels(int threads, const DropoutMask& mask, const DropRule& rule, const Shape& shape,
                   const T* in, T* out) {
  const std::int64_t rows = shape[0], pixels = shape[1] * shape[2], channels = shape[3];
  const std::int64_t groups = ceil_div(channels, random_group_words);
  parallel_for(threads, rows * groups, [&](std::int64_t index) {
    const std::int64_t row = index / groups, first = index % groups * random_group_words;
    std::uint32_t words[random_group_words];
    random_words(mask.key, mask.first_slot + static_cast<std::uint32_t>(row),
                 static_cast<std::uint32_t>(first / 4), words);
    const auto count = static_cast<int>(std::min<std::int64_t>(random_group_words, channels - first));
    for (std::int64_t p = 0; p < pixels; ++p) {
      const std::int64_t at = (row * pixels + p) * channels + first;
#pragma omp simd
      for (int c = 0; c < count; ++c) out[at + c] = from_float<T>(rule(words[c], to_float(in[at + c])));
    }
  });
}

}  // namespace

void CpuBackend::dropout(const DropoutMask& mask, ConstView x, View y) {
  constexpr auto name = "dropout";
  check_view(name, "y", y, x.dtype, x.shape);
  MOTLEY_CHECK(x.shape.rank() >= 1);
  const DropRule rule = drop_rule(name, mask);
  with_element_type(name, "x", x, [&](auto type) {
    using T = decltype(type);
    check_dtype(name, "x", x, x.dtype);
    if (x.elements() == 0) return;
    drop_elements(threads(), mask, rule, x.shape[0], x.shape.elements_from(1), x.as<T>(), y.as<T>());
  });
}

void CpuBackend::dropout_channels(const DropoutMask& mask, ConstView x, View y) {
  constexpr auto name = "dropout_channels";
  check_dropout_channels(name, x, y);
  const DropRule rule = drop_rule(name, mask);
  with_element_type(name, "x", x, [&](auto type) {
    using T = decltype(type);
    drop_channels(threads(), mask, rule, x.shape, x.as<T>(), y.as<T>());
  });
}

}  // namespace motley
