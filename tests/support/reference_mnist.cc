#include "support/reference_mnist.h"

#include <algorithm>
#include <cmath>

#include "core/philox.h"

namespace motley::test {
namespace {

using Vector = std::vector<double>;

// y[out][oh][ow] = relu(b + sum x * w), valid 3x3 convolution; x [in][size][size].
Vector convolve(const Vector& x, const Vector& w, const Vector& b, int in, int out, int size) {
  const int o = size - 2;
  Vector y(static_cast<std::size_t>(out * o * o));
  for (int k = 0; k < out; ++k) {
    for (int c = 0; c < in; ++c) {
      for (int i = 0; i < 9; ++i) {
        const double weight = w[static_cast<std::size_t>((k * in + c) * 9 + i)];
        for (int r = 0; r < o; ++r) {
          const double* from = &x[static_cast<std::size_t>((c * size + r + i / 3) * size + i % 3)];
          double* to = &y[static_cast<std::size_t>((k * o + r) * o)];
          for (int s = 0; s < o; ++s) to[s] += weight * from[s];
        }
      }
    }
    for (int p = 0; p < o * o; ++p) {
      double& value = y[static_cast<std::size_t>(k * o * o + p)];
      value = std::max(0.0, value + b[static_cast<std::size_t>(k)]);
    }
  }
  return y;
}

// Adds to dw and db; fills dx unless it is empty. dy is the gradient before the ReLU.
void convolve_backward(const Vector& x, const Vector& w, const Vector& dy, int in, int out, int size,
                       Vector& dw, Vector& db, Vector& dx) {
  const int o = size - 2;
  for (int k = 0; k < out; ++k) {
    for (int p = 0; p < o * o; ++p)
      db[static_cast<std::size_t>(k)] += dy[static_cast<std::size_t>(k * o * o + p)];
    for (int c = 0; c < in; ++c) {
      for (int i = 0; i < 9; ++i) {
        const auto index = static_cast<std::size_t>((k * in + c) * 9 + i);
        double sum = 0;
        for (int r = 0; r < o; ++r) {
          const auto at = static_cast<std::size_t>((c * size + r + i / 3) * size + i % 3);
          const double* gradient = &dy[static_cast<std::size_t>((k * o + r) * o)];
          for (int s = 0; s < o; ++s) sum += gradient[s] * x[at + static_cast<std::size_t>(s)];
          if (dx.empty()) continue;
          for (int s = 0; s < o; ++s) dx[at + static_cast<std::size_t>(s)] += gradient[s] * w[index];
        }
        dw[index] += sum;
      }
    }
  }
}

double kept(const ReferenceBatch& batch, std::uint32_t index, double probability, std::uint32_t row,
            std::uint32_t element) {
  if (!batch.dropout) return 1;
  const RandomKey key(batch.seed, Purpose::dropout, index, batch.step);
  const std::uint32_t word = random_u32(key, batch.first_slot + row, element);
  return word >= static_cast<std::uint32_t>(probability * 4294967296.0) ? 1 / (1 - probability) : 0;
}

void one_sample(const ReferenceParameters& p, const ReferenceBatch& batch, std::uint32_t row,
                ReferenceResult& result) {
  Vector x(784);
  for (std::size_t i = 0; i < 784; ++i) x[i] = (batch.pixels[row * 784 + i] / 255.0 - 0.1307) / 0.3081;
  const Vector a1 = convolve(x, p.at("conv1.weight"), p.at("conv1.bias"), 1, 32, 28);
  const Vector a2 = convolve(a1, p.at("conv2.weight"), p.at("conv2.bias"), 32, 64, 26);
  Vector pooled(9216);
  std::vector<std::size_t> source(9216);
  for (std::size_t i = 0; i < 9216; ++i) {
    const std::size_t c = i / 144, r = i % 144 / 12, s = i % 12;
    std::size_t best = c * 576 + 2 * r * 24 + 2 * s;
    for (const std::size_t next : {best + 1, best + 24, best + 25}) {
      if (a2[next] > a2[best]) best = next;
    }
    source[i] = best;
    pooled[i] = a2[best] * kept(batch, 0, 0.25, row, static_cast<std::uint32_t>(c));
  }
  const Vector &w1 = p.at("fc1.weight"), &w2 = p.at("fc2.weight");
  Vector h(128), keep(128);
  for (std::size_t j = 0; j < 128; ++j) {
    double sum = p.at("fc1.bias")[j];
    for (std::size_t i = 0; i < 9216; ++i) sum += w1[j * 9216 + i] * pooled[i];
    keep[j] = sum > 0 ? kept(batch, 1, 0.5, row, static_cast<std::uint32_t>(j)) : 0;
    h[j] = sum * keep[j];
  }
  Vector logits(10);
  for (std::size_t k = 0; k < 10; ++k) {
    logits[k] = p.at("fc2.bias")[k];
    for (std::size_t j = 0; j < 128; ++j) logits[k] += w2[k * 128 + j] * h[j];
  }
  result.logits.insert(result.logits.end(), logits.begin(), logits.end());
  double total = 0;
  for (const double logit : logits) total += std::exp(logit);
  const auto label = static_cast<std::size_t>(batch.labels[row]);
  result.loss_sum += std::log(total) - logits[label];

  auto& g = result.gradients;
  Vector dh(128);
  for (std::size_t k = 0; k < 10; ++k) {
    const double d = std::exp(logits[k]) / total - (k == label ? 1 : 0);
    g["fc2.bias"][k] += d;
    for (std::size_t j = 0; j < 128; ++j) {
      g["fc2.weight"][k * 128 + j] += d * h[j];
      dh[j] += d * w2[k * 128 + j];
    }
  }
  Vector dpooled(9216), da2(a2.size());
  for (std::size_t j = 0; j < 128; ++j) {
    const double d = dh[j] * keep[j];
    g["fc1.bias"][j] += d;
    for (std::size_t i = 0; i < 9216; ++i) {
      g["fc1.weight"][j * 9216 + i] += d * pooled[i];
      dpooled[i] += d * w1[j * 9216 + i];
    }
  }
  for (std::size_t i = 0; i < 9216; ++i) {
    if (a2[source[i]] > 0) {
      da2[source[i]] = dpooled[i] * kept(batch, 0, 0.25, row, static_cast<std::uint32_t>(i / 144));
    }
  }
  Vector da1(a1.size()), nothing;
  convolve_backward(a1, p.at("conv2.weight"), da2, 32, 64, 26, g["conv2.weight"], g["conv2.bias"], da1);
  for (std::size_t i = 0; i < a1.size(); ++i) {
    if (a1[i] <= 0) da1[i] = 0;
  }
  convolve_backward(x, p.at("conv1.weight"), da1, 1, 32, 28, g["conv1.weight"], g["conv1.bias"], nothing);
}

}  // namespace

ReferenceResult reference_mnist(const ReferenceParameters& parameters, const ReferenceBatch& batch) {
  ReferenceResult result;
  for (const auto& [name, values] : parameters) result.gradients[name].assign(values.size(), 0.0);
  for (std::uint32_t row = 0; row < batch.labels.size(); ++row) one_sample(parameters, batch, row, result);
  return result;
}

}  // namespace motley::test
