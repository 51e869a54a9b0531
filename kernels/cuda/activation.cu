// relu and the gradients of all activations: one pass each.
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

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::relu_forward(ConstView x, View y) {
  constexpr auto name = "relu_forward";
  check_relu_forward(name, x, y);
  cuda::elementwise(name, *this, x.elements(), cuda::Activate<cuda::Relu>{}, y.as<float>(), x.as<float>());
}

void CudaBackend::relu_backward(ConstView y, ConstView dy, View dx) {
  constexpr auto name = "relu_backward";
  check_relu_backward(name, y, dy, dx);
  cuda::elementwise(name, *this, y.elements(), ReluBackward{}, dx.as<float>(), y.as<float>(), dy.as<float>());
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

}  // namespace motley
