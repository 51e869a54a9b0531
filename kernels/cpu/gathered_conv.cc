#include "kernels/cpu/gathered_conv.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_products.h"
#include "kernels/cpu/wide_vectors.h"

namespace motley::gathered {
namespace {

constexpr std::int64_t round_up(std::int64_t count) {
  return ceil_div(count, lanes) * lanes;
}

// One dimension of a convolution: output o, which lies at first + o * step of the image that is written, is made of what
// lies at o * stride + offset of the image that is read, for each offset, under tap `tap` of the kernel.
struct Dimension {
  std::int64_t outputs = 0, first = 0, step = 1;
  std::int64_t stride = 1;
  struct Tap {
    std::int64_t offset, tap;
  };
  std::vector<Tap> taps;
};

Dimension forward_dimension(std::int64_t outputs, std::int64_t kernel, std::int64_t stride,
                            std::int64_t pad) {
  Dimension d{outputs, 0, 1, stride, {}};
  for (std::int64_t tap = 0; tap < kernel; ++tap) d.taps.push_back({tap - pad, tap});
  return d;
}

// Of the gradient of the input, at every stride-th place from `phase` on: the taps that meet these places.
Dimension backward_dimension(std::int64_t inputs, std::int64_t kernel, std::int64_t stride, std::int64_t pad,
                             std::int64_t phase) {
  Dimension d{ceil_div(inputs - phase, stride), phase, stride, 1, {}};
  for (std::int64_t tap = 0; tap < kernel; ++tap) {
    const std::int64_t distance = phase + pad - tap;
    if (distance % stride == 0) d.taps.push_back({distance / stride, tap});
  }
  return d;
}

struct Image {
  std::int64_t h, w, channels;
};

// Rows of the product: the outputs of all samples, line by line, with `depth` inputs each, channels of one tap together.
struct Rows {
  Rows(std::int64_t n_, const Image& from_, Dimension down_, Dimension across_)
      : n(n_), from(from_), down(std::move(down_)), across(std::move(across_)) {
    taps = std::ssize(down.taps) * std::ssize(across.taps);
    depth = taps * from.channels;
    blocks = ceil_div(depth, lanes);
    count = n * down.outputs * across.outputs;
  }

