// The linear layer on weights as PyTorch holds them: products by cuBLASLt, and what they leave to do, adding
// a float32 bias to a narrower result, and activations.
#include <algorithm>

#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/matrix_products.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

// --- Bias and activation ----------------------------------------------------------------------------------

// Threads side by side along a row, and rows at a time.
constexpr int finish_columns = 64, finish_rows = 4;

// preactivation = product + bias, rounded; y = function(preactivation). product null: zeros; bias null: none;
// preactivation null: not kept. A thread keeps to its columns, so that it loads their bias once.
template <class Y, class Function, int width>
__global__ void finish_kernel(std::int64_t rows, std::int64_t columns, const float* product,
                              const float* bias, Y* preactivation, Y* y) {
  const std::int64_t column = (std::int64_t{blockIdx.x} * finish_columns + threadIdx.x) * width;
  if (column >= columns) return;
  cuda::Pack<float, width> added{};
  if (bias != nullptr) added = cuda::load<width>(bias + column);
  for (std::int64_t row = std::int64_t{blockIdx.y} * finish_rows + threadIdx.y; row < rows;
       row += std::int64_t{gridDim.y} * finish_rows) {
    // A multiple of width by its form: otherwise nvcc stores packs of half types element by element.
    const std::int64_t at = (row * (columns / width) + column / width) * width;
    cuda::Pack<float, width> sum{};
    if (product != nullptr) sum = cuda::load<width>(product + at);
    cuda::Pack<Y, width> before, after;
#pragma unroll
    for (int i = 0; i < width; ++i) {
      before.at[i] = cuda::from_float<Y>(sum.at[i] + added.at[i]);
      // Of what the backward pass will see, so that the gradient is that of this function.
      after.at[i] = cuda::from_float<Y>(Function::value(cuda::to_float(before.at[i])));
    }
    if (preactivation != nullptr) cuda::store<width>(preactivation + at, before);
    cuda::store<width>(y + at, after);
  }
}

template <class Function, class Y>
void finish(const char* name, const CudaBackend& backend, std::int64_t rows, std::int64_t columns,
            const float* product, const float* bias, Y* preactivation, Y* y) {
  constexpr int width = 4;
  const bool whole = cuda::rows_fit<width>(columns, product, bias, preactivation, y);
  const std::int64_t tiles = cuda::ceil_div(columns, std::int64_t{finish_columns} * (whole ? width : 1));
  const std::int64_t enough = std::max<std::int64_t>(1, 16 * std::int64_t{backend.multiprocessors()} / tiles);
  const std::int64_t stripes = std::min({cuda::ceil_div(rows, finish_rows), enough, cuda::most_in_y});
  const cuda::Grid grid{cuda::extents(tiles, stripes), dim3(finish_columns, finish_rows)};
  cuda::launch(name, whole ? finish_kernel<Y, Function, width> : finish_kernel<Y, Function, 1>, grid,
               backend.stream(), rows, columns, product, bias, preactivation, y);
}

// Rows whose float32 products are formed together before they are narrowed.
std::int64_t rows_together(const LinearSizes& s, std::int64_t piece_bytes) {
  constexpr std::int64_t tile = 256;  // rows of a large device's blocks of a product: pieces are whole ones
  const std::int64_t pieces =
      cuda::ceil_div(s.n * s.out * std::int64_t{sizeof(float)}, std::max<std::int64_t>(piece_bytes, 1));
  return std::min(s.n, cuda::ceil_div(cuda::ceil_div(s.n, pieces), tile) * tile);
}

