// Rows of tables: looked up, gathered, and their gradients summed.
#include "kernels/cuda/rows.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

using namespace cuda;

// Rows of the grid are places in a sequence, its layers samples: the row of a position is read once for all
// samples of a thread.
template <class T, int width>
__global__ void embedding_kernel(std::int64_t samples, std::int64_t seq, std::int64_t length,
                                 const float* __restrict__ word, const float* __restrict__ position,
                                 const float* __restrict__ type, const std::int32_t* __restrict__ ids,
                                 const std::int32_t* __restrict__ types, T* __restrict__ y) {
  for_rows(seq, length / width, [&](std::int64_t place, std::int64_t item) {
    const std::int64_t column = item * width;
    float of_position[width];
    load_floats(position + place * length + column, of_position);
    for (std::int64_t sample = blockIdx.z; sample < samples; sample += gridDim.z) {
      const std::int64_t token = sample * seq + place;
      float sum[width], of_type[width];
      load_floats(word + ids[token] * length + column, sum);
      load_floats(type + types[token] * length + column, of_type);
#pragma unroll
      for (int i = 0; i < width; ++i) sum[i] = sum[i] + of_position[i] + of_type[i];
      store_floats(y + token * length + column, sum);
    }
  });
}

template <class T, int width>
__global__ void gather_kernel(std::int64_t rows, std::int64_t length, const T* __restrict__ x,
                              const std::int32_t* __restrict__ index, T* __restrict__ y) {
  for_rows(rows, length / width, [&](std::int64_t row, std::int64_t item) {
    store(y + row * length + item * width, load<width>(x + index[row] * length + item * width));
  });
}

// --- Sums over groups -------------------------------------------------------------------------------------
// The list of sources is cut into pieces of a fixed size, however groups lie in it, so that two long groups
// make as much parallel work as many short ones. A group that lies in one piece is added to its row at once.
// Of the others, each piece writes its part to partial [pieces, 2, length]: [0] for a group that began in an
// earlier piece, [1] for one that begins here and goes on, whose number is in `heads`, -1 if there is none. A
// second kernel adds those up in order.

constexpr int piece_size = 16, strands = 16, long_group_threads = warp_size * strands;

struct Groups {
  const std::int32_t* rows;
  const std::int32_t* starts;
  const std::int32_t* sources;
  std::int64_t count, places;  // groups, sources
};

// A sum of float32s nearly as exact as one in float64 that is rounded at the end: Kahan, "Further remarks on
// reducing truncation errors", CACM 1965. Infinity may become NaN.
struct CompensatedSum {
  float sum = 0, lost = 0;

  __device__ void add(float x) {
    const float term = x - lost, next = sum + term;
    lost = (next - sum) - term;
    sum = next;
  }
};

// The last group that begins at `place` or before.
__device__ inline std::int64_t group_at(const Groups& groups, std::int64_t place) {
  std::int64_t low = 0, high = groups.count;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (groups.starts[middle] <= place ? low : high) = middle;
  }
  return low;
}

template <int width, class To>
__device__ inline void add_to_row(const CompensatedSum (&sum)[width], To* row) {
  float value[width];
  load_floats(row, value);
#pragma unroll
  for (int i = 0; i < width; ++i) value[i] += sum[i].sum;
  store_floats(row, value);
}

template <class From, class To, int width>
__global__ void pieces_kernel(Groups groups, std::int64_t length, const From* __restrict__ dy, To* x,
                              float* partial, std::int32_t* heads) {
  const std::int64_t grouped = groups.starts[groups.count];  // places that belong to groups
  for_rows((groups.places + piece_size - 1) / piece_size, length / width,
           [&](std::int64_t piece, std::int64_t item) {
             const std::int64_t column = item * width, begin = piece * piece_size;
             const std::int64_t end = begin + piece_size < grouped ? begin + piece_size : grouped;
             std::int64_t group = group_at(groups, begin);
             std::int64_t stop = groups.starts[group + 1];
             bool begins_here = groups.starts[group] == begin;
             CompensatedSum sum[width];
             std::int32_t head = -1;
             constexpr int ahead = 4;  // sources that are read before the first of them is added
             for (std::int64_t place = begin; place < end; place += ahead) {
               float term[ahead][width];
#pragma unroll
               for (int k = 0; k < ahead; ++k)
                 if (place + k < end) load_floats(dy + groups.sources[place + k] * length + column, term[k]);
#pragma unroll
               for (int k = 0; k < ahead; ++k) {
                 if (place + k >= end) break;
#pragma unroll
                 for (int i = 0; i < width; ++i) sum[i].add(term[k][i]);
                 if (place + k + 1 < stop && place + k + 1 < end) continue;
                 // The last source of the group, or of the piece.
                 const bool goes_on = stop > end;
                 if (begins_here && !goes_on) {
                   add_to_row(sum, x + groups.rows[group] * length + column);
                 } else {
                   float value[width];
#pragma unroll
                   for (int i = 0; i < width; ++i) value[i] = sum[i].sum;
                   // A multiple of width by its form, so that it is one access.
                   store_floats(partial + ((2 * piece + (begins_here ? 1 : 0)) * (length / width) + item) * width,
                                value);
                   if (begins_here) head = static_cast<std::int32_t>(group);
                 }
                 if (place + k + 1 == end) break;
#pragma unroll
                 for (int i = 0; i < width; ++i) sum[i] = {};
                 begins_here = true;
                 stop = groups.starts[++group + 1];
               }
             }
             if (item == 0) heads[piece] = head;
           });
}

