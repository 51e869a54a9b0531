// Rows of tables: looked up, gathered, and their gradients summed.
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

constexpr std::int64_t column_block = 64;

// Sources of one group, added in order in float64, a block of columns at a time.
template <class From, class To>
void add_sources(const From* dy, const std::int32_t* sources, std::int64_t count, std::int64_t width,
                 std::int64_t columns, To* out) {
  double sum[column_block] = {};
  for (std::int64_t s = 0; s < count; ++s) {
    const From* row = dy + sources[s] * width;
#pragma omp simd
    for (int c = 0; c < static_cast<int>(columns); ++c) sum[c] += static_cast<double>(to_float(row[c]));
  }
#pragma omp simd
  for (int c = 0; c < static_cast<int>(columns); ++c) {
    out[c] = from_float<To>(to_float(out[c]) + static_cast<float>(sum[c]));
  }
}

}  // namespace

void CpuBackend::embedding_forward(ConstView word, ConstView position, ConstView type, ConstView ids,
                                   ConstView types, View y) {
  constexpr auto name = "embedding_forward";
  const auto [n, seq, width] = check_embedding_forward(name, word, position, type, ids, types, y);
  const float* words = word.as<float>();
  const float* positions = position.as<float>();
  const float* kinds = type.as<float>();
  const std::int32_t* id = ids.as<std::int32_t>();
  const std::int32_t* kind = types.as<std::int32_t>();
  with_element_type(name, "y", y, [&](auto tag) {
    using T = decltype(tag);
    T* out = y.as<T>();
    parallel_for(threads(), n * seq, [&](std::int64_t token) {
      const float* a = words + id[token] * width;
      const float* b = positions + token % seq * width;
      const float* c = kinds + kind[token] * width;
      T* to = out + token * width;
#pragma omp simd
      for (std::int64_t i = 0; i < width; ++i) to[i] = from_float<T>(a[i] + b[i] + c[i]);
    });
  });
}

void CpuBackend::gather_rows(ConstView x, ConstView index, View y) {
  constexpr auto name = "gather_rows";
  check_gather_rows(name, x, index, y);
  const std::int64_t m = index.shape[0], width = x.shape[1];
  const std::int32_t* from = index.as<std::int32_t>();
  with_element_type(name, "x", x, [&](auto tag) {
    using T = decltype(tag);
    const T* in = x.as<T>();
    T* out = y.as<T>();
    parallel_for(threads(), m,
                 [&](std::int64_t i) { std::copy_n(in + from[i] * width, width, out + i * width); });
  });
}

void CpuBackend::scatter_add_rows(const RowGroups& groups, ConstView dy, View x) {
  constexpr auto name = "scatter_add_rows";
  check_scatter_add_rows(name, groups, dy, x);
  const std::int64_t count = groups.rows.shape[0], width = dy.shape[1];
  const std::int32_t* rows = groups.rows.as<std::int32_t>();
  const std::int32_t* starts = groups.starts.as<std::int32_t>();
  const std::int32_t* sources = groups.sources.as<std::int32_t>();
  // Columns are divided too: a table of two rows has two groups, which may be long.
  const std::int64_t blocks = ceil_div(width, column_block);
  with_element_type(name, "dy", dy, [&](auto from_tag) {
    with_element_type(name, "x", x, [&](auto to_tag) {
      using From = decltype(from_tag);
      using To = decltype(to_tag);
      const From* in = dy.as<From>();
      To* out = x.as<To>();
      parallel_for(threads(), count * blocks, [&](std::int64_t index) {
        const std::int64_t group = index / blocks, column = index % blocks * column_block;
        add_sources(in + column, sources + starts[group], starts[group + 1] - starts[group], width,
                    std::min(column_block, width - column), out + rows[group] * width + column);
      });
    });
  });
}

}  // namespace motley
