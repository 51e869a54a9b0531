// Activations, their gradients, and sums with an activation: one pass each.
#include "kernels/cpu/activations.h"

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

void activate(const char* name, int threads, Activation activation, const ConstView& x, const View& y) {
  with_element_type(name, "x", x, [&](auto type) {
    using T = decltype(type);
    const T* inputs = x.as<T>();
    T* results = y.as<T>();
    with_activation(name, activation, [&](auto function) {
      parallel_blocks(threads, x.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i)
          results[i] = from_float<T>(function.value(to_float(inputs[i])));
      });
    });
  });
}

}  // namespace

void CpuBackend::relu_forward(ConstView x, View y) {
  constexpr auto name = "relu_forward";
  check_relu_forward(name, x, y);
  activate(name, threads(), Activation::relu, x, y);
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

void CpuBackend::activation_forward(Activation activation, ConstView x, View y) {
  constexpr auto name = "activation_forward";
  check_activation_forward(name, x, y);
  activate(name, threads(), activation, x, y);
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
