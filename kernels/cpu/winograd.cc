#include "kernels/cpu/winograd.h"

#include <algorithm>
#include <vector>

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
//
// Numbers of kernels are four times as many as kernels, and of large kernels more than all tiles of a small batch of small
// images have: then there is one chunk, and what is made of some kernels, and of the tiles with them, is made for one group
// of columns after the other, and never lies in memory as a whole.
struct Tiles {
  // `kept`: channels of all that is kept of a tile for the products when they are made by columns.
  Tiles(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t in, std::int64_t out, std::int64_t kept)
      : down(ceil_div(h, outputs)), across(ceil_div(w, outputs)), count(n * down * across) {
    constexpr std::int64_t group = product_rows, large_kernels = 1 << 19, kept_floats = 5 << 19;
    const std::int64_t all = ceil_div(count, group) * group;
    by_columns = points * in * out >= large_kernels && points * all * kept <= kept_floats;
    // The numbers of a chunk stay in the last cache.
    constexpr std::int64_t chunk_floats = 3 << 19;
    chunk = std::clamp(chunk_floats / (points * (in + out)) / group * group, group, 32 * group);
    chunk = by_columns ? all : std::min(chunk, all);
  }
  std::int64_t down, across, count, chunk;
  bool by_columns;
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

// Columns from `block` on of m = v u for one point: v of `tiles` tiles and u [points, blocks of outputs, channels, lanes].
void multiply_columns(const Planes& v, const Planes& u, std::int64_t point, std::int64_t block, bool whole,
                      std::int64_t tiles, const Planes& m) {
  const std::int64_t v_stride = v.tiles * lanes, u_stride = u.tiles * lanes, m_stride = m.tiles * lanes;
  const float* right = u.at(point, block);
  for (std::int64_t tile = 0; tile < tiles; tile += product_rows) {
    const float* left = v.at(point, 0) + tile * lanes;
    float* out = m.at(point, block) + tile * lanes;
    if (whole) {
      multiply_rows<product_rows, product_columns>(left, v_stride, v.blocks, right, u_stride, out, m_stride);
    } else {
      multiply_rows<product_rows, 1>(left, v_stride, v.blocks, right, u_stride, out, m_stride);
    }
  }
}

void multiply(int threads, const Planes& v, const Planes& u, std::int64_t tiles, const Planes& m) {
  for_columns(threads, m.blocks, [&](std::int64_t point, std::int64_t block, bool whole) {
    multiply_columns(v, u, point, block, whole, tiles, m);
  });
}

// body(first block, blocks, thread) for groups of product_columns blocks.
template <class Body>
void for_groups(int threads, std::int64_t blocks, const Body& body) {
  parallel_for_threads(threads, ceil_div(blocks, product_columns), [&](std::int64_t group, int thread) {
    const std::int64_t first = group * product_columns;
    body(first, std::min<std::int64_t>(product_columns, blocks - first), thread);
  });
}

// --- Kernels ----------------------------------------------------------------------------------------------

// u = G g G^T of kernels weight [out, in, 3, 3], as [points, blocks of columns, rows, lanes]. Forwards rows are inputs
// and columns outputs; for the gradient of the input it is the other way round, and kernels are mirrored.
template <class T>
struct Kernels {
  const T* weight;
  std::int64_t out, in;
  bool transposed;

  std::int64_t rows() const { return transposed ? out : in; }

