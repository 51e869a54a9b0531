// What the tests of both kinds of pooling share.
#pragma once

#include "backend_test.h"

namespace motley::test {

struct PoolCase {
  const char* what;
  std::int64_t n, h, w, c;
  Pool2d pool;
};

inline Shape out_shape(const PoolCase& c) {
  return {c.n, (c.h + 2 * c.pool.pad_h - c.pool.kernel_h) / c.pool.stride_h + 1,
          (c.w + 2 * c.pool.pad_w - c.pool.kernel_w) / c.pool.stride_w + 1, c.c};
}

}  // namespace motley::test
