// One pass over flat arrays each.
#include "kernels/cpu/activations.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {

void CpuBackend::relu_forward(ConstView x, View y) {
  check_relu_forward("relu_forward", x, y);
  activation_forward(Activation::relu, x, y);
}

void CpuBackend::relu_backward(ConstView y, ConstView dy, View dx) {
  constexpr auto name = "relu_backward";
  check_relu_backward(name, y, dy, dx);
  with_element_type(name, "dy", dy, [&](auto type) {
    using T = decltype(type);
    const T* output = y.as<T>();
    const T* gradient = dy.as<T>();
    T* result = dx.as<T>();
    parallel_blocks(threads(), y.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        // Loaded on either side of the condition, or the loop is not vectorised.
        const float passed = to_float(gradient[i]);
        result[i] = from_float<T>(to_float(output[i]) > 0.0f ? passed : 0.0f);
      }
    });
  });
}

void CpuBackend::add(ConstView a, ConstView b, Activation activation, View y) {
  constexpr auto name = "add";
  check_add(name, a, b, activation, y);
  with_element_type(name, "a", a, [&](auto type) {
    using T = decltype(type);
    const T* first = a.as<T>();
    const T* second = b.as<T>();
    T* sum = y.as<T>();
    with_activation(name, activation, [&](auto function) {
      parallel_blocks(threads(), a.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i)
          sum[i] = from_float<T>(function.value(to_float(first[i]) + to_float(second[i])));
      });
    });
  });
}

}  // namespace motley