  // Rows [begin, end) of block `block`, to block `to` of u.
  void transform(std::int64_t block, std::int64_t begin, std::int64_t end, const Planes& u,
                 std::int64_t to) const {
    constexpr int size = taps * taps;
    const std::int64_t column_stride = (transposed ? 1 : in) * size,
                       row_stride = (transposed ? in : 1) * size;
    for (std::int64_t row = begin; row < end; ++row) {
      const T* from = weight + block * lanes * column_stride + row * row_stride;
      float values[size][lanes];
      for (int lane = 0; lane < lanes; ++lane)
        for (int tap = 0; tap < size; ++tap) values[tap][lane] = to_float(from[lane * column_stride + tap]);
      Vec kernel[taps][taps], transformed[inputs][inputs];
      for (int tap = 0; tap < size; ++tap) {
        const int place = transposed ? size - 1 - tap : tap;
        kernel[place / taps][place % taps] = load(values[tap]);
      }
      both_ways(of_kernel, kernel, transformed);
      put(transformed, u, to, row);
    }
  }
};

template <class T>
void transform_kernels(int threads, const Kernels<T>& kernels, const Planes& u) {
  constexpr std::int64_t rows_of_task = 64;
  const std::int64_t tasks = ceil_div(kernels.rows(), rows_of_task);
  parallel_for(threads, u.blocks * tasks, [&](std::int64_t index) {
    const std::int64_t block = index / tasks, begin = index % tasks * rows_of_task;
    kernels.transform(block, begin, std::min(kernels.rows(), begin + rows_of_task), u, block);
  });
}

// Channels of block `block` of dweight [out, in, 3, 3] (+)= G^T du G of block `from` of du [points, blocks of in, out,
// lanes], for one `k` of out.
void transform_kernel_gradient(const Planes& du, std::int64_t from, std::int64_t k, std::int64_t in,
                               std::int64_t block, float* dweight, bool accumulate) {
  constexpr int size = taps * taps;
  Vec transformed[inputs][inputs], kernel[taps][taps];
  get(du, from, k, transformed);
  both_ways(to_kernel, transformed, kernel);
  float values[size][lanes];
  for (int tap = 0; tap < size; ++tap) store(values[tap], kernel[tap / taps][tap % taps]);
  float* to = dweight + (k * in + block * lanes) * size;
  for (int lane = 0; lane < lanes; ++lane) {
    for (int tap = 0; tap < size; ++tap) {
      float& gradient = to[lane * size + tap];
      gradient = values[tap][lane] + (accumulate ? gradient : 0.0f);
    }
  }
}

void transform_kernel_gradients(int threads, const Planes& du, std::int64_t in, float* dweight,
                                bool accumulate) {
  parallel_for(threads, du.tiles, [&](std::int64_t k) {
    for (std::int64_t block = 0; block < du.blocks; ++block)
      transform_kernel_gradient(du, block, k, in, block, dweight, accumulate);
  });
}

// --- Results ----------------------------------------------------------------------------------------------

// What becomes of products m: y = activation(A^T m A + bias); bias may be null.
template <class T>
struct Outputs {
  T* y;
  const Image& image;
  const Tiles& tiles;
  const float* bias;
  Activation activation;

