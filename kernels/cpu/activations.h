// The activations and their derivatives for vectorised loops. gelu is x Phi(x) with the distribution
// function of the normal distribution, not its approximation by tanh.
#pragma once

#include <cmath>

#include "kernels/backend.h"
#include "kernels/checks.h"
#include "kernels/cpu/exp.h"

namespace motley {

struct Normal {
  float density, distribution;
};

// Phi(-|x|) = exp(-x^2 / 2) times the scaled complementary error function, which is t p(t) with t = 1 / (1
// + 0.21 |x|): a minimax fit of p on |x| <= 13.3, beyond which the exponential is 0, with relative error
// 1.3e-8.
inline Normal normal(float x) {
  const float bell = vector_exp(-0.5f * x * x);
  const float t = 1.0f / (1.0f + 0.21f * std::abs(x));
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
  return {bell * 0.3989422804f, x > 0.0f ? 1.0f - tail : tail};
}

inline float sigmoid(float x) {
  return 1.0f / (1.0f + vector_exp(-x));
}

// Near zero by a minimax fit, since the difference from 1 loses its digits there.
inline float vector_tanh(float x) {
  const float square = x * x;
  float p = -0.0057049676f;
  p = p * square + 0.02063906814f;
  p = p * square - 0.05373970851f;
  p = p * square + 0.1333144211f;
  p = p * square - 0.3333328194f;
  p = p * square;
  const float near = x + x * p;
  const float far = 1.0f - 2.0f / (1.0f + vector_exp(2.0f * x));
  return std::abs(x) < 0.625f ? near : far;
}

struct Identity {
  static float value(float x) { return x; }
  static float derivative(float) { return 1.0f; }
};
struct Relu {
  static float value(float x) { return x < 0.0f ? 0.0f : x; }  // NaN stays NaN
  static float derivative(float x) { return x > 0.0f ? 1.0f : 0.0f; }
};
struct Gelu {
  static float value(float x) { return x * normal(x).distribution; }
  static float derivative(float x) {
    const Normal n = normal(x);
    return n.distribution + x * n.density;
  }
};
struct Swish {
  static float value(float x) { return x * sigmoid(x); }
  static float derivative(float x) {
    const float s = sigmoid(x);
    return s + x * s * (1.0f - s);
  }
};
struct Tanh {
  static float value(float x) { return vector_tanh(x); }
  static float derivative(float x) {
    const float e = vector_exp(-2.0f * std::abs(x));  // 1 - tanh^2 would cancel
    return 4.0f * e / ((1.0f + e) * (1.0f + e));
  }
};

struct Sigmoid {
  static float value(float x) { return sigmoid(x); }
  static float derivative(float x) {
    const float e = vector_exp(-std::abs(x));  // 1 - sigmoid would cancel
    return e / ((1.0f + e) * (1.0f + e));
  }
};

// body(Relu{}) and so on.
template <class Body>
void with_activation(const char* operation, Activation activation, const Body& body) {
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

}  // namespace motley
