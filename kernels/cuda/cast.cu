// Conversions between float32, float16 and bfloat16.
#include "kernels/checks.h"
#include "kernels/cuda/elementwise.cuh"

namespace motley {

void CudaBackend::cast(ConstView x, View y) {
  constexpr auto name = "cast";
  check_dtype(name, "x", x, x.dtype);
  check_view(name, "y", y, y.dtype, x.shape);
  cuda::with_element_type(name, "x", x.dtype, [&](auto from) {
    cuda::with_element_type(name, "y", y.dtype, [&](auto to) {
      cuda::elementwise(name, *this, x.elements(), cuda::Same{}, y.as<decltype(to)>(),
                        x.as<decltype(from)>());
    });
  });
}

}  // namespace motley
