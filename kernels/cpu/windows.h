// Where the windows of pooling lie along one dimension of an image.
#pragma once

#include <algorithm>
#include <cstdint>

namespace motley {

// The part of a window that lies inside the image.
struct Range {
  std::int64_t begin, end;  // places in the window
};
inline Range inside(std::int64_t first, std::int64_t kernel, std::int64_t extent) {
  return {std::max<std::int64_t>(0, -first), std::min(kernel, extent - first)};
}

// The outputs whose windows cover position i of the input.
inline Range covering(std::int64_t i, std::int64_t kernel, std::int64_t stride, std::int64_t pad,
                      std::int64_t outputs) {
  const std::int64_t last = i + pad;  // window o covers [o * stride, o * stride + kernel) of the padded input
  const std::int64_t begin = last < kernel ? 0 : (last - kernel) / stride + 1;
  return {begin, std::min(outputs, last / stride + 1)};
}

}  // namespace motley
