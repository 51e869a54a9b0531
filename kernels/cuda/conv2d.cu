// Convolution: cuDNN for the products (convolutions.h), own kernels for the bias, the activation and the
// bias's gradient. cuDNN's fused call is not used: it allows one algorithm only, and its ReLU may turn NaN
// into 0.
#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/convolutions.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

// y = F(y + bias of the channel), in place; packs of `width` channels. `Index` is 32 bits wide where that is
// enough, for the division's sake.
template <class T, int width, class Index, class F>
__global__ void __launch_bounds__(cuda::elementwise_threads)
    add_bias_kernel(F, Index packs, Index channel_packs, const float* bias, T* y) {
  for (auto p = static_cast<Index>(cuda::global_thread()); p < packs;
       p += static_cast<Index>(cuda::global_threads())) {
    float term[width], value[width];
    cuda::load_floats(bias + p % channel_packs * width, term);
    cuda::load_floats(y + std::int64_t{p} * width, value);
#pragma unroll
    for (int i = 0; i < width; ++i) value[i] = F::value(value[i] + term[i]);
    cuda::store_floats(y + std::int64_t{p} * width, value);
  }
}

template <class F>
void add_bias(const char* name, const CudaBackend& backend, F function, std::int64_t channels,
              const float* bias, const View& y) {
  cuda::with_element_type(name, "y", y.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int widest = cuda::widest_pack<T>;
    T* const values = y.as<T>();
    const bool whole = cuda::rows_fit<widest>(channels, bias, values);
    const std::int64_t width = whole ? widest : 1, packs = y.elements() / width;
    cuda::with_index(packs, [&](auto index) {
      using Index = decltype(index);
      cuda::launch(name, whole ? add_bias_kernel<T, widest, Index, F> : add_bias_kernel<T, 1, Index, F>,
                   cuda::grid_for(backend, packs), backend.stream(), function, packs, channels / width, bias,
                   values);
    });
  });
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::conv2d_forward(const Conv2d& conv, ConstView x, ConstView weight, ConstView bias,
                                 Activation activation, View y) {
  constexpr auto name = "conv2d_forward";
  const ConvolutionSizes s = check_conv2d(name, conv, {"x", x}, {"y", y}, {"weight", weight}, {"bias", bias});
  MOTLEY_CHECK(activation == Activation::none || activation == Activation::relu);
  if (s.n == 0) return;

  convolutions_->forward(s, x.data, weight.data, y.data);
  const bool relu = activation == Activation::relu;
  if (bias.empty()) {
    if (relu) relu_forward(y, y);
  } else if (relu) {
    add_bias(name, *this, cuda::Relu{}, s.out, bias.as<float>(), y);
  } else {
    add_bias(name, *this, cuda::Identity{}, s.out, bias.as<float>(), y);
  }
}

void CudaBackend::conv2d_backward_data(const Conv2d& conv, ConstView dy, ConstView weight, View dx) {
  constexpr auto name = "conv2d_backward_data";
  const ConvolutionSizes s = check_conv2d(name, conv, {"dx", dx}, {"dy", dy}, {"weight", weight});
  if (s.n == 0) return;
  convolutions_->backward_data(s, dy.data, weight.data, dx.data);
}

void CudaBackend::conv2d_backward_weights(const Conv2d& conv, ConstView x, ConstView dy, View dweight,
                                          View dbias, bool accumulate) {
  constexpr auto name = "conv2d_backward_weights";
  const ConvolutionSizes s = check_conv2d_backward_weights(name, conv, x, dy, dweight, dbias);
  const bool with_bias = !dbias.empty();
  if (s.n == 0) {
    if (!accumulate) fill_zero(dweight);
    if (!accumulate && with_bias) fill_zero(dbias);
    return;
  }
  convolutions_->backward_weights(s, x.data, dy.data, dweight.as<float>(), accumulate);
  if (!with_bias) return;
  cuda::with_element_type(name, "dy", dy.dtype, [&](auto type) {
    using T = decltype(type);
    cuda::column_sums(name, *this, s.n * s.out_h * s.out_w, s.out, dy.as<T>(), dbias.as<float>(), accumulate);
  });
}

}  // namespace motley