// y = function(x weight^T + bias) where y is narrower than the bias: sums stay float32 until that is added.
template <class T>
void forward_narrow(const char* name, CudaBackend& backend, const LinearSizes& s, const T* x, const T* weight,
                    const float* bias, Activation activation, T* y, T* preactivation) {
  const std::int64_t together = rows_together(s, backend.products().piece_bytes());
  float* const product = s.in > 0 ? backend.scratch<float>(together * s.out) : nullptr;
  for (std::int64_t first = 0; first < s.n; first += together) {
    const std::int64_t rows = std::min(together, s.n - first);
    if (s.in > 0) {
      backend.products().multiply({false, true, rows, s.out, s.in, DTypeOf<T>::value, DType::f32},
                                  x + first * s.in, weight, product);
    }
    T* const before = preactivation == nullptr ? nullptr : preactivation + first * s.out;
    cuda::with_activation(name, activation, [&](auto function) {
      finish<decltype(function)>(name, backend, rows, s.out, product, bias, before, y + first * s.out);
    });
  }
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::linear_forward(ConstView x, ConstView weight, ConstView bias, Activation activation, View y,
                                 View preactivation) {
  constexpr auto name = "linear_forward";
  const LinearSizes s = check_linear_forward(name, x, weight, bias, y, preactivation);
  if (y.elements() == 0) return;
  const float* const b = bias.empty() ? nullptr : bias.as<float>();
  cuda::with_element_type(name, "y", y.dtype, [&](auto type) {
    using Y = decltype(type);
    if constexpr (!std::is_same_v<Y, float>) {
      if (b != nullptr) {
        return forward_narrow(name, *this, s, x.as<Y>(), weight.as<Y>(), b, activation, y.as<Y>(),
                              preactivation.empty() ? nullptr : preactivation.as<Y>());
      }
    }
    // Here cuBLASLt adds the bias, and an activation takes one more pass: cuBLASLt's own GELU is the
    // approximation by tanh, and the preactivation has the same bits with any activation.
    const View before = preactivation.empty() ? y : preactivation;
    const cuda::Product product{false, true, s.n, s.out, s.in, x.dtype, y.dtype};
    const bool fused = s.in > 0 && products().takes_bias(product, x.data, weight.data, before.data, b);
    if (s.in > 0) {
      products().multiply(product, x.data, weight.data, before.data, fused ? b : nullptr);
    } else {
      fill_zero(before);
    }
    if constexpr (std::is_same_v<Y, float>) {
      if (b != nullptr && !fused) {
        float* const sums = before.as<float>();
        finish<cuda::Identity, float>(name, *this, s.n, s.out, sums, b, nullptr, sums);
      }
    }
    if (activation == Activation::none && preactivation.empty()) return;
    cuda::with_activation(name, activation, [&](auto function) {
      cuda::elementwise(name, *this, y.elements(), cuda::Activate<decltype(function)>{}, y.as<Y>(),
                        static_cast<const Y*>(before.as<Y>()));
    });
  });
}

void CudaBackend::linear_backward_data(ConstView dy, ConstView weight, View dx, bool accumulate) {
  constexpr auto name = "linear_backward_data";
  const LinearSizes s = check_linear_backward_data(name, dy, weight, dx);
  if (dx.elements() == 0) return;
  if (s.out == 0) {
    if (!accumulate) fill_zero(dx);
    return;
  }
  products().multiply({false, false, s.n, s.in, s.out, dy.dtype, dx.dtype, accumulate}, dy.data, weight.data,
                      dx.data);
}

void CudaBackend::linear_backward_weights(ConstView x, ConstView dy, View dweight, View dbias,
                                          bool accumulate) {
  constexpr auto name = "linear_backward_weights";
  const LinearSizes s = check_linear_backward_weights(name, x, dy, dweight, dbias);
  if (dweight.elements() > 0) {
    if (s.n > 0) {
      products().multiply({true, false, s.out, s.in, s.n, x.dtype, DType::f32, accumulate}, dy.data, x.data,
                          dweight.data);
    } else if (!accumulate) {
      fill_zero(dweight);
    }
  }
  if (dbias.empty() || s.out == 0) return;
  cuda::with_element_type(name, "dy", dy.dtype, [&](auto type) {
    using T = decltype(type);
    cuda::column_sums(name, *this, s.n, s.out, dy.as<T>(), dbias.as<float>(), accumulate);
  });
}

}  // namespace motley
