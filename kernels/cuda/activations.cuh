// The activations and their derivatives, in float32. gelu is x Phi(x) with the distribution function of the
// normal distribution, not its approximation by tanh.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/device.cuh"

namespace motley::cuda {

// Phi(x), without the cancellation that 1 + erf has for negative x.
__device__ inline float normal_distribution(float x) {
  return 0.5f * erfcf(-0.70710678118654752f * x);
}

struct Identity {
  __device__ static float value(float x) { return x; }
  __device__ static float derivative(float) { return 1.0f; }
};
struct Relu {
  __device__ static float value(float x) { return x < 0.0f ? 0.0f : x; }  // NaN stays NaN
  __device__ static float derivative(float x) { return x > 0.0f ? 1.0f : 0.0f; }
};
struct Gelu {
  __device__ static float value(float x) { return x * normal_distribution(x); }
  // Distribution and density by one exponential: erfcf would form it a second time. The fit is the CPU's
  // (kernels/cpu/activations.h).
  __device__ static float derivative(float x) {
    const float bell = expf(-0.5f * x * x);
    const float t = 1.0f / (1.0f + 0.21f * fabsf(x));
    float p = -0.07219003457f;
    p = p * t + 0.286224268f;
    p = p * t - 0.3358184778f;
    p = p * t + 0.3559539586f;
    p = p * t - 0.0986255936f;
    p = p * t + 0.1269732825f;
    p = p * t + 0.06862163236f;
    p = p * t + 0.08515490179f;
    p = p * t + 0.0837060619f;
    const float tail = bell * t * p;
    return (x > 0.0f ? 1.0f - tail : tail) + x * bell * 0.3989422804f;
  }
};
struct Swish {
  __device__ static float value(float x) { return x / (1.0f + expf(-x)); }
  __device__ static float derivative(float x) {
    const float s = 1.0f / (1.0f + expf(-x));
    return s + x * s * (1.0f - s);
  }
};
struct Tanh {
  __device__ static float value(float x) { return tanhf(x); }
  __device__ static float derivative(float x) {
    const float e = expf(-2.0f * fabsf(x));  // 1 - tanh^2 would cancel
    return 4.0f * e / ((1.0f + e) * (1.0f + e));
  }
};

struct Sigmoid {
  __device__ static float value(float x) { return 1.0f / (1.0f + expf(-x)); }
  __device__ static float derivative(float x) {
    const float e = expf(-fabsf(x));  // 1 - sigmoid would cancel
    return e / ((1.0f + e) * (1.0f + e));
  }
};

// For elementwise().
template <class Function>
struct Activate {
  __device__ float operator()(std::int64_t, float x) const { return Function::value(x); }
};

// body(Relu{}) and so on.
template <class Body>
void with_activation(const char* operation, Activation activation, Body body) {
  switch (activation) {
    case Activation::none:
      return body(Identity{});
    case Activation::relu:
      return body(Relu{});
    case Activation::gelu:
      return body(Gelu{});
    case Activation::swish:
      return body(Swish{});
    case Activation::tanh:
      return body(Tanh{});
    case Activation::sigmoid:
      return body(Sigmoid{});
  }
  fail(ExitCode::internal, "{}: there is no activation {}", operation, static_cast<int>(activation));
}

}  // namespace motley::cuda
