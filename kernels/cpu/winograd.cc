#include "kernels/cpu/winograd.h"

#include <algorithm>

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_products.h"
#include "kernels/cpu/wide_vectors.h"
#include "kernels/cpu/winograd_transforms.h"

namespace motley::winograd {
namespace {

// What all three operations are made of: an image that tiles are cut from, with its channels.
struct Image {
  std::int64_t h, w, channels;
  std::int64_t blocks() const { return channels / lanes; }
};

// Tiles of the outputs of all samples, counted row by row, and the chunks in which they are computed.
struct Tiles {
  Tiles(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t channels)
      : down(ceil_div(h, outputs)), across(ceil_div(w, outputs)), count(n * down * across) {
    // The numbers of a chunk stay in the last cache.
    constexpr std::int64_t chunk_floats = 3 << 19, group = product_rows;
    chunk = std::clamp(chunk_floats / (points * channels) / group * group, group, 32 * group);
    chunk = std::min(chunk, ceil_div(count, group) * group);
  }
  std::int64_t down, across, count, chunk;
};

// Numbers of a chunk's tiles, [points, blocks of channels, tiles, lanes]: products read and write them in order. A
// point's are set apart by some lines more, or the same cache sets would hold all points of a tile.
struct Planes {
  Planes(float* data_, std::int64_t blocks_, std::int64_t tiles_)
      : data(data_), blocks(blocks_), tiles(tiles_) {}
  std::int64_t stride() const { return (blocks * tiles + 5) * lanes; }
  std::int64_t floats() const { return points * stride(); }
  float* at(std::int64_t point, std::int64_t block) const {
    return data + point * stride() + block * tiles * lanes;
  }

