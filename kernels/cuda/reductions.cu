// What turns a summed gradient into a step's: its norm in float64, and the factor that averages and clips it.
// All of it stays on the device.
#include "kernels/checks.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

// The shape of the sum, the same on every device: its value must not depend on how many multiprocessors there
// are. Together the blocks of the first phase fill the largest ones.
constexpr int sum_threads = 256;
constexpr std::int64_t sum_blocks = 1024;
constexpr int sum_width = 4;

__device__ inline double square(float x) {
  const auto wide = static_cast<double>(x);
  return wide * wide;
}

// partial[block] = the sum of squares of what the block's threads come to. Each thread takes four neighbours
// at a time whether it may load them at once (`whole`) or not, so that the sum is the same at any address.
template <bool whole>
__global__ void __launch_bounds__(sum_threads)
    sum_squares_kernel(std::int64_t elements, const float* x, double* partial) {
  double sum = 0;
  const std::int64_t packs = elements / sum_width;
  for (std::int64_t p = cuda::global_thread(); p < packs; p += cuda::global_threads()) {
    cuda::Pack<float, sum_width> pack;
    if constexpr (whole) {
      pack = cuda::load<sum_width>(x + p * sum_width);
    } else {
#pragma unroll
      for (int i = 0; i < sum_width; ++i) pack.at[i] = x[p * sum_width + i];
    }
#pragma unroll
    for (int i = 0; i < sum_width; ++i) sum += square(pack.at[i]);
  }
  const std::int64_t rest = packs * sum_width + cuda::global_thread();
  if (rest < elements) sum += square(x[rest]);
  sum = cuda::block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// One block.
__global__ void __launch_bounds__(sum_threads)
    add_partial_sums_kernel(int count, const double* partial, double* out) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += sum_threads) sum += partial[i];
  sum = cuda::block_sum(sum);
  if (threadIdx.x == 0) *out = sum;
}

struct Scale {
  double factor;
  __device__ float operator()(std::int64_t, float x) const {
    return static_cast<float>(factor * static_cast<double>(x));
  }
};

// One thread.
__global__ void gradient_scale_kernel(const double* sum_squares, const double* count, float clip_norm,
                                      float* out) {
  const double samples = *count;
  double norm = 0, factor = 0;
  if (samples != 0) {
    norm = sqrt(*sum_squares) / samples;
    factor = 1 / samples;
    if (clip_norm > 0) {
      const double shrink = static_cast<double>(clip_norm) / (norm + 1e-6);
      if (!(shrink >= 1))
        factor *= shrink;  // a NaN norm gives a NaN scale: it must not look like a sound step
    }
  }
  out[0] = static_cast<float>(factor);
  out[1] = static_cast<float>(norm);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::sum_squares(ConstView x, View sum) {
  constexpr auto name = "sum_squares";
  check_dtype(name, "x", x, DType::f32);
  check_length(name, "sum", sum, DType::f64, 1);
  const std::int64_t wanted = cuda::ceil_div(cuda::ceil_div(x.elements(), sum_width), sum_threads);
  const std::int64_t blocks = std::min(wanted, sum_blocks);
  auto* const partial = scratch<double>(sum_blocks);
  const cuda::Grid grid{cuda::extents(blocks), dim3(sum_threads)};
  const bool whole = cuda::packs_fit<sum_width>(x.as<float>());
  cuda::launch(name, whole ? sum_squares_kernel<true> : sum_squares_kernel<false>, grid, stream(),
               x.elements(), x.as<float>(), partial);
  cuda::launch(name, add_partial_sums_kernel, {dim3(1), dim3(sum_threads)}, stream(),
               static_cast<int>(blocks), partial, sum.as<double>());
}

void CudaBackend::scale(double factor, View x) {
  constexpr auto name = "scale";
  check_dtype(name, "x", x, DType::f32);
  auto* const values = x.as<float>();
  cuda::elementwise(name, *this, x.elements(), Scale{factor}, values, static_cast<const float*>(values));
}

void CudaBackend::gradient_scale(ConstView sum_squares, ConstView count, float clip_norm, View out) {
  constexpr auto name = "gradient_scale";
  check_gradient_scale(name, sum_squares, count, out);
  cuda::launch(name, gradient_scale_kernel, {dim3(1), dim3(1)}, stream(), sum_squares.as<double>(),
               count.as<double>(), clip_norm, out.as<float>());
}

}  // namespace motley
