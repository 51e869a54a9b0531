#include "cudnn_convolution.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "blas.h"
#include "convolutions_run.h"
#include "device.h"
#include "simt.h"

namespace motley::sim {
namespace {

std::vector<std::string>& convolutions_run() {
  static std::vector<std::string> all;
  return all;
}

[[noreturn]] void violate(const char* call, const std::string& what) {
  throw Violation(std::string(call) + ": " + what);
}

int outputs(int in, int pad, int kernel, int stride) {
  return (in + 2 * pad - kernel) / stride + 1;
}

// --- Algorithms -------------------------------------------------------------------------------------------

// Which filters an algorithm takes: any, 3 x 3 with stride 1, or those of at most 8 rows.
enum Filters : std::uint8_t { any, only_3x3, up_to_8 };

struct Algorithm {
  int number;
  bool deterministic, channels_last, groups;
  Filters filters;
  std::size_t workspace_factor;  // times the bytes of the output's gradient or of the output
};

// In the order of their speed.
constexpr Algorithm forward_algorithms[] = {
    {CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, true, true, false, only_3x3, 4},
    {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, true, true, true, any, 2},
    {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, true, true, true, any, 0},
};
constexpr Algorithm data_algorithms[] = {
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, false, true, true, any, 0},
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED, true, false, false, only_3x3, 4},
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, true, true, true, up_to_8, 1},
};
constexpr Algorithm filter_algorithms[] = {
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3, false, true, true, any, 3},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, true, true, true, up_to_8, 2},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED, true, false, false, only_3x3, 1},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, false, true, true, any, 0},
};

std::vector<Algorithm> algorithms_of(Operation operation) {
  const auto all = [](const auto& list) { return std::vector<Algorithm>(std::begin(list), std::end(list)); };
  if (operation == forward) return all(forward_algorithms);
  return operation == backward_data ? all(data_algorithms) : all(filter_algorithms);
}

std::string_view channels_last_mode() {
  const char* const text = std::getenv("MOTLEY_SIM_CUDNN_NHWC");
  return text == nullptr ? "1" : text;
}

bool type_supported(const Convolution& c) {
  if (c.x.type == CUDNN_DATA_FLOAT) return true;
  const char* const half = std::getenv("MOTLEY_SIM_CUDNN_HALF");
  if (half != nullptr && std::string_view(half) == "0") return false;
  return c.x.type != CUDNN_DATA_BFLOAT16 || device_multiplies(CUDA_R_16BF);
}

cudnnStatus_t supports(const Algorithm& a, const Convolution& c) {
  const bool layout = !c.channels_last() || (a.channels_last && channels_last_mode() != "0");
  const bool groups = c.conv.groups == 1 || a.groups;
  const bool filter =
      a.filters == any || (a.filters == up_to_8 && c.w.h <= 8) ||
      (a.filters == only_3x3 && c.w.h == 3 && c.w.w == 3 && c.conv.stride_h == 1 && c.conv.stride_w == 1);
  return layout && groups && filter && type_supported(c) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

// What the estimate does not know: an algorithm that is refused only when it is to run.
bool refused_at_run(const Algorithm& a, const Convolution& c) {
  if (!c.channels_last()) return false;
  return channels_last_mode() == "run" || (a.filters == only_3x3 && c.x.c % 2 != 0);
}

std::size_t workspace_bytes(const Algorithm& a, const Convolution& c) {
  return a.workspace_factor * (c.y.bytes() + 4);
}

std::optional<Algorithm> algorithm_of(const Convolution& c, int number) {
  for (const Algorithm& a : algorithms_of(c.operation))
    if (a.number == number) return a;
  return {};
}

// --- Arithmetic -------------------------------------------------------------------------------------------

// With 10 bits of mantissa, as tensor cores see a float32 that they are allowed to round.
float tf32(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, 4);
  if (std::isfinite(x)) bits = (bits + 0x1000u) & 0xffffe000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

struct Scaling {
  float alpha, beta;
};

float load(cudnnDataType_t type, const void* from, std::size_t i) {
  switch (type) {
    case CUDNN_DATA_HALF:
      return __half2float(static_cast<const __half*>(from)[i]);
    case CUDNN_DATA_BFLOAT16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[i]);
    default:
      return static_cast<const float*>(from)[i];
  }
}

void store(cudnnDataType_t type, float value, void* to, std::size_t i) {
  switch (type) {
    case CUDNN_DATA_HALF:
      static_cast<__half*>(to)[i] = __float2half_rn(value);
      return;
    case CUDNN_DATA_BFLOAT16:
      static_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16_rn(value);
      return;
    default:
      static_cast<float*>(to)[i] = value;
  }
}

