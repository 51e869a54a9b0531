// Activations, their gradients, and sums with an activation: one pass each.
#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

template <class F>
struct Backward {
  __device__ float operator()(std::int64_t, float x, float dy) const { return dy * F::derivative(x); }
};

struct ReluBackward {
  __device__ float operator()(std::int64_t, float y, float dy) const { return y > 0.0f ? dy : 0.0f; }
};

template <class F>
struct Add {
  __device__ float operator()(std::int64_t, float a, float b) const { return F::value(a + b); }
};

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::relu_forward(ConstView x, View y) {
  constexpr auto name = "relu_forward";
  check_relu_forward(name, x, y);
  cuda::with_element_type(name, "x", x.dtype, [&](auto type) {
    using T = decltype(type);
    cuda::elementwise(name, *this, x.elements(), cuda::Activate<cuda::Relu>{}, y.as<T>(), x.as<T>());
  });
}

void CudaBackend::relu_backward(ConstView y, ConstView dy, View dx) {
  constexpr auto name = "relu_backward";
  check_relu_backward(name, y, dy, dx);
  cuda::with_element_type(name, "dy", dy.dtype, [&](auto type) {
    using T = decltype(type);
    cuda::elementwise(name, *this, y.elements(), ReluBackward{}, dx.as<T>(), y.as<T>(), dy.as<T>());
  });
}

void CudaBackend::activation_forward(Activation activation, ConstView x, View y) {
  constexpr auto name = "activation_forward";
  check_activation_forward(name, x, y);
  cuda::with_element_type(name, "x", x.dtype, [&](auto type) {
    using T = decltype(type);
    cuda::with_activation(name, activation, [&](auto function) {
      cuda::elementwise(name, *this, x.elements(), cuda::Activate<decltype(function)>{}, y.as<T>(),
                        x.as<T>());
    });
  });
}

void CudaBackend::activation_backward(Activation activation, ConstView preactivation, ConstView dy, View dx) {
  constexpr auto name = "activation_backward";
  check_activation_backward(name, preactivation, dy, dx);
  cuda::with_element_type(name, "dy", dy.dtype, [&](auto type) {
    using T = decltype(type);
    cuda::with_activation(name, activation, [&](auto function) {
      cuda::elementwise(name, *this, dy.elements(), Backward<decltype(function)>{}, dx.as<T>(),
                        preactivation.as<T>(), dy.as<T>());
    });
  });
}

void CudaBackend::add(ConstView a, ConstView b, Activation activation, View y) {
  constexpr auto name = "add";
  check_add(name, a, b, activation, y);
  cuda::with_element_type(name, "a", a.dtype, [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto function) {
      cuda::elementwise(name, *this, a.elements(), Add<decltype(function)>{}, y.as<T>(), a.as<T>(),
                        b.as<T>());
    };
    activation == Activation::relu ? run(cuda::Relu{}) : run(cuda::Identity{});
  });
}

}  // namespace motley
