#include "kernels/cpu/activations.h"

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {

void CpuBackend::activation_forward(Activation activation, ConstView x, View y) {
  constexpr auto name = "activation_forward";
  check_activation_forward(name, x, y);
  with_element_type(name, "x", x, [&](auto type) {
    using T = decltype(type);
    const T* inputs = x.as<T>();
    T* results = y.as<T>();
    with_activation(name, activation, [&](auto function) {
      parallel_blocks(threads(), x.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i)
          results[i] = from_float<T>(function.value(to_float(inputs[i])));
      });
    });
  });
}

void CpuBackend::activation_backward(Activation activation, ConstView preactivation, ConstView dy, View dx) {
  constexpr auto name = "activation_backward";
  check_activation_backward(name, preactivation, dy, dx);
  with_element_type(name, "dy", dy, [&](auto type) {
    using T = decltype(type);
    const T* inputs = preactivation.as<T>();
    const T* gradients = dy.as<T>();
    T* results = dx.as<T>();
    with_activation(name, activation, [&](auto function) {
      parallel_blocks(threads(), dy.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) {
          results[i] = from_float<T>(to_float(gradients[i]) * function.derivative(to_float(inputs[i])));
        }
      });
    });
  });
}

}  // namespace motley