  std::int64_t n;
  Image from;
  Dimension down, across;
  std::int64_t taps, depth, blocks, count;
};

// The `count` channels under one tap, or zeros (from = null), to elements [first, first + count) of a packed row.
template <class T>
void place(const T* from, std::int64_t count, std::int64_t first, float* row, std::int64_t block_stride) {
  if (first % lanes == 0 && count % lanes == 0) {
    float* to = row + first / lanes * block_stride;
    for (std::int64_t c = 0; c < count; c += lanes, to += block_stride)
      store(to, from == nullptr ? zero_vec() : load(from + c));
    return;
  }
  for (std::int64_t c = 0; c < count; ++c) {
    const std::int64_t d = first + c;
    row[d / lanes * block_stride + d % lanes] = from == nullptr ? 0.0f : to_float(from[c]);
  }
}

// packed [blocks][capacity][lanes] = rows [first, first + count) of x, zeros behind their depth.
template <class T>
void gather(const Rows& rows, const T* x, std::int64_t first, std::int64_t count, float* packed,
            std::int64_t capacity) {
  const Image& image = rows.from;
  const std::int64_t stride = capacity * lanes;
  std::int64_t across = first % rows.across.outputs, line = first / rows.across.outputs;
  std::int64_t down = line % rows.down.outputs;
  const T* sample = x + line / rows.down.outputs * image.h * image.w * image.channels;
  for (std::int64_t index = 0; index < count; ++index) {
    float* const to = packed + index * lanes;
    std::int64_t d = 0;
    for (const Dimension::Tap& r : rows.down.taps) {
      const std::int64_t h = down * rows.down.stride + r.offset;
      for (const Dimension::Tap& s : rows.across.taps) {
        const std::int64_t w = across * rows.across.stride + s.offset;
        const bool inside = h >= 0 && h < image.h && w >= 0 && w < image.w;
        place(inside ? sample + (h * image.w + w) * image.channels : nullptr, image.channels, d, to, stride);
        d += image.channels;
      }
    }
    for (; d < rows.blocks * lanes; ++d) to[d / lanes * stride + d % lanes] = 0;
    if (++across < rows.across.outputs) continue;
    across = 0;
    if (++down < rows.down.outputs) continue;
    down = 0;
    sample += image.h * image.w * image.channels;
  }
}

// A kernel [out, in, h, w] as the other operand: how far apart its neighbours are.
struct Kernel {
  const float* data;
  std::int64_t column, channel, width;  // columns of the product, channels of its rows, taps of a line
};

// packed [blocks of columns][rows.blocks * lanes][lanes], zeros behind the depth and the columns.
void pack_kernel(int threads, const Rows& rows, const Kernel& kernel, std::int64_t columns, float* packed) {
  const std::int64_t stride = rows.blocks * lanes * lanes;
  const auto across = std::ssize(rows.across.taps);
  parallel_for(threads, ceil_div(columns, lanes) * rows.taps, [&](std::int64_t index) {
    const std::int64_t block = index / rows.taps, tap = index % rows.taps;
    const auto& r = rows.down.taps[static_cast<std::size_t>(tap / across)];
    const auto& s = rows.across.taps[static_cast<std::size_t>(tap % across)];
    const float* from = kernel.data + block * lanes * kernel.column + r.tap * kernel.width + s.tap;
    float* to = packed + block * stride + tap * rows.from.channels * lanes;
    const auto width = static_cast<int>(std::min<std::int64_t>(lanes, columns - block * lanes));
    for (std::int64_t channel = 0; channel < rows.from.channels; ++channel, to += lanes) {
      for (int lane = 0; lane < width; ++lane)
        to[lane] = from[lane * kernel.column + channel * kernel.channel];
      for (int lane = width; lane < lanes; ++lane) to[lane] = 0;
    }
    if (tap == rows.taps - 1) std::fill(to, packed + (block + 1) * stride, 0.0f);
  });
}

// What is computed at a time by one thread: a few rows with the whole kernel where that fills at most half of the second
// cache, so that memory is read and written in order; of larger kernels more rows with a few columns after the other.
std::int64_t rows_at_once(const Rows& rows, std::int64_t columns) {
  constexpr std::int64_t floats = 1 << 17, most = 16 * product_rows;
  const std::int64_t depth = std::max<std::int64_t>(rows.blocks * lanes, 1);
  if (depth * columns <= floats) return product_rows;
  return std::clamp<std::int64_t>(floats / depth / product_rows * product_rows, 2 * product_rows, most);
}

// Where the result of a row lies.
struct Target {
  const Rows& rows;
  Image image;
  float* data;

  // Rows lie one behind the other.
  bool in_order() const { return rows.down.step == 1 && rows.across.step == 1; }