// Block: a strand of pieces for each threadIdx.y, 32 packs of columns in x; grid: pieces in x, columns in y.
template <class To, int width>
__global__ void __launch_bounds__(long_group_threads)
    long_groups_kernel(Groups groups, std::int64_t length, const float* __restrict__ partial,
                       const std::int32_t* heads, To* x) {
  alignas(16) __shared__ Shared<float[strands][warp_size * width]> of_strand;
  const std::int64_t piece = blockIdx.x;
  const std::int32_t group = heads[piece];
  if (group < 0) return;
  const std::int64_t last = (groups.starts[group + 1] - 1) / piece_size;
  for (std::int64_t first = std::int64_t{blockIdx.y} * warp_size * width; first < length;
       first += std::int64_t{gridDim.y} * warp_size * width) {
    const std::int64_t column = first + threadIdx.x * width;
    const bool inside = column < length;
    CompensatedSum sum[width];
    if (inside) {
#pragma unroll 4
      for (std::int64_t p = piece + threadIdx.y; p <= last; p += strands) {
        float term[width];
        load_floats(partial + (2 * p + (p == piece ? 1 : 0)) * length + column, term);
#pragma unroll
        for (int i = 0; i < width; ++i) sum[i].add(term[i]);
      }
    }
    float value[width];
#pragma unroll
    for (int i = 0; i < width; ++i) value[i] = sum[i].sum;
    store_floats(&of_strand[threadIdx.y][threadIdx.x * width], value);
    __syncthreads();
    if (threadIdx.y == 0 && inside) {
#pragma unroll
      for (int i = 0; i < width; ++i) sum[i] = {};
#pragma unroll
      for (int s = 0; s < strands; ++s) {
        load_floats(&of_strand[s][threadIdx.x * width], value);
#pragma unroll
        for (int i = 0; i < width; ++i) sum[i].add(value[i]);
      }
      add_to_row(sum, x + groups.rows[group] * length + column);
    }
    __syncthreads();
  }
}

template <class From, class To>
void scatter_add(const char* name, CudaBackend& backend, const Groups& groups, std::int64_t length,
                 const From* dy, To* x) {
  const std::int64_t pieces = ceil_div(groups.places, piece_size);
  const std::size_t floats = static_cast<std::size_t>(2 * pieces * length);
  auto* const partial = reinterpret_cast<float*>(
      backend.scratch(floats * sizeof(float) + static_cast<std::size_t>(pieces) * sizeof(std::int32_t)));
  auto* const heads = reinterpret_cast<std::int32_t*>(partial + floats);
  constexpr int widest = widest_pack<From>;
  const bool whole = rows_fit<widest>(length, dy, x);
  launch(name, whole ? pieces_kernel<From, To, widest> : pieces_kernel<From, To, 1>,
         row_grid(backend, pieces, length / (whole ? widest : 1)), backend.stream(), groups, length, dy, x,
         partial, heads);
  constexpr int wide = 4;
  const bool wide_rows = rows_fit<wide>(length, x);
  const std::int64_t chunks = ceil_div(length, warp_size * (wide_rows ? wide : 1));
  launch(name, wide_rows ? long_groups_kernel<To, wide> : long_groups_kernel<To, 1>,
         Grid{extents(pieces, std::min(chunks, most_in_y)), dim3(warp_size, strands)}, backend.stream(),
         groups, length, partial, heads, x);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::embedding_forward(ConstView word, ConstView position, ConstView type, ConstView ids,
                                    ConstView types, View y) {
  constexpr auto name = "embedding_forward";
  const EmbeddingSizes s = check_embedding_forward(name, word, position, type, ids, types, y);
  const std::int64_t n = s.n, seq = s.seq, length = s.width;
  with_element_type(name, "y", y.dtype, [&](auto tag) {
    using T = decltype(tag);
    constexpr int wide = 4;
    const bool whole =
        rows_fit<wide>(length, word.as<float>(), position.as<float>(), type.as<float>(), y.as<T>());
    launch(name, whole ? embedding_kernel<T, wide> : embedding_kernel<T, 1>,
           row_grid(*this, seq, length / (whole ? wide : 1), n), stream(), n, seq, length, word.as<float>(),
           position.as<float>(), type.as<float>(), ids.as<std::int32_t>(), types.as<std::int32_t>(),
           y.as<T>());
  });
}

void CudaBackend::gather_rows(ConstView x, ConstView index, View y) {
  constexpr auto name = "gather_rows";
  check_gather_rows(name, x, index, y);
  const std::int64_t m = index.shape[0], length = x.shape[1];
  with_element_type(name, "x", x.dtype, [&](auto tag) {
    using T = decltype(tag);
    constexpr int widest = widest_pack<T>;
    const bool whole = rows_fit<widest>(length, x.as<T>(), y.as<T>());
    launch(name, whole ? gather_kernel<T, widest> : gather_kernel<T, 1>,
           row_grid(*this, m, length / (whole ? widest : 1)), stream(), m, length, x.as<T>(),
           index.as<std::int32_t>(), y.as<T>());
  });
}

void CudaBackend::scatter_add_rows(const RowGroups& groups, ConstView dy, View x) {
  constexpr auto name = "scatter_add_rows";
  check_scatter_add_rows(name, groups, dy, x);
  const std::int64_t count = groups.rows.shape[0], length = dy.shape[1];
  const Groups g{groups.rows.as<std::int32_t>(), groups.starts.as<std::int32_t>(),
                 groups.sources.as<std::int32_t>(), count, groups.sources.shape[0]};
  if (g.count == 0 || g.places == 0 || length == 0) return;
  with_element_type(name, "dy", dy.dtype, [&](auto tag) {
    using From = decltype(tag);
    if (x.dtype == DType::f32) {
      scatter_add(name, *this, g, length, dy.as<From>(), x.as<float>());
    } else {
      scatter_add(name, *this, g, length, dy.as<From>(), x.as<From>());
    }
  });
}

}  // namespace motley