  float* data;
  std::int64_t blocks, tiles;
};

// Where a tile lies.
struct Place {
  Place(const Tiles& tiles, std::int64_t tile)
      : sample(tile / (tiles.down * tiles.across)),
        top(tile / tiles.across % tiles.down * outputs),
        left(tile % tiles.across * outputs) {}
  std::int64_t sample, top, left;
};

// tile [side x side] of x [n, h, w, channels] from (top, left) on, one block of channels; 0 outside of the image.
template <int side, class T>
void cut(const T* x, const Image& image, std::int64_t sample, std::int64_t top, std::int64_t left,
         std::int64_t block, Vec (&tile)[side][side]) {
  for (int r = 0; r < side; ++r) {
    const std::int64_t h = top + r;
    const bool inside = h >= 0 && h < image.h;
    const T* row = x + ((sample * image.h + h) * image.w + left) * image.channels + block * lanes;
    for (int c = 0; c < side; ++c) {
      const std::int64_t w = left + c;
      tile[r][c] = inside && w >= 0 && w < image.w ? load(row + c * image.channels) : zero_vec();
    }
  }
}

void put(const Vec (&tile)[inputs][inputs], const Planes& planes, std::int64_t block,
         std::int64_t tile_index) {
  float* to = planes.at(0, block) + tile_index * lanes;
  const std::int64_t stride = planes.stride();
  for (int r = 0; r < inputs; ++r)
    for (int c = 0; c < inputs; ++c) store(to + (r * inputs + c) * stride, tile[r][c]);
}

void get(const Planes& planes, std::int64_t block, std::int64_t tile_index, Vec (&tile)[inputs][inputs]) {
  const float* from = planes.at(0, block) + tile_index * lanes;
  const std::int64_t stride = planes.stride();
  for (int r = 0; r < inputs; ++r)
    for (int c = 0; c < inputs; ++c) tile[r][c] = load(from + (r * inputs + c) * stride);
}

// planes = B^T d B of the tiles [first, first + count) of x, whose tiles begin `pad` before their outputs.
template <class T>
void transform_inputs(int threads, const T* x, const Image& image, std::int64_t pad_h, std::int64_t pad_w,
                      const Tiles& tiles, std::int64_t first, std::int64_t count, const Planes& planes) {
  parallel_for(threads, count, [&](std::int64_t index) {
    const Place place(tiles, first + index);
    for (std::int64_t block = 0; block < planes.blocks; ++block) {
      Vec tile[inputs][inputs], transformed[inputs][inputs];
      cut(x, image, place.sample, place.top - pad_h, place.left - pad_w, block, tile);
      both_ways(of_input, tile, transformed);
      put(transformed, planes, block, index);
    }
  });
}

// --- Products ---------------------------------------------------------------------------------------------

// body(point, block, several): for all points and every product_columns-th block; the last ones may be single.
template <class Body>
void for_columns(int threads, std::int64_t blocks, const Body& body) {
  const std::int64_t groups = ceil_div(blocks, product_columns);
  parallel_for(threads, points * groups, [&](std::int64_t index) {
    const std::int64_t block = index % groups * product_columns;
    body(index / groups, block, block + product_columns <= blocks);
  });
}

// m = v u for each point: v of `tiles` tiles and u [points, blocks of outputs, channels, lanes].
void multiply(int threads, const Planes& v, const Planes& u, std::int64_t tiles, const Planes& m) {
  const std::int64_t v_stride = v.tiles * lanes, u_stride = u.tiles * lanes, m_stride = m.tiles * lanes;
  for_columns(threads, m.blocks, [&](std::int64_t point, std::int64_t block, bool whole) {
    const float* right = u.at(point, block);
    for (std::int64_t tile = 0; tile < tiles; tile += product_rows) {
      const float* left = v.at(point, 0) + tile * lanes;
      float* out = m.at(point, block) + tile * lanes;
      if (whole) {
        multiply_rows<product_rows, product_columns>(left, v_stride, v.blocks, right, u_stride, {}, out,
                                                     lanes, m_stride);
      } else {
        multiply_rows<product_rows, 1>(left, v_stride, v.blocks, right, u_stride, {}, out, lanes, m_stride);
      }
    }
  });
}

// --- Kernels ----------------------------------------------------------------------------------------------

// u = G g G^T of kernels weight [out, in, 3, 3], as [points, blocks of columns, rows, lanes]. Forwards rows are inputs
// and columns outputs; for the gradient of the input it is the other way round, and kernels are mirrored.
template <class T>
void transform_kernels(int threads, const T* weight, std::int64_t out, std::int64_t in, bool transposed,
                       const Planes& u) {
  constexpr int size = taps * taps;
  const std::int64_t column_stride = (transposed ? 1 : in) * size, row_stride = (transposed ? in : 1) * size;
  const std::int64_t rows = transposed ? out : in;
  constexpr std::int64_t rows_of_task = 64;
  const std::int64_t tasks = ceil_div(rows, rows_of_task);
  parallel_for(threads, u.blocks * tasks, [&](std::int64_t index) {
    const std::int64_t block = index / tasks, begin = index % tasks * rows_of_task;
    for (std::int64_t row = begin; row < std::min(rows, begin + rows_of_task); ++row) {
      const T* from = weight + block * lanes * column_stride + row * row_stride;
      Vec kernel[taps][taps], transformed[inputs][inputs];
      for (int tap = 0; tap < size; ++tap) {
        float values[lanes];
        for (int lane = 0; lane < lanes; ++lane) values[lane] = to_float(from[lane * column_stride + tap]);
        const int to = transposed ? size - 1 - tap : tap;
        kernel[to / taps][to % taps] = load(values);
      }
      both_ways(of_kernel, kernel, transformed);
      put(transformed, u, block, row);
    }
  });
}

// dweight [out, in, 3, 3] (+)= G^T du G of du [points, blocks of in, out, lanes].
void transform_kernel_gradients(int threads, const Planes& du, std::int64_t in, float* dweight,
                                bool accumulate) {
  constexpr int size = taps * taps;
  parallel_for(threads, du.tiles, [&](std::int64_t k) {
    for (std::int64_t block = 0; block < du.blocks; ++block) {
      Vec transformed[inputs][inputs], kernel[taps][taps];
      get(du, block, k, transformed);
      both_ways(to_kernel, transformed, kernel);
      float* to = dweight + (k * in + block * lanes) * size;
      for (int lane = 0; lane < lanes; ++lane) {
        for (int tap = 0; tap < size; ++tap) {
          float& gradient = to[lane * size + tap];
          gradient = kernel[tap / taps][tap % taps][lane] + (accumulate ? gradient : 0.0f);
        }
      }
    }
  });
}

// --- Results ----------------------------------------------------------------------------------------------

// y = activation(A^T m A + bias) of the tiles [first, first + count); bias may be null.
template <class T>
void transform_outputs(int threads, const Planes& m, const Tiles& tiles, std::int64_t first,
                       std::int64_t count, const float* bias, Activation activation, T* y,
                       const Image& image) {
  parallel_for(threads, count, [&](std::int64_t index) {
    const Place place(tiles, first + index);
    const auto rows = std::min<std::int64_t>(outputs, image.h - place.top);
    const auto columns = std::min<std::int64_t>(outputs, image.w - place.left);
    T* const corner = y + ((place.sample * image.h + place.top) * image.w + place.left) * image.channels;
    for (std::int64_t block = 0; block < m.blocks; ++block) {
      Vec products[inputs][inputs], tile[outputs][outputs];
      get(m, block, index, products);
      both_ways(to_output, products, tile);
      const Vec added = bias == nullptr ? zero_vec() : load(bias + block * lanes);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < columns; ++c) {
          Vec value = tile[r][c] + added;
          if (activation == Activation::relu) value = value < 0.0f ? zero_vec() : value;  // NaN stays NaN
          store(corner + (r * image.w + c) * image.channels + block * lanes, value);
        }
      }
    }
  });
}