  float* of(std::int64_t row) const {
    const std::int64_t line = row / rows.across.outputs, sample = line / rows.down.outputs;
    const std::int64_t h = rows.down.first + line % rows.down.outputs * rows.down.step;
    const std::int64_t w = rows.across.first + row % rows.across.outputs * rows.across.step;
    return data + ((sample * image.h + h) * image.w + w) * image.channels;
  }
};

constexpr int columns_at_once = product_columns * lanes;

// Up to product_rows rows of the result, and up to columns_at_once columns from `column` on.
void multiply_some(const Rows& rows, const float* packed, std::int64_t capacity, const float* kernel,
                   const float* bias, const Target& target, std::int64_t first, std::int64_t count,
                   std::int64_t column) {
  const std::int64_t columns = target.image.channels;
  const auto width = static_cast<int>(std::min<std::int64_t>(columns_at_once, columns - column));
  const std::int64_t kernel_stride = rows.blocks * lanes * lanes;
  const float* right = kernel + column / lanes * kernel_stride;
  alignas(64) float begin[columns_at_once] = {}, sums[product_rows][columns_at_once];
  if (bias != nullptr) std::copy_n(bias + column, width, begin);
  const bool direct = target.in_order() && width == columns_at_once && count == product_rows;
  float* const out = direct ? target.of(first) + column : sums[0];
  const std::int64_t out_stride = direct ? columns : columns_at_once;
  if (width > columns_at_once - lanes) {
    Vec start[product_columns];
    for (int j = 0; j < product_columns; ++j) start[j] = load(begin + j * lanes);
    multiply_rows<product_rows, product_columns>(packed, capacity * lanes, rows.blocks, right, kernel_stride,
                                                 start, out, out_stride, lanes);
  } else {
    multiply_rows<product_rows, 1>(packed, capacity * lanes, rows.blocks, right, kernel_stride, {load(begin)},
                                   out, out_stride, lanes);
  }
  if (direct) return;
  for (std::int64_t i = 0; i < count; ++i) {
    float* const to = target.of(first + i) + column;
    if (width == columns_at_once) {
      for (int j = 0; j < columns_at_once; j += lanes) store(to + j, load(sums[i] + j));
    } else {
      std::copy_n(sums[i], width, to);
    }
  }
}

std::size_t product_floats(int threads, const Rows& rows, std::int64_t columns) {
  return static_cast<std::size_t>(rows.blocks * lanes *
                                  (round_up(columns) + threads * rows_at_once(rows, columns)));
}

// target = rows of x times kernel, plus bias, which may be null. work: product_floats.
void multiply(int threads, const Rows& rows, const float* x, const Kernel& kernel, const float* bias,
              const Target& target, float* work) {
  const std::int64_t columns = target.image.channels, capacity = rows_at_once(rows, columns);
  float* const packed_kernel = work;
  pack_kernel(threads, rows, kernel, columns, packed_kernel);
  float* const packed = packed_kernel + rows.blocks * lanes * round_up(columns);
  const std::int64_t groups = ceil_div(columns, columns_at_once), pieces = ceil_div(rows.count, capacity);
  // Where there are few pieces for many threads, columns are divided too.
  const std::int64_t parts = std::clamp<std::int64_t>(ceil_div(4 * threads, pieces), 1, groups);
  parallel_for_threads(threads, pieces * parts, [&](std::int64_t index, int thread) {
    const std::int64_t first = index / parts * capacity, count = std::min(capacity, rows.count - first);
    const std::int64_t part = index % parts;
    float* const own = packed + thread * capacity * rows.blocks * lanes;
    gather(rows, x, first, count, own, capacity);
    for (std::int64_t group = groups * part / parts; group < groups * (part + 1) / parts; ++group) {
      for (std::int64_t row = 0; row < count; row += product_rows) {
        multiply_some(rows, own + row * lanes, capacity, packed_kernel, bias, target, first + row,
                      std::min<std::int64_t>(product_rows, count - row), group * columns_at_once);
      }
    }
  });
}

Rows forward_rows(const ConvolutionSizes& s) {
  const Conv2d& c = s.conv;
  return {s.n,
          {s.h, s.w, s.in},
          forward_dimension(s.out_h, c.kernel_h, c.stride_h, c.pad_h),
          forward_dimension(s.out_w, c.kernel_w, c.stride_w, c.pad_w)};
}

// Of the pixels of the input whose coordinates leave these rests.
Rows backward_rows(const ConvolutionSizes& s, std::int64_t rest_h, std::int64_t rest_w) {
  const Conv2d& c = s.conv;
  return {s.n,
          {s.out_h, s.out_w, s.out},
          backward_dimension(s.h, c.kernel_h, c.stride_h, c.pad_h, rest_h),
          backward_dimension(s.w, c.kernel_w, c.stride_w, c.pad_w, rest_w)};
}

// body(rows) for all rests; those that lie outside of a small image have no rows.
template <class Body>
void for_rests(const ConvolutionSizes& s, const Body& body) {
  for (std::int64_t h = 0; h < std::min(s.conv.stride_h, s.h); ++h)
    for (std::int64_t w = 0; w < std::min(s.conv.stride_w, s.w); ++w) body(backward_rows(s, h, w));
}

// The gradient of the kernel: what a chunk of rows takes.
struct WeightsWork {
  Rows rows;
  std::int64_t out, capacity;
  float *x, *dy;   // the chunk, [blocks][capacity][lanes] each
  float* sum;      // [rows.blocks][round_up(out)][lanes]
  double* biases;  // [round_up(out)]

