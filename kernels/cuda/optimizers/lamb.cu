// LAMB in three launches for all tensors of the arena: one pass for the moments and the norms, the trust
// ratio of each tensor, and a second pass for the step. The direction is formed twice, which costs less than
// to store it.
#include <cmath>
#include <vector>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

constexpr int lamb_threads = 256;
constexpr int lamb_width = 4;
// Of a tensor, the part of one block. Fixed, because the order of the norms' sums follows from it.
constexpr std::int64_t chunk_elements = 16 * lamb_threads;

struct Tensor {
  std::int64_t offset, elements;
  std::int64_t first_chunk;  // chunks are counted over all tensors
  float decay;
  std::int32_t adapts;
};

struct Rule {
  float keep1, take1, keep2, take2;
  float correction1, root_correction;  // 1 / (1 - beta1^step), 1 / sqrt(1 - beta2^step)
  float eps;

  __device__ float direction(float mean, float square, float param, float decay) const {
    return mean * correction1 / (sqrtf(square) * root_correction + eps) + decay * param;
  }
};

struct Arenas {
  const float* grad;
  float *param, *mean, *square;
  bool aligned;  // all of them to 16 bytes
};

// Sums of squares.
struct Norms {
  double param, direction;
  __device__ Norms operator+(const Norms& other) const {
    return {param + other.param, direction + other.direction};
  }
};

// The tensor that a chunk belongs to: the last that begins at or before it, as tensors without elements have
// no chunks.
__device__ inline const Tensor& tensor_of(const Tensor* tensors, int count, std::int64_t chunk) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (tensors[middle].first_chunk <= chunk ? low : high) = middle;
  }
  return tensors[low];
}

// The elements [begin, end) of the arenas that the block's chunk is.
struct Range {
  std::int64_t begin, end;
};
__device__ inline Range range_of(const Tensor& tensor, std::int64_t chunk) {
  const std::int64_t first = (chunk - tensor.first_chunk) * chunk_elements;
  const std::int64_t left = tensor.elements - first;
  const std::int64_t begin = tensor.offset + first;
  return {begin, begin + (left < chunk_elements ? left : chunk_elements)};
}

// body(first, width) for all elements of the range, `width` neighbours for each thread where they may be
// loaded at once.
template <class Body>
__device__ inline void for_elements(const Range& range, bool aligned, Body body) {
  std::int64_t i = range.begin;
  if (aligned && range.begin % lamb_width == 0) {
    const std::int64_t end = range.end - (range.end - range.begin) % lamb_width;
    for (i += std::int64_t{threadIdx.x} * lamb_width; i < end; i += lamb_threads * lamb_width)
      body(i, std::integral_constant<int, lamb_width>{});
    i = end;
  }
  for (i += threadIdx.x; i < range.end; i += lamb_threads) body(i, std::integral_constant<int, 1>{});
}

// One block per chunk.
__global__ void __launch_bounds__(lamb_threads)
    moments_kernel(Rule rule, const float* scale, const Tensor* tensors, int count, Arenas arenas,
                   Norms* partial) {
  const float factor = *scale;
  const Tensor tensor = tensor_of(tensors, count, blockIdx.x);
  Norms norms{};
  for_elements(range_of(tensor, blockIdx.x), arenas.aligned, [&](std::int64_t first, auto elements) {
    constexpr int width = decltype(elements)::value;
    const auto grad = cuda::load<width>(arenas.grad + first);
    const auto param = cuda::load<width>(arenas.param + first);
    auto mean = cuda::load<width>(arenas.mean + first);
    auto square = cuda::load<width>(arenas.square + first);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float gradient = grad.at[i] * factor;
      mean.at[i] = rule.keep1 * mean.at[i] + rule.take1 * gradient;
      square.at[i] = rule.keep2 * square.at[i] + rule.take2 * gradient * gradient;
      const auto p = static_cast<double>(param.at[i]);
      const auto d = static_cast<double>(rule.direction(mean.at[i], square.at[i], param.at[i], tensor.decay));
      norms.param += p * p;
      norms.direction += d * d;
    }
    cuda::store<width>(arenas.mean + first, mean);
    cuda::store<width>(arenas.square + first, square);
  });
  norms = cuda::block_sum(norms);
  if (threadIdx.x == 0) partial[blockIdx.x] = norms;
}