// e = A dy A^T of the tiles [first, first + count) of dy; and, unless null, the sums of dy over each tile's pixels,
// tile_sums [count, channels].
template <class T>
void transform_output_gradients(int threads, const T* dy, const Image& image, const Tiles& tiles,
                                std::int64_t first, std::int64_t count, const Planes& e, float* tile_sums) {
  parallel_for(threads, count, [&](std::int64_t index) {
    const Place place(tiles, first + index);
    for (std::int64_t block = 0; block < e.blocks; ++block) {
      Vec tile[outputs][outputs], transformed[inputs][inputs];
      cut(dy, image, place.sample, place.top, place.left, block, tile);
      both_ways(of_output, tile, transformed);
      put(transformed, e, block, index);
      if (tile_sums == nullptr) continue;
      Vec sum = zero_vec();
      for (const auto& row : tile) sum += (row[0] + row[1]) + (row[2] + row[3]);
      store(tile_sums + index * image.channels + block * lanes, sum);
    }
  });
}

// sums [channels] (+)= the sum over rows of tile_sums [rows, channels], in order.
void add_tile_sums(int threads, const float* tile_sums, std::int64_t rows, std::int64_t channels,
                   double* sums, bool accumulate) {
  parallel_blocks(threads, channels, lanes, [&](std::int64_t begin, std::int64_t end) {
    double sum[lanes] = {};
    const auto width = static_cast<int>(end - begin);
    for (int i = 0; accumulate && i < width; ++i) sum[i] = sums[begin + i];
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* terms = tile_sums + row * channels + begin;
#pragma omp simd
      for (int i = 0; i < width; ++i) sum[i] += static_cast<double>(terms[i]);
    }
    std::copy_n(sum, width, sums + begin);
  });
}

// A convolution from x with `in` channels to y with `out`: the forward pass, or the gradient of its input.
struct Pass {
  Image x, y;
  std::int64_t pad_h, pad_w;
  Tiles tiles;
  Planes v, u, m;

  Pass(std::int64_t n, const Image& x_, const Image& y_, std::int64_t pad_h_, std::int64_t pad_w_,
       std::byte* work)
      : x(x_),
        y(y_),
        pad_h(pad_h_),
        pad_w(pad_w_),
        tiles(n, y.h, y.w, x.channels + y.channels),
        v(reinterpret_cast<float*>(work), x.blocks(), tiles.chunk),
        u(v.data + v.floats(), y.blocks(), x.channels),
        m(u.data + u.floats(), y.blocks(), tiles.chunk) {}

  std::size_t bytes() const {
    return static_cast<std::size_t>(v.floats() + u.floats() + m.floats()) * sizeof(float);
  }
};

Pass forward_pass(const ConvolutionSizes& s, std::byte* work) {
  return {s.n, {s.h, s.w, s.in}, {s.out_h, s.out_w, s.out}, s.conv.pad_h, s.conv.pad_w, work};
}

Pass backward_data_pass(const ConvolutionSizes& s, std::byte* work) {
  const std::int64_t last = taps - 1;
  return {s.n, {s.out_h, s.out_w, s.out}, {s.h, s.w, s.in}, last - s.conv.pad_h, last - s.conv.pad_w, work};
}

void run(int threads, const Pass& p, const ConstView& x, const ConstView& weight, bool transposed,
         const float* bias, Activation activation, const View& y) {
  const std::int64_t out = transposed ? p.x.channels : p.y.channels,
                     in = transposed ? p.y.channels : p.x.channels;
  with_element_type("winograd", "x", x, [&](auto type) {
    using T = decltype(type);
    transform_kernels(threads, weight.as<T>(), out, in, transposed, p.u);
    for (std::int64_t first = 0; first < p.tiles.count; first += p.tiles.chunk) {
      const std::int64_t count = std::min(p.tiles.chunk, p.tiles.count - first);
      transform_inputs(threads, x.as<T>(), p.x, p.pad_h, p.pad_w, p.tiles, first, count, p.v);
      multiply(threads, p.v, p.u, count, p.m);
      transform_outputs(threads, p.m, p.tiles, first, count, bias, activation, y.as<T>(), p.y);
    }
  });
}

// The gradient of the kernels.
struct WeightsPass {
  Image x, y;
  Tiles tiles;
  Planes v, e, du;
  float* tile_sums;  // [tiles of a chunk, out]
  double* sums;      // [out]

  WeightsPass(const ConvolutionSizes& s, std::byte* work)
      : x{s.h, s.w, s.in},
        y{s.out_h, s.out_w, s.out},
        tiles(s.n, y.h, y.w, x.channels + y.channels),
        v(reinterpret_cast<float*>(work), x.blocks(), tiles.chunk),
        e(v.data + v.floats(), y.blocks(), tiles.chunk),
        du(e.data + e.floats(), x.blocks(), y.channels),
        tile_sums(du.data + du.floats()),
        sums(reinterpret_cast<double*>(tile_sums + tiles.chunk * y.channels)) {}