  WeightsWork(const ConvolutionSizes& s, std::byte* work) : rows(forward_rows(s)), out(s.out) {
    // The numbers of a chunk stay in the last cache.
    constexpr std::int64_t floats = 1 << 20;
    const std::int64_t width = rows.blocks * lanes + round_up(out);
    capacity = std::min(std::clamp<std::int64_t>(floats / width, 96, 1024), rows.count);
    biases = reinterpret_cast<double*>(work);
    x = reinterpret_cast<float*>(biases + round_up(out));
    dy = x + capacity * rows.blocks * lanes;
    sum = dy + capacity * round_up(out);
  }
  std::size_t bytes() const {
    const std::int64_t floats = (capacity + round_up(out)) * rows.blocks * lanes + capacity * round_up(out);
    return static_cast<std::size_t>(floats) * sizeof(float) +
           static_cast<std::size_t>(round_up(out)) * sizeof(double);
  }
};

template <class T>
void pack_chunk(int threads, const WeightsWork& p, const T* x, const T* dy, std::int64_t first,
                std::int64_t count) {
  constexpr std::int64_t rows_of_task = 16;
  parallel_blocks(threads, count, rows_of_task, [&](std::int64_t begin, std::int64_t end) {
    gather(p.rows, x, first + begin, end - begin, p.x + begin * lanes, p.capacity);
    for (std::int64_t row = begin; row < end; ++row) {
      float* const to = p.dy + row * lanes;
      place(dy + (first + row) * p.out, p.out, 0, to, p.capacity * lanes);
      for (std::int64_t k = p.out; k < round_up(p.out); ++k)
        to[k / lanes * p.capacity * lanes + k % lanes] = 0;
    }
  });
}

// p.sum (+)= the chunk's part of the gradient.
void multiply_chunk(int threads, const WeightsWork& p, std::int64_t count, bool accumulate) {
  const std::int64_t groups = round_up(p.out) / half_rows;
  const std::int64_t stride = p.capacity * lanes, sum_stride = round_up(p.out) * lanes;
  parallel_for(threads, ceil_div(p.rows.blocks, product_columns) * groups, [&](std::int64_t index) {
    const std::int64_t block = index / groups * product_columns, k = index % groups * half_rows;
    const float* left = p.dy + k / lanes * stride + k % lanes;
    const float* right = p.x + block * stride;
    float* const out = p.sum + block * sum_stride + k * lanes;
    if (block + product_columns <= p.rows.blocks) {
      multiply_over_rows<half_rows, product_columns>(left, right, stride, count, out, sum_stride, accumulate);
    } else {
      multiply_over_rows<half_rows, 1>(left, right, stride, count, out, sum_stride, accumulate);
    }
  });
}

// p.biases (+)= the sums of the chunk's dy, in float32 over runs of rows, then in float64.
void add_biases(int threads, const WeightsWork& p, std::int64_t count, bool accumulate) {
  constexpr std::int64_t run = 32;
  parallel_for(threads, round_up(p.out) / lanes, [&](std::int64_t block) {
    double* const sums = p.biases + block * lanes;
    if (!accumulate) std::fill_n(sums, lanes, 0.0);
    const float* terms = p.dy + block * p.capacity * lanes;
    for (std::int64_t first = 0; first < count; first += run) {
      Vec sum = zero_vec();
      for (std::int64_t row = first; row < std::min(count, first + run); ++row)
        sum += load(terms + row * lanes);
      for (int lane = 0; lane < lanes; ++lane) sums[lane] += static_cast<double>(sum[lane]);
    }
  });
}

// dweight [out, in, taps] (+)= p.sum. A few kernels at a time, of which p.sum has neighbouring numbers.
void unpack_gradient(int threads, const WeightsWork& p, float* dweight, bool accumulate) {
  constexpr std::int64_t kernels_at_once = 8;
  const std::int64_t in = p.rows.from.channels, taps = p.rows.taps, sum_stride = round_up(p.out) * lanes;
  parallel_blocks(threads, p.out, kernels_at_once, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = 0; first < in; first += lanes) {
      const std::int64_t last = std::min<std::int64_t>(in, first + lanes);
      for (std::int64_t k = begin; k < end; ++k) {
        const float* from = p.sum + k * lanes;
        float* const to = dweight + k * in * taps;
        for (std::int64_t tap = 0; tap < taps; ++tap) {
          for (std::int64_t c = first; c < last; ++c) {
            const std::int64_t d = tap * in + c;
            float& gradient = to[c * taps + tap];
            gradient = from[d / lanes * sum_stride + d % lanes] + (accumulate ? gradient : 0.0f);
          }
        }
      }
    }
  });
}