// One block per tensor: steps[tensor] = lr * its trust ratio.
__global__ void __launch_bounds__(lamb_threads)
    trust_kernel(double lr, const Tensor* tensors, const Norms* partial, float* steps) {
  const Tensor tensor = tensors[blockIdx.x];
  const std::int64_t chunks = (tensor.elements + chunk_elements - 1) / chunk_elements;
  Norms norms{};
  for (std::int64_t c = threadIdx.x; c < chunks; c += lamb_threads)
    norms = norms + partial[tensor.first_chunk + c];
  norms = cuda::block_sum(norms);
  if (threadIdx.x != 0) return;
  double trust = 1;
  if (tensor.adapts != 0 && norms.param > 0 && norms.direction > 0)
    trust = sqrt(norms.param / norms.direction);
  steps[blockIdx.x] = static_cast<float>(lr * trust);
}

// One block per chunk.
__global__ void __launch_bounds__(lamb_threads)
    move_kernel(Rule rule, const Tensor* tensors, int count, Arenas arenas, const float* steps) {
  const Tensor& found = tensor_of(tensors, count, blockIdx.x);
  const Tensor tensor = found;
  const float step = steps[&found - tensors];
  for_elements(range_of(tensor, blockIdx.x), arenas.aligned, [&](std::int64_t first, auto elements) {
    constexpr int width = decltype(elements)::value;
    const auto mean = cuda::load<width>(arenas.mean + first);
    const auto square = cuda::load<width>(arenas.square + first);
    auto param = cuda::load<width>(arenas.param + first);
#pragma unroll
    for (int i = 0; i < width; ++i)
      param.at[i] -= step * rule.direction(mean.at[i], square.at[i], param.at[i], tensor.decay);
    cuda::store<width>(arenas.param + first, param);
  });
}

// The segments as the kernels want them, and the number of their chunks.
std::int64_t lay_out(std::span<const Segment> segments, std::vector<Tensor>& tensors) {
  std::int64_t chunks = 0;
  for (const Segment& segment : segments) {
    tensors.push_back({static_cast<std::int64_t>(segment.offset), static_cast<std::int64_t>(segment.elements),
                       chunks, static_cast<float>(segment.weight_decay), segment.adapts ? 1 : 0});
    chunks += cuda::ceil_div(tensors.back().elements, chunk_elements);
  }
  return chunks;
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::lamb_step(const LambOptions& options, std::span<const Segment> host_segments,
                            ConstView grad, ConstView scale, View param, View exp_avg, View exp_avg_sq) {
  constexpr auto name = "lamb_step";
  check_lamb_step(name, options, host_segments, grad, scale, param, exp_avg, exp_avg_sq);
  std::vector<Tensor> tensors;
  const std::int64_t chunks = lay_out(host_segments, tensors);
  if (chunks == 0) return;

  // [partial norms | tensors | steps]
  const std::size_t norms_bytes = static_cast<std::size_t>(chunks) * sizeof(Norms);
  const std::size_t tensors_bytes = tensors.size() * sizeof(Tensor);
  std::byte* const work = scratch(norms_bytes + tensors_bytes + tensors.size() * sizeof(float));
  auto* const partial = reinterpret_cast<Norms*>(work);
  auto* const on_device = reinterpret_cast<Tensor*>(work + norms_bytes);
  auto* const steps = reinterpret_cast<float*>(work + norms_bytes + tensors_bytes);
  copy_to_device(on_device, tensors.data(), tensors_bytes);

  const auto step = static_cast<double>(options.step);
  const Rule rule{
      .keep1 = static_cast<float>(options.beta1),
      .take1 = static_cast<float>(1 - options.beta1),
      .keep2 = static_cast<float>(options.beta2),
      .take2 = static_cast<float>(1 - options.beta2),
      .correction1 = static_cast<float>(1 / (1 - std::pow(options.beta1, step))),
      .root_correction = static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, step))),
      .eps = static_cast<float>(options.eps),
  };
  const Arenas arenas{grad.as<float>(), param.as<float>(), exp_avg.as<float>(), exp_avg_sq.as<float>(),
                      cuda::packs_fit<lamb_width>(grad.as<float>(), param.as<float>(), exp_avg.as<float>(),
                                                  exp_avg_sq.as<float>())};
  const auto count = static_cast<int>(tensors.size());
  const cuda::Grid of_chunks{cuda::extents(chunks), dim3(lamb_threads)};
  const cuda::Grid of_tensors{cuda::extents(count), dim3(lamb_threads)};
  cuda::launch(name, moments_kernel, of_chunks, stream(), rule, scale.as<float>(), on_device, count, arenas,
               partial);
  cuda::launch(name, trust_kernel, of_tensors, stream(), options.lr, on_device, partial, steps);
  cuda::launch(name, move_kernel, of_chunks, stream(), rule, on_device, count, arenas, steps);
}

}  // namespace motley