  std::size_t bytes() const {
    const std::int64_t floats = v.floats() + e.floats() + du.floats() + tiles.chunk * y.channels;
    return static_cast<std::size_t>(floats) * sizeof(float) +
           static_cast<std::size_t>(y.channels) * sizeof(double);
  }
};

// du (+)= v e for each point, over `count` tiles.
void multiply_gradients(int threads, const WeightsPass& p, std::int64_t count, bool accumulate) {
  const std::int64_t v_stride = p.v.tiles * lanes, du_stride = p.du.tiles * lanes;
  for_columns(threads, p.v.blocks, [&](std::int64_t point, std::int64_t block, bool whole) {
    const float* v = p.v.at(point, block);
    for (std::int64_t k = 0; k < p.y.channels; k += half_rows) {
      const float* e = p.e.at(point, k / lanes) + k % lanes;
      float* out = p.du.at(point, block) + k * lanes;
      if (whole) {
        multiply_over_rows<half_rows, product_columns>(e, v, v_stride, count, out, du_stride, accumulate);
      } else {
        multiply_over_rows<half_rows, 1>(e, v, v_stride, count, out, du_stride, accumulate);
      }
    }
  });
}

}  // namespace

bool applies(const ConvolutionSizes& s) {
  const Conv2d& c = s.conv;
  const bool kernel = c.kernel_h == taps && c.kernel_w == taps && c.stride_h == 1 && c.stride_w == 1 &&
                      c.pad_h < taps && c.pad_w < taps && c.groups == 1;
  // Fewer channels hardly pay for the transforms and for what they round.
  constexpr std::int64_t least_channels = 64;
  const bool channels =
      s.in % lanes == 0 && s.out % lanes == 0 && s.in >= least_channels && s.out >= least_channels;
  // At most half of the definition's multiplications, in tiles that may hang over the image.
  const auto saves = [](std::int64_t h, std::int64_t w) {
    return 2 * points * ceil_div(h, outputs) * ceil_div(w, outputs) <= taps * taps * h * w;
  };
  return has_wide_vectors && kernel && channels && saves(s.h, s.w) && saves(s.out_h, s.out_w);
}

std::size_t forward_bytes(const ConvolutionSizes& sizes) {
  return forward_pass(sizes, nullptr).bytes();
}
std::size_t backward_data_bytes(const ConvolutionSizes& sizes) {
  return backward_data_pass(sizes, nullptr).bytes();
}
std::size_t backward_weights_bytes(const ConvolutionSizes& sizes) {
  return WeightsPass(sizes, nullptr).bytes();
}

void forward(int threads, const ConvolutionSizes& sizes, const ConstView& x, const ConstView& weight,
             const ConstView& bias, Activation activation, const View& y, std::byte* work) {
  run(threads, forward_pass(sizes, work), x, weight, false, bias.empty() ? nullptr : bias.as<float>(),
      activation, y);
}

void backward_data(int threads, const ConvolutionSizes& sizes, const ConstView& dy, const ConstView& weight,
                   const View& dx, std::byte* work) {
  run(threads, backward_data_pass(sizes, work), dy, weight, true, nullptr, Activation::none, dx);
}

void backward_weights(int threads, const ConvolutionSizes& sizes, const ConstView& x, const ConstView& dy,
                      const View& dweight, const View& dbias, bool accumulate, std::byte* work) {
  const WeightsPass p(sizes, work);
  float* const tile_sums = dbias.empty() ? nullptr : p.tile_sums;
  with_element_type("winograd", "x", x, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t first = 0; first < p.tiles.count; first += p.tiles.chunk) {
      const std::int64_t count = std::min(p.tiles.chunk, p.tiles.count - first);
      transform_inputs(threads, x.as<T>(), p.x, sizes.conv.pad_h, sizes.conv.pad_w, p.tiles, first, count,
                       p.v);
      transform_output_gradients(threads, dy.as<T>(), p.y, p.tiles, first, count, p.e, tile_sums);
      multiply_gradients(threads, p, count, first > 0);
      if (tile_sums != nullptr) add_tile_sums(threads, tile_sums, count, sizes.out, p.sums, first > 0);
    }
  });
  transform_kernel_gradients(threads, p.du, sizes.in, dweight.as<float>(), accumulate);
  if (dbias.empty()) return;
  auto* const gradient = dbias.as<float>();
  for (std::int64_t k = 0; k < sizes.out; ++k)
    gradient[k] = static_cast<float>(p.sums[k]) + (accumulate ? gradient[k] : 0.0f);
}

}  // namespace motley::winograd