  // Channels of block `block` of tile `index`, from that tile less `first` and block `from` of m.
  void transform(const Planes& m, std::int64_t from, std::int64_t first, std::int64_t index,
                 std::int64_t block) const {
    const Place place(tiles, index);
    const auto rows = std::min<std::int64_t>(outputs, image.h - place.top);
    const auto columns = std::min<std::int64_t>(outputs, image.w - place.left);
    T* const corner = y + ((place.sample * image.h + place.top) * image.w + place.left) * image.channels;
    Vec products[inputs][inputs], tile[outputs][outputs];
    get(m, from, index - first, products);
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
};

template <class T>
void transform_outputs(int threads, const Planes& m, std::int64_t first, std::int64_t count,
                       const Outputs<T>& to) {
  parallel_for(threads, count, [&](std::int64_t index) {
    for (std::int64_t block = 0; block < m.blocks; ++block)
      to.transform(m, block, first, first + index, block);
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

// Parts of the working memory, one behind the other.
class Parts {
 public:
  explicit Parts(std::byte* work) : work_(work) {}
  Planes planes(std::int64_t blocks, std::int64_t tiles) {
    Planes planes(reinterpret_cast<float*>(work_ + bytes_), blocks, tiles);
    bytes_ += static_cast<std::size_t>(planes.floats()) * sizeof(float);
    return planes;
  }
  // Several of one size.
  std::vector<Planes> planes(int count, std::int64_t blocks, std::int64_t tiles) {
    std::vector<Planes> several;
    for (int i = 0; i < count; ++i) several.push_back(planes(blocks, tiles));
    return several;
  }
  template <class T>
  T* numbers(std::int64_t count) {
    T* const first = reinterpret_cast<T*>(work_ + bytes_);
    bytes_ += static_cast<std::size_t>(count) * sizeof(T);
    return first;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* work_;
  std::size_t bytes_ = 0;
};

// A convolution from x to y: the forward pass, or the gradient of its input.
struct Pass {
  Image x, y;
  std::int64_t pad_h, pad_w;
  Tiles tiles;
  Parts parts;
  Planes v;
  // Of the kernels and of the products; by columns, of a group of them, one of each per thread.
  std::vector<Planes> u, m;

  Pass(int threads, std::int64_t n, const Image& x_, const Image& y_, std::int64_t pad_h_,
       std::int64_t pad_w_, std::byte* work)
      : x(x_),
        y(y_),
        pad_h(pad_h_),
        pad_w(pad_w_),
        tiles(n, y.h, y.w, x.channels, y.channels, x.channels),
        parts(work),
        v(parts.planes(x.blocks(), tiles.chunk)),
        u(parts.planes(tiles.by_columns ? threads : 1, columns(), x.channels)),
        m(parts.planes(tiles.by_columns ? threads : 1, columns(), tiles.chunk)) {}

  std::int64_t columns() const { return tiles.by_columns ? product_columns : y.blocks(); }
};

Pass forward_pass(int threads, const ConvolutionSizes& s, std::byte* work) {
  return {threads, s.n, {s.h, s.w, s.in}, {s.out_h, s.out_w, s.out}, s.conv.pad_h, s.conv.pad_w, work};
}

Pass backward_data_pass(int threads, const ConvolutionSizes& s, std::byte* work) {
  const std::int64_t last = taps - 1;
  return {threads, s.n, {s.out_h, s.out_w, s.out}, {s.h, s.w, s.in}, last - s.conv.pad_h, last - s.conv.pad_w,
          work};
}

template <class T>
void multiply_by_columns(int threads, const Pass& p, const Kernels<T>& kernels, const Outputs<T>& results) {
  for_groups(threads, p.y.blocks(), [&](std::int64_t first, std::int64_t blocks, int thread) {
    const Planes &u = p.u[static_cast<std::size_t>(thread)], &m = p.m[static_cast<std::size_t>(thread)];
    for (std::int64_t b = 0; b < blocks; ++b) kernels.transform(first + b, 0, kernels.rows(), u, b);
    for (std::int64_t point = 0; point < points; ++point)
      multiply_columns(p.v, u, point, 0, blocks == product_columns, p.tiles.count, m);
    for (std::int64_t tile = 0; tile < p.tiles.count; ++tile)
      for (std::int64_t b = 0; b < blocks; ++b) results.transform(m, b, 0, tile, first + b);
  });
}

void run(int threads, const Pass& p, const ConstView& x, const ConstView& weight, bool transposed,
         const float* bias, Activation activation, const View& y) {
  const std::int64_t out = transposed ? p.x.channels : p.y.channels,
                     in = transposed ? p.y.channels : p.x.channels;
  with_element_type("winograd", "x", x, [&](auto type) {
    using T = decltype(type);
    const Kernels<T> kernels{weight.as<T>(), out, in, transposed};
    const Outputs<T> results{y.as<T>(), p.y, p.tiles, bias, activation};
    if (!p.tiles.by_columns) transform_kernels(threads, kernels, p.u[0]);
    for (std::int64_t first = 0; first < p.tiles.count; first += p.tiles.chunk) {
      const std::int64_t count = std::min(p.tiles.chunk, p.tiles.count - first);
      transform_inputs(threads, x.as<T>(), p.x, p.pad_h, p.pad_w, p.tiles, first, count, p.v);
      if (p.tiles.by_columns) {
        multiply_by_columns(threads, p, kernels, results);
      } else {
        multiply(threads, p.v, p.u[0], count, p.m[0]);
        transform_outputs(threads, p.m[0], first, count, results);
      }
    }
  });
}

// The gradient of the kernels.
struct WeightsPass {
  Image x, y;
  Tiles tiles;
  Parts parts;
  double* sums;  // [out]
  Planes v, e;
  std::vector<Planes> du;  // as u of Pass
  float* tile_sums;        // [tiles of a chunk, out]

  WeightsPass(int threads, const ConvolutionSizes& s, std::byte* work)
      : x{s.h, s.w, s.in},
        y{s.out_h, s.out_w, s.out},
        tiles(s.n, y.h, y.w, x.channels, y.channels, x.channels + y.channels),
        parts(work),
        sums(parts.numbers<double>(y.channels)),
        v(parts.planes(x.blocks(), tiles.chunk)),
        e(parts.planes(y.blocks(), tiles.chunk)),
        du(parts.planes(tiles.by_columns ? threads : 1, tiles.by_columns ? product_columns : x.blocks(),
                        y.channels)),
        tile_sums(parts.numbers<float>(tiles.chunk * y.channels)) {}
};

// Columns from `block` on of du, and from `from` on of v: du (+)= v e for one point, over `count` tiles.
void multiply_gradient_columns(const WeightsPass& p, std::int64_t point, std::int64_t from, bool whole,
                               std::int64_t count, const Planes& du, std::int64_t block, bool accumulate) {
  const std::int64_t v_stride = p.v.tiles * lanes, du_stride = du.tiles * lanes;
  const float* v = p.v.at(point, from);
  for (std::int64_t k = 0; k < p.y.channels; k += half_rows) {
    const float* e = p.e.at(point, k / lanes) + k % lanes;
    float* out = du.at(point, block) + k * lanes;
    if (whole) {
      multiply_over_rows<half_rows, product_columns>(e, v, v_stride, count, out, du_stride, accumulate);
    } else {
      multiply_over_rows<half_rows, 1>(e, v, v_stride, count, out, du_stride, accumulate);
    }
  }
}

void multiply_gradients(int threads, const WeightsPass& p, std::int64_t count, bool accumulate) {
  for_columns(threads, p.v.blocks, [&](std::int64_t point, std::int64_t block, bool whole) {
    multiply_gradient_columns(p, point, block, whole, count, p.du[0], block, accumulate);
  });
}

void multiply_gradients_by_columns(int threads, const WeightsPass& p, float* dweight, bool accumulate) {
  for_groups(threads, p.x.blocks(), [&](std::int64_t first, std::int64_t blocks, int thread) {
    const Planes& du = p.du[static_cast<std::size_t>(thread)];
    for (std::int64_t point = 0; point < points; ++point)
      multiply_gradient_columns(p, point, first, blocks == product_columns, p.tiles.count, du, 0, false);
    for (std::int64_t k = 0; k < p.y.channels; ++k)
      for (std::int64_t b = 0; b < blocks; ++b)
        transform_kernel_gradient(du, b, k, p.x.channels, first + b, dweight, accumulate);
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

std::size_t forward_bytes(int threads, const ConvolutionSizes& sizes) {
  return forward_pass(threads, sizes, nullptr).parts.bytes();
}
std::size_t backward_data_bytes(int threads, const ConvolutionSizes& sizes) {
  return backward_data_pass(threads, sizes, nullptr).parts.bytes();
}
std::size_t backward_weights_bytes(int threads, const ConvolutionSizes& sizes) {
  return WeightsPass(threads, sizes, nullptr).parts.bytes();
}

void forward(int threads, const ConvolutionSizes& sizes, const ConstView& x, const ConstView& weight,
             const ConstView& bias, Activation activation, const View& y, std::byte* work) {
  run(threads, forward_pass(threads, sizes, work), x, weight, false,
      bias.empty() ? nullptr : bias.as<float>(), activation, y);
}

void backward_data(int threads, const ConvolutionSizes& sizes, const ConstView& dy, const ConstView& weight,
                   const View& dx, std::byte* work) {
  run(threads, backward_data_pass(threads, sizes, work), dy, weight, true, nullptr, Activation::none, dx);
}

void backward_weights(int threads, const ConvolutionSizes& sizes, const ConstView& x, const ConstView& dy,
                      const View& dweight, const View& dbias, bool accumulate, std::byte* work) {
  const WeightsPass p(threads, sizes, work);
  float* const tile_sums = dbias.empty() ? nullptr : p.tile_sums;
  auto* const gradient = dweight.as<float>();
  with_element_type("winograd", "x", x, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t first = 0; first < p.tiles.count; first += p.tiles.chunk) {
      const std::int64_t count = std::min(p.tiles.chunk, p.tiles.count - first);
      transform_inputs(threads, x.as<T>(), p.x, sizes.conv.pad_h, sizes.conv.pad_w, p.tiles, first, count,
                       p.v);
      transform_output_gradients(threads, dy.as<T>(), p.y, p.tiles, first, count, p.e, tile_sums);
      if (p.tiles.by_columns) {
        multiply_gradients_by_columns(threads, p, gradient, accumulate);
      } else {
        multiply_gradients(threads, p, count, first > 0);
      }
      if (tile_sums != nullptr) add_tile_sums(threads, tile_sums, count, sizes.out, p.sums, first > 0);
    }
  });
  if (!p.tiles.by_columns) transform_kernel_gradients(threads, p.du[0], sizes.in, gradient, accumulate);
  if (dbias.empty()) return;
  auto* const bias = dbias.as<float>();
  for (std::int64_t k = 0; k < sizes.out; ++k)
    bias[k] = static_cast<float>(p.sums[k]) + (accumulate ? bias[k] : 0.0f);
}

}  // namespace motley::winograd
