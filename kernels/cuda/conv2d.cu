// Convolution: cuDNN for the products (convolutions.h), own kernels for the bias, the activation and the
// bias's gradient. cuDNN's fused call is not used: it allows one algorithm only, and its ReLU may turn NaN
// into 0.
#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/convolutions.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

constexpr int bias_width = 4;

// y = F(y + bias of the channel), in place; packs of `width` channels. `Index` is 32 bits wide where that is
// enough, for the division's sake.
template <int width, class Index, class F>
__global__ void __launch_bounds__(cuda::elementwise_threads)
    add_bias_kernel(F, Index packs, Index channel_packs, const float* bias, float* y) {
  for (auto p = static_cast<Index>(cuda::global_thread()); p < packs;
       p += static_cast<Index>(cuda::global_threads())) {
    const auto term = cuda::load<width>(bias + p % channel_packs * width);
    auto value = cuda::load<width>(y + std::int64_t{p} * width);
#pragma unroll
    for (int i = 0; i < width; ++i) value.at[i] = F::value(value.at[i] + term.at[i]);
    cuda::store<width>(y + std::int64_t{p} * width, value);
  }
}

template <class F>
void add_bias(const char* name, const CudaBackend& backend, F function, std::int64_t elements,
              std::int64_t channels, const float* bias, float* y) {
  const bool whole = cuda::rows_fit<bias_width>(channels, bias, y);
  const std::int64_t width = whole ? bias_width : 1, packs = elements / width;
  cuda::with_index(packs, [&](auto index) {
    using Index = decltype(index);
    cuda::launch(name, whole ? add_bias_kernel<bias_width, Index, F> : add_bias_kernel<1, Index, F>,
                 cuda::grid_for(backend, packs), backend.stream(), function, packs, channels / width, bias,
                 y);
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

  convolutions_->forward(s, x.as<float>(), weight.as<float>(), y.as<float>());
  const bool relu = activation == Activation::relu;
  if (bias.empty()) {
    if (relu) relu_forward(y, y);
  } else if (relu) {
    add_bias(name, *this, cuda::Relu{}, y.elements(), s.out, bias.as<float>(), y.as<float>());
  } else {
    add_bias(name, *this, cuda::Identity{}, y.elements(), s.out, bias.as<float>(), y.as<float>());
  }
}

void CudaBackend::conv2d_backward_data(const Conv2d& conv, ConstView dy, ConstView weight, View dx) {
  constexpr auto name = "conv2d_backward_data";
  const ConvolutionSizes s = check_conv2d(name, conv, {"dx", dx}, {"dy", dy}, {"weight", weight});
  if (s.n == 0) return;
  convolutions_->backward_data(s, dy.as<float>(), weight.as<float>(), dx.as<float>());
}

void CudaBackend::conv2d_backward_weights(const Conv2d& conv, ConstView x, ConstView dy, View dweight,
                                          View dbias, bool accumulate) {
  constexpr auto name = "conv2d_backward_weights";
  const ConvolutionSizes s =
      check_conv2d(name, conv, {"x", x}, {"dy", dy}, {"dweight", dweight}, {"dbias", dbias});
  const bool with_bias = !dbias.empty();
  if (s.n == 0) {
    if (!accumulate) fill_zero(dweight);
    if (!accumulate && with_bias) fill_zero(dbias);
    return;
  }
  convolutions_->backward_weights(s, x.as<float>(), dy.as<float>(), dweight.as<float>(), accumulate);
  if (with_bias) {
    cuda::column_sums(name, *this, s.n * s.out_h * s.out_w, s.out, dy.as<float>(), dbias.as<float>(),
                      accumulate);
  }
}

}  // namespace motley