// Of fewer numbers too many lanes would be empty.
bool fills_vectors(const ConvolutionSizes& s) {
  return has_wide_vectors && s.conv.groups == 1 && s.out >= lanes &&
         s.in * s.conv.kernel_h * s.conv.kernel_w >= lanes;
}

}  // namespace

bool applies(const ConvolutionSizes& s) {
  return s.type == DType::f32 && fills_vectors(s);
}

bool applies_to_weights(const ConvolutionSizes& s) {
  return (s.type == DType::f32 || s.conv.kernel_h * s.conv.kernel_w > 1) && fills_vectors(s);
}

std::size_t forward_bytes(int threads, const ConvolutionSizes& sizes) {
  return product_floats(threads, forward_rows(sizes), sizes.out) * sizeof(float);
}

std::size_t backward_data_bytes(int threads, const ConvolutionSizes& sizes) {
  std::size_t floats = 0;
  for_rests(sizes,
            [&](const Rows& rows) { floats = std::max(floats, product_floats(threads, rows, sizes.in)); });
  return floats * sizeof(float);
}

std::size_t backward_weights_bytes(const ConvolutionSizes& sizes) {
  return WeightsWork(sizes, nullptr).bytes();
}

void forward(int threads, const ConvolutionSizes& s, const ConstView& x, const ConstView& weight,
             const ConstView& bias, const View& y, std::byte* work) {
  const Rows rows = forward_rows(s);
  const Kernel kernel{weight.as<float>(), s.in * rows.taps, rows.taps, s.conv.kernel_w};
  multiply(threads, rows, x.as<float>(), kernel, bias.empty() ? nullptr : bias.as<float>(),
           {rows, {s.out_h, s.out_w, s.out}, y.as<float>()}, reinterpret_cast<float*>(work));
}

void backward_data(int threads, const ConvolutionSizes& s, const ConstView& dy, const ConstView& weight,
                   const View& dx, std::byte* work) {
  const std::int64_t taps = s.conv.kernel_h * s.conv.kernel_w;
  const Kernel kernel{weight.as<float>(), taps, s.in * taps, s.conv.kernel_w};
  for_rests(s, [&](const Rows& rows) {
    multiply(threads, rows, dy.as<float>(), kernel, nullptr, {rows, {s.h, s.w, s.in}, dx.as<float>()},
             reinterpret_cast<float*>(work));
  });
}

void backward_weights(int threads, const ConvolutionSizes& s, const ConstView& x, const ConstView& dy,
                      const View& dweight, const View& dbias, bool accumulate, std::byte* work) {
  const WeightsWork p(s, work);
  with_element_type("conv2d_backward_weights", "x", x, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t first = 0; first < p.rows.count; first += p.capacity) {
      const std::int64_t count = std::min(p.capacity, p.rows.count - first);
      pack_chunk(threads, p, x.as<T>(), dy.as<T>(), first, count);
      multiply_chunk(threads, p, count, first > 0);
      if (!dbias.empty()) add_biases(threads, p, count, first > 0);
    }
  });
  unpack_gradient(threads, p, dweight.as<float>(), accumulate);
  if (dbias.empty()) return;
  auto* const gradient = dbias.as<float>();
  for (std::int64_t k = 0; k < s.out; ++k)
    gradient[k] = static_cast<float>(p.biases[k]) + (accumulate ? gradient[k] : 0.0f);
}

}  // namespace motley::gathered