// As the units that multiply see them. CUDNN_FMA_MATH and CUDNN_TENSOR_OP_MATH convert nothing; by the default,
// float32 may become TF32.
std::vector<float> rounded(const void* values, const cudnnTensorStruct& shape, cudnnMathType_t math) {
  std::vector<float> result(shape.elements());
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = load(shape.type, values, i);
  const bool to_tf32 = shape.type == CUDNN_DATA_FLOAT && math != CUDNN_FMA_MATH;
  if (to_tf32) std::transform(result.begin(), result.end(), result.begin(), tf32);
  return result;
}

// The places where a filter's element meets a row of the output: [begin, end).
struct Columns {
  int begin, end;
};
Columns columns_of(const Convolution& c, int q) {
  const auto inside = [&](int ow) {
    const int w = ow * c.conv.stride_w + q - c.conv.pad_w;
    return w >= 0 && w < c.x.w;
  };
  Columns columns{0, c.y.w};
  while (columns.begin < columns.end && !inside(columns.begin)) ++columns.begin;
  while (columns.begin < columns.end && !inside(columns.end - 1)) --columns.end;
  return columns;
}

// The sums are formed in Sum, over images and rows in random order if they are not deterministic.
template <class Sum>
void compute(const Convolution& c, const void* a_data, const cudnnTensorStruct& a_shape, const void* b_data,
             const cudnnTensorStruct& b_shape, const cudnnTensorStruct& out_shape, void* out,
             const Scaling& s, bool in_order, std::uint64_t seed) {
  const int in_group = c.w.c, out_group = c.w.n / c.conv.groups;
  const auto a = rounded(a_data, a_shape, c.conv.math), b = rounded(b_data, b_shape, c.conv.math);
  std::vector<Sum> sums(out_shape.elements());
  std::vector<int> rows(static_cast<std::size_t>(c.y.n) * static_cast<std::size_t>(c.y.h));
  std::iota(rows.begin(), rows.end(), 0);
  std::mt19937_64 random(seed);
  if (!in_order) std::shuffle(rows.begin(), rows.end(), random);
  // One row of y, one pair of channels and one element of the filter at a time.
  const auto add = [&](int n, int oh, int k, int i, int r, int q) {
    const int h = oh * c.conv.stride_h + r - c.conv.pad_h;
    if (h < 0 || h >= c.x.h) return;
    const Columns columns = columns_of(c, q);
    const int channel = k / out_group * in_group + i, w = columns.begin * c.conv.stride_w + q - c.conv.pad_w;
    const std::int64_t xi = n * c.x.stride_n + channel * c.x.stride_c + h * c.x.stride_h + w * c.x.stride_w;
    const std::int64_t wi = k * c.w.stride_n + i * c.w.stride_c + r * c.w.stride_h + q * c.w.stride_w;
    const std::int64_t yi =
        n * c.y.stride_n + k * c.y.stride_c + oh * c.y.stride_h + columns.begin * c.y.stride_w;
    const std::int64_t x_step = c.conv.stride_w * c.x.stride_w, y_step = c.y.stride_w;
    const auto along = [&](std::int64_t ai, std::int64_t a_step, std::int64_t bi, std::int64_t b_step,
                           std::int64_t oi, std::int64_t o_step) {
      for (int ow = columns.begin; ow < columns.end; ++ow, ai += a_step, bi += b_step, oi += o_step) {
        sums[static_cast<std::size_t>(oi)] += static_cast<Sum>(a[static_cast<std::size_t>(ai)]) *
                                              static_cast<Sum>(b[static_cast<std::size_t>(bi)]);
      }
    };
    if (c.operation == forward) along(xi, x_step, wi, 0, yi, y_step);
    if (c.operation == backward_data) along(yi, y_step, wi, 0, xi, x_step);
    if (c.operation == backward_filter) along(xi, x_step, yi, y_step, wi, 0);
  };
  for (const int row : rows)
    for (int k = 0; k < c.y.c; ++k)
      for (int i = 0; i < in_group; ++i)
        for (int r = 0; r < c.w.h; ++r)
          for (int q = 0; q < c.w.w; ++q) add(row / c.y.h, row % c.y.h, k, i, r, q);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto value = s.alpha * static_cast<float>(sums[i]);
    // beta = 0: what was there is not read.
    store(out_shape.type, s.beta == 0 ? value : value + s.beta * load(out_shape.type, out, i), out, i);
  }
}

const char* name_of(Operation operation) {
  return operation == forward ? "forward" : operation == backward_data ? "data" : "filter";
}

}  // namespace

