// Bytes of images to floating-point numbers, normalised per channel: one pass.
#include <vector>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

using namespace cuda;

// `moments` is the mean of each channel, then the deviation of each.
template <class T, int width>
__global__ void normalize_kernel(std::int64_t elements, int channels, const float* moments,
                                 const std::uint8_t* x, T* y) {
  // The channel of what the thread comes to next follows from where it is, without a division.
  const int step = static_cast<int>(global_threads() * width % channels);
  int channel = static_cast<int>(global_thread() * width % channels);
  for (std::int64_t first = global_thread() * width; first < elements; first += global_threads() * width) {
    const Pack<std::uint8_t, width> in = load<width>(x + first);
    float out[width];
    int c = channel;
#pragma unroll
    for (int i = 0; i < width; ++i) {
      out[i] = (static_cast<float>(in.at[i]) / 255.0f - moments[c]) / moments[channels + c];
      if (++c == channels) c = 0;
    }
    store_floats(y + first, out);
    channel += step;
    if (channel >= channels) channel -= channels;
  }
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::normalize_images(ConstView x, std::span<const float> host_mean,
                                   std::span<const float> host_deviation, View y) {
  constexpr auto name = "normalize_images";
  check_normalize_images(name, x, host_mean, host_deviation, y);
  const std::int64_t channels = x.shape[3];
  if (x.elements() == 0) return;
  MOTLEY_CHECK(channels <= std::numeric_limits<int>::max() / 2);
  std::vector<float> moments(host_mean.begin(), host_mean.end());
  moments.insert(moments.end(), host_deviation.begin(), host_deviation.end());
  auto* const on_device = scratch<float>(2 * channels);
  copy_to_device(on_device, moments.data(), moments.size() * sizeof(float));
  with_element_type(name, "y", y.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int wide = widest_pack<T>;
    const bool whole = rows_fit<wide>(x.elements(), x.as<std::uint8_t>(), y.as<T>());
    launch(name, whole ? normalize_kernel<T, wide> : normalize_kernel<T, 1>,
           grid_for(*this, x.elements() / (whole ? wide : 1)), stream(), x.elements(),
           static_cast<int>(channels), on_device, x.as<std::uint8_t>(), y.as<T>());
  });
}

}  // namespace motley
