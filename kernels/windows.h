// Where the windows of pooling lie along one dimension of an image, the same on every device.
#pragma once

#include "core/philox.h"

namespace motley {

template <class Index>
struct Range {
  Index begin, end;
};

// The part of a window that lies inside the image: places in the window.
template <class Index>
MOTLEY_HOST_DEVICE inline Range<Index> inside(Index first, Index kernel, Index extent) {
  return {first < 0 ? -first : 0, extent - first < kernel ? extent - first : kernel};
}

// The outputs whose windows cover position i of the input: window o covers [o * stride, o * stride + kernel) of the
// padded input.
template <class Index>
MOTLEY_HOST_DEVICE inline Range<Index> covering(Index i, Index kernel, Index stride, Index pad,
                                                Index outputs) {
  const Index at = i + pad, last = at / stride + 1;
  return {at < kernel ? 0 : (at - kernel) / stride + 1, last < outputs ? last : outputs};
}

}  // namespace motley