Convolution convolution_of(const char* call, Operation operation, const cudnnTensorStruct* x,
                           const cudnnFilterStruct* w, const cudnnConvolutionStruct* conv,
                           const cudnnTensorStruct* y) {
  if (x == nullptr || w == nullptr || conv == nullptr || y == nullptr) violate(call, "a descriptor is null");
  if (!x->set || !w->set || !conv->set || !y->set) violate(call, "a descriptor was never set");
  if (x->format != y->format || x->format != w->format)
    violate(call, "x, y and the filter differ in their format");
  if (x->type != y->type || x->type != w->type) violate(call, "x, y and the filter differ in their type");
  if (x->c != w->c * conv->groups) {
    violate(call, std::to_string(x->c) + " channels of x are not " + std::to_string(conv->groups) +
                      " groups of " + std::to_string(w->c));
  }
  if (w->n % conv->groups != 0) violate(call, "the filters do not divide into the groups");
  const int h = outputs(x->h, conv->pad_h, w->h, conv->stride_h),
            width = outputs(x->w, conv->pad_w, w->w, conv->stride_w);
  if (h <= 0 || width <= 0) violate(call, "the filter is larger than the padded image");
  if (y->n != x->n || y->c != w->n || y->h != h || y->w != width) {
    violate(call, "y is not what cudnnGetConvolution2dForwardOutputDim says: " + std::to_string(x->n) + ", " +
                      std::to_string(w->n) + ", " + std::to_string(h) + ", " + std::to_string(width));
  }
  return {operation, *x, *y, *w, *conv};
}

std::vector<Estimate> estimates_of(const Convolution& c) {
  std::vector<Estimate> all;
  for (const Algorithm& a : algorithms_of(c.operation)) {
    const cudnnStatus_t status = supports(a, c);
    all.push_back(
        {a.number, status, status == CUDNN_STATUS_SUCCESS ? workspace_bytes(a, c) : 0, a.deterministic});
  }
  std::stable_partition(all.begin(), all.end(),
                        [](const Estimate& e) { return e.status == CUDNN_STATUS_SUCCESS; });
  return all;
}

cudnnStatus_t run(const char* call, cudnnHandle_t handle, const Convolution& c, int number, const void* alpha,
                  const void* beta, const Operands& operands, void* work, std::size_t work_bytes) {
  const auto& [a_shape, a, b_shape, b, out_shape, out] = operands;
  if (handle == nullptr) return CUDNN_STATUS_BAD_PARAM;
  if (handle->device != current_device()) violate(call, "the handle belongs to another device");
  if (alpha == nullptr || beta == nullptr) return CUDNN_STATUS_BAD_PARAM;
  if (is_device_memory(alpha) || is_device_memory(beta))
    violate(call, "alpha and beta are pointers to host memory");
  const auto found = algorithm_of(c, number);
  if (!found || supports(*found, c) != CUDNN_STATUS_SUCCESS || refused_at_run(*found, c))
    return CUDNN_STATUS_NOT_SUPPORTED;
  const Algorithm algorithm = *found;
  check_device(call, "the first input", a, a_shape.bytes(), 16);
  check_device(call, "the second input", b, b_shape.bytes(), 16);
  check_device(call, "the output", out, out_shape.bytes(), 16);
  const std::size_t needed = workspace_bytes(algorithm, c);
  if (work_bytes < needed) {
    violate(call, "the workspace has " + std::to_string(work_bytes) + " bytes, but algorithm " +
                      std::to_string(number) + " needs " + std::to_string(needed));
  }
  check_device(call, "workSpace", work, needed, 16);
  const auto overlap = [](const void* p, std::size_t p_bytes, const void* q, std::size_t q_bytes) {
    const auto first = reinterpret_cast<std::uintptr_t>(p), second = reinterpret_cast<std::uintptr_t>(q);
    return first < second + q_bytes && second < first + p_bytes;
  };
  if (overlap(out, out_shape.bytes(), a, a_shape.bytes()) ||
      overlap(out, out_shape.bytes(), b, b_shape.bytes()))
    violate(call, "the output overlaps an input");
  const Scaling scaling{*static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
  const std::uint64_t seed = draw();
  const char* const type = c.x.type == CUDNN_DATA_HALF       ? " f16"
                           : c.x.type == CUDNN_DATA_BFLOAT16 ? " bf16"
                                                             : "";
  convolutions_run().push_back(std::string(name_of(c.operation)) + " " + std::to_string(number) +
                               (c.channels_last() ? " nhwc" : " nchw") + type);
  const cudaError_t error =
      enqueue(handle->stream, call, [=, a_shape = a_shape, b_shape = b_shape, out_shape = out_shape] {
        // Working memory is written before the inputs are read: it must be nobody else's.
        if (needed > 0) std::memset(work, 0xff, needed);
        const auto compute_as = [&](auto sum) {
          compute<decltype(sum)>(c, a, a_shape, b, b_shape, out_shape, out, scaling, algorithm.deterministic,
                                 seed);
        };
        if (algorithm.deterministic) {
          compute_as(double{});
        } else {
          compute_as(float{});
        }
        return true;
      });
  return error == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

std::vector<std::string> take_convolutions() {
  const std::lock_guard guard(lock());
  return std::exchange(convolutions_run(), {});
}

}  // namespace motley::sim
