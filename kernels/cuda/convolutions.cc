#include "kernels/cuda/convolutions.h"

#include <array>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/layout.h"

namespace motley::cuda {
namespace {

[[noreturn]] void throw_cudnn_error(cudnnStatus_t status, std::string_view call, const std::string& of) {
  std::string sentence = fmt::format("{} failed on {}{}: {}", call.substr(0, call.find('(')), device_text(),
                                     of, cudnnGetErrorString(status));
#if CUDNN_MAJOR >= 9
  char details[512] = "";
  cudnnGetLastErrorString(details, sizeof(details));
  if (details[0] != 0) sentence += fmt::format(" ({})", details);
  const bool no_memory = status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                         status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
#else
  const bool no_memory = status == CUDNN_STATUS_ALLOC_FAILED;
#endif
  if (no_memory) throw OutOfMemory(sentence);
  throw Error(ExitCode::device, sentence);
}

void check(cudnnStatus_t status, const char* call, const std::string& of = {}) {
  if (status != CUDNN_STATUS_SUCCESS) throw_cudnn_error(status, call, of);
}

#define MOTLEY_CUDNN(call) check((call), #call)

// cuDNN's answer to a convolution that an algorithm does not take in this layout. NOT_SUPPORTED is the
// documented one; the others come instead for some layouts and versions.
bool declined(cudnnStatus_t status) {
#if CUDNN_MAJOR >= 9
  const auto category = CUDNN_STATUS_CATEGORY(static_cast<int>(status));
  return category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM ||
         status == CUDNN_STATUS_INTERNAL_ERROR;
#else
  return status == CUDNN_STATUS_NOT_SUPPORTED || status == CUDNN_STATUS_ARCH_MISMATCH ||
         status == CUDNN_STATUS_BAD_PARAM || status == CUDNN_STATUS_INTERNAL_ERROR;
#endif
}

template <class T, cudnnStatus_t (*create)(T*), cudnnStatus_t (*destroy)(T)>
class Owned {
 public:
  explicit Owned(const char* call) { check(create(&object_), call); }
  ~Owned() { destroy(object_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  operator T() const { return object_; }  // NOLINT: an Owned is used as cuDNN's

 private:
  T object_ = nullptr;
};

using TensorDescriptor =
    Owned<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using FilterDescriptor =
    Owned<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using ConvolutionDescriptor =
    Owned<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor>;

struct Descriptors {
  TensorDescriptor x{"cudnnCreateTensorDescriptor"}, y{"cudnnCreateTensorDescriptor"};
  FilterDescriptor weight{"cudnnCreateFilterDescriptor"};
  ConvolutionDescriptor conv{"cudnnCreateConvolutionDescriptor"};
};

std::string text_of(const ConvolutionSizes& s) {
  const Conv2d& c = s.conv;
  return fmt::format(
      "a {}x{} convolution of [{}, {}, {}, {}] to [{}, {}, {}, {}], {}, stride {}x{}, padding {}x{}, {} "
      "groups",
      c.kernel_h, c.kernel_w, s.n, s.h, s.w, s.in, s.n, s.out_h, s.out_w, s.out, name_of(s.type), c.stride_h,
      c.stride_w, c.pad_h, c.pad_w, c.groups);
}

// cuDNN takes int extents and tensors of less than 2^31 elements.
int narrow(std::int64_t extent) {
  return static_cast<int>(extent);
}

void require_size(const ConvolutionSizes& s) {
  constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max();
  const Conv2d& c = s.conv;
  const bool fits = s.n * s.h * s.w * s.in <= limit && s.n * s.out_h * s.out_w * s.out <= limit &&
                    s.out * (s.in / c.groups) * c.kernel_h * c.kernel_w <= limit && c.stride_h <= limit &&
                    c.stride_w <= limit && c.pad_h <= limit && c.pad_w <= limit;
  if (!fits) {
    fail(ExitCode::device,
         "cuDNN takes tensors of up to {} elements, but {} is larger: use smaller micro-batches", limit,
         text_of(s));
  }
}

cudnnDataType_t cudnn_type(DType type) {
  switch (type) {
    case DType::f32:
      return CUDNN_DATA_FLOAT;
    case DType::f16:
      return CUDNN_DATA_HALF;
    case DType::bf16:
      return CUDNN_DATA_BFLOAT16;
    default:
      fail(ExitCode::internal, "a convolution of {}, but float32, float16 or bfloat16 belongs there",
           name_of(type));
  }
}

// All tensors have the type `computed`.
void describe(const Descriptors& d, const ConvolutionSizes& s, DType computed, bool channels_last) {
  const Conv2d& c = s.conv;
  const cudnnTensorFormat_t format = channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
  const cudnnDataType_t type = cudnn_type(computed);
  MOTLEY_CUDNN(
      cudnnSetTensor4dDescriptor(d.x, format, type, narrow(s.n), narrow(s.in), narrow(s.h), narrow(s.w)));
  MOTLEY_CUDNN(cudnnSetTensor4dDescriptor(d.y, format, type, narrow(s.n), narrow(s.out), narrow(s.out_h),
                                          narrow(s.out_w)));
  MOTLEY_CUDNN(cudnnSetFilter4dDescriptor(d.weight, type, format, narrow(s.out), narrow(s.in / c.groups),
                                          narrow(c.kernel_h), narrow(c.kernel_w)));
  MOTLEY_CUDNN(cudnnSetConvolution2dDescriptor(d.conv, narrow(c.pad_h), narrow(c.pad_w), narrow(c.stride_h),
                                               narrow(c.stride_w), 1, 1, CUDNN_CROSS_CORRELATION,
                                               CUDNN_DATA_FLOAT));
  MOTLEY_CUDNN(cudnnSetConvolutionGroupCount(d.conv, narrow(c.groups)));
  // Tensor cores for the half types, which they multiply exactly. No TF32: it has the range of float32, but 10
  // bits of its 23.
  MOTLEY_CUDNN(
      cudnnSetConvolutionMathType(d.conv, computed == DType::f32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH));
}

enum Operand : std::size_t { x_operand, weight_operand, y_operand };

// What cuDNN is given.
struct Pointers {
  std::array<void*, 3> at{};
  void* x() const { return at[x_operand]; }
  void* weight() const { return at[weight_operand]; }
  void* y() const { return at[y_operand]; }
};

struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

constexpr float one = 1;

// The three operations: cuDNN's functions for each, in the same terms.
struct Forward {
  static constexpr std::int64_t number = 1;
  static constexpr auto name = "cudnnConvolutionForward";
  static constexpr auto rank_name = "cudnnGetConvolutionForwardAlgorithm_v7";
  static constexpr Operand output = y_operand;
  using Performance = cudnnConvolutionFwdAlgoPerf_t;
  using Algorithm = cudnnConvolutionFwdAlgo_t;
  static constexpr int algorithms = CUDNN_CONVOLUTION_FWD_ALGO_COUNT;

  static cudnnStatus_t rank(cudnnHandle_t handle, const Descriptors& d, int* count, Performance* found) {
    return cudnnGetConvolutionForwardAlgorithm_v7(handle, d.x, d.weight, d.conv, d.y, algorithms, count,
                                                  found);
  }
  static cudnnStatus_t workspace(cudnnHandle_t handle, const Descriptors& d, Algorithm algorithm,
                                 std::size_t* bytes) {
    return cudnnGetConvolutionForwardWorkspaceSize(handle, d.x, d.weight, d.conv, d.y, algorithm, bytes);
  }
  static cudnnStatus_t run(cudnnHandle_t handle, const Descriptors& d, Algorithm algorithm, const Pointers& p,
                           const Workspace& work, const float& beta) {
    return cudnnConvolutionForward(handle, &one, d.x, p.x(), d.weight, p.weight(), d.conv, algorithm,
                                   work.data, work.bytes, &beta, d.y, p.y());
  }
};

struct BackwardData {
  static constexpr std::int64_t number = 2;
  static constexpr auto name = "cudnnConvolutionBackwardData";
  static constexpr auto rank_name = "cudnnGetConvolutionBackwardDataAlgorithm_v7";
  static constexpr Operand output = x_operand;
  using Performance = cudnnConvolutionBwdDataAlgoPerf_t;
  using Algorithm = cudnnConvolutionBwdDataAlgo_t;
  static constexpr int algorithms = CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT;

  static cudnnStatus_t rank(cudnnHandle_t handle, const Descriptors& d, int* count, Performance* found) {
    return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, d.weight, d.y, d.conv, d.x, algorithms, count,
                                                       found);
  }
  static cudnnStatus_t workspace(cudnnHandle_t handle, const Descriptors& d, Algorithm algorithm,
                                 std::size_t* bytes) {
    return cudnnGetConvolutionBackwardDataWorkspaceSize(handle, d.weight, d.y, d.conv, d.x, algorithm, bytes);
  }
  static cudnnStatus_t run(cudnnHandle_t handle, const Descriptors& d, Algorithm algorithm, const Pointers& p,
                           const Workspace& work, const float& beta) {
    return cudnnConvolutionBackwardData(handle, &one, d.weight, p.weight(), d.y, p.y(), d.conv, algorithm,
                                        work.data, work.bytes, &beta, d.x, p.x());
  }
};

struct BackwardWeights {
  static constexpr std::int64_t number = 3;
  static constexpr auto name = "cudnnConvolutionBackwardFilter";
  static constexpr auto rank_name = "cudnnGetConvolutionBackwardFilterAlgorithm_v7";
  static constexpr Operand output = weight_operand;
  using Performance = cudnnConvolutionBwdFilterAlgoPerf_t;
  using Algorithm = cudnnConvolutionBwdFilterAlgo_t;
  static constexpr int algorithms = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT;

  static cudnnStatus_t rank(cudnnHandle_t handle, const Descriptors& d, int* count, Performance* found) {
    return cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, d.x, d.y, d.conv, d.weight, algorithms,
                                                         count, found);
  }
  static cudnnStatus_t workspace(cudnnHandle_t handle, const Descriptors& d, Algorithm algorithm,
                                 std::size_t* bytes) {
    return cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, d.x, d.y, d.conv, d.weight, algorithm,
                                                          bytes);
  }
  static cudnnStatus_t run(cudnnHandle_t handle, const Descriptors& d, Algorithm algorithm, const Pointers& p,
                           const Workspace& work, const float& beta) {
    return cudnnConvolutionBackwardFilter(handle, &one, d.x, p.x(), d.y, p.y(), d.conv, algorithm, work.data,
                                          work.bytes, &beta, d.weight, p.weight());
  }
};

PrimitiveKey key_of(std::int64_t operation, const ConvolutionSizes& s) {
  const Conv2d& c = s.conv;
  return {operation,  s.n,        s.h,        s.w,     s.in,    s.out,    c.kernel_h,
          c.kernel_w, c.stride_h, c.stride_w, c.pad_h, c.pad_w, c.groups, static_cast<std::int64_t>(s.type)};
}

std::size_t round_up(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

// What is still to be tried for a shape, the best first. Candidates that turn out not to work are dropped for
// good; when none is left, the next stage is looked through.
struct Convolutions::Plan : PreparedPrimitive {
  struct Candidate {
    int algorithm = 0;
    std::size_t workspace_bytes = 0;
  };

  Descriptors descriptors;
  int stage = -1;
  std::vector<Candidate> candidates;
  cudnnStatus_t last_answer = CUDNN_STATUS_NOT_SUPPORTED;  // why there is none, if there is none

  // Channels-last and channels-first, both on float32 copies, and all again with algorithms that do not give the
  // same bits twice.
  static constexpr int deterministic_stages = 4, stages = 8;
  bool channels_last() const { return stage % 2 == 0; }
  static bool widened(int stage) { return stage / 2 % 2 == 1; }
  bool deterministic() const { return stage < deterministic_stages; }
  DType computed(DType type) const { return widened(stage) ? DType::f32 : type; }
};

// In the backend's layout.
struct Convolutions::Tensors {
  const void* x;
  const void* weight;
  const void* y;
  DType weight_type;
};

Convolutions::~Convolutions() {
  if (handle_ != nullptr) cudnnDestroy(handle_);
}

cudnnHandle_t Convolutions::handle() {
  if (handle_ == nullptr) {
    MOTLEY_CUDNN(cudnnCreate(&handle_));
    MOTLEY_CUDNN(cudnnSetStream(handle_, backend_.outer_stream()));
  }
  return handle_;
}

// The candidates of the plan's stage.
template <class Operation>
void Convolutions::find_algorithms(Plan& plan, const ConvolutionSizes& sizes) {
  backend_.outer_stream();
  describe(plan.descriptors, sizes, plan.computed(sizes.type), plan.channels_last());
  typename Operation::Performance found[Operation::algorithms];
  int count = 0;
  const cudnnStatus_t status = Operation::rank(handle(), plan.descriptors, &count, found);
  if (declined(status)) {
    plan.last_answer = status;
    return;
  }
  check(status, Operation::rank_name, " for " + text_of(sizes));
  for (int i = 0; i < count; ++i) {
    const bool deterministic = found[i].determinism == CUDNN_DETERMINISTIC;
    if (found[i].status != CUDNN_STATUS_SUCCESS || deterministic != plan.deterministic()) continue;
    std::size_t bytes = 0;
    if (Operation::workspace(handle(), plan.descriptors, found[i].algo, &bytes) != CUDNN_STATUS_SUCCESS)
      continue;
    plan.candidates.push_back({static_cast<int>(found[i].algo), bytes});
  }
}

// After the first candidate's workspace could not be had: is there one that needs less? Not with
// --deterministic, because then the bits would depend on how much memory there is.
bool Convolutions::take_smaller_workspace(Plan& plan) const {
  if (backend_.deterministic()) return false;
  auto& candidates = plan.candidates;
  for (auto c = candidates.begin(); c != candidates.end(); ++c) {
    if (c->workspace_bytes < candidates.front().workspace_bytes) {
      candidates.erase(candidates.begin(), c);
      return true;
    }
  }
  return false;
}

// Goes on to the next stage that makes a difference for the type and that this device has. False when there is
// none.
bool Convolutions::next_stage(Plan& plan, DType type) const {
  const int stages = backend_.deterministic() ? Plan::deterministic_stages : Plan::stages;
  const bool multiplies = type != DType::bf16 || backend_.capability() >= 80;
  for (int stage = plan.stage + 1; stage < stages; ++stage) {
    if (Plan::widened(stage) ? type == DType::f32 : !multiplies) continue;
    plan.stage = stage;
    return true;
  }
  return false;
}

// Runs the plan's first candidate. Tensors whose layout or type is not the plan's, or whose address is not a
// multiple of 16 bytes, which cuDNN's kernels expect, go through working memory: [copies | workspace].
template <class Operation>
cudnnStatus_t Convolutions::attempt(const Plan& plan, const ConvolutionSizes& s, const Tensors& tensors,
                                    bool accumulate) {
  struct Tensor {
    void* data;
    DType type;
    Matrices shape;  // in the backend's layout; the other one is its transposition
    bool transposed;
    void* copy = nullptr;
  };
  const DType computed = plan.computed(s.type);
  const auto tensor = [](const void* data, DType type, const Matrices& shape, bool other_layout) {
    const bool transposed = other_layout && shape.rows > 1 && shape.columns > 1;
    Tensor t{const_cast<void*>(data), type, shape, transposed};
    if (!transposed) t.shape = {1, 1, shape.elements()};  // a plain copy
    return t;
  };
  const bool first = !plan.channels_last();
  std::array<Tensor, 3> all{
      tensor(tensors.x, s.type, {s.n, s.h * s.w, s.in}, first),
      tensor(tensors.weight, tensors.weight_type,
             {s.out, s.in / s.conv.groups, s.conv.kernel_h * s.conv.kernel_w}, !first),
      tensor(tensors.y, s.type, {s.n, s.out_h * s.out_w, s.out}, first),
  };
  const auto copied = [&](const Tensor& t) {
    return t.transposed || t.type != computed || reinterpret_cast<std::uintptr_t>(t.data) % 16 != 0;
  };
  const auto copy_bytes = [&](const Tensor& t) {
    return copied(t) ? round_up(static_cast<std::size_t>(t.shape.elements()) * size_of(computed)) : 0;
  };

  std::size_t copies_bytes = 0;
  for (const Tensor& t : all) copies_bytes += copy_bytes(t);
  const auto& [algorithm, workspace_bytes] = plan.candidates.front();
  std::byte* work = backend_.scratch(copies_bytes + workspace_bytes);

  Pointers pointers;
  for (std::size_t i = 0; i < all.size(); ++i) {
    Tensor& t = all[i];
    pointers.at[i] = t.data;
    if (!copied(t)) continue;
    t.copy = work;
    pointers.at[i] = t.copy;
    work += copy_bytes(t);
    if (i != Operation::output)
      transpose(Operation::name, backend_, t.shape, t.type, t.data, computed, t.copy);
  }

  const Tensor& output = all[Operation::output];
  const bool add_afterwards = output.copy != nullptr;
  const float beta = accumulate && !add_afterwards ? 1 : 0;
  const Workspace workspace{workspace_bytes > 0 ? work : nullptr, workspace_bytes};
  const cudnnHandle_t cudnn = handle();
  backend_.stream();  // which the handle has
  const cudnnStatus_t status =
      Operation::run(cudnn, plan.descriptors, static_cast<typename Operation::Algorithm>(algorithm), pointers,
                     workspace, beta);
  if (status == CUDNN_STATUS_SUCCESS && add_afterwards) {
    const Matrices other{output.shape.count, output.shape.columns, output.shape.rows};
    transpose(Operation::name, backend_, other, computed, output.copy, output.type, output.data, accumulate);
  }
  return status;
}

template <class Operation>
void Convolutions::execute(const ConvolutionSizes& sizes, const Tensors& tensors, bool accumulate) {
  auto& plan = plans_.find_or_make<Plan>(key_of(Operation::number, sizes), [&] {
    require_size(sizes);
    return std::make_unique<Plan>();
  });
  for (;;) {
    while (plan.candidates.empty()) {
      if (!next_stage(plan, sizes.type)) {
        fail(ExitCode::device, "cuDNN has no {}algorithm on {} for {} of {}: {}",
             backend_.deterministic() ? "deterministic " : "", device_text(), Operation::name, text_of(sizes),
             cudnnGetErrorString(plan.last_answer));
      }
      find_algorithms<Operation>(plan, sizes);
    }
    try {
      const cudnnStatus_t status = attempt<Operation>(plan, sizes, tensors, accumulate);
      if (status == CUDNN_STATUS_SUCCESS) return;
      if (!declined(status)) check(status, Operation::name, " for " + text_of(sizes));
      // The estimate was wrong.
      plan.last_answer = status;
      plan.candidates.erase(plan.candidates.begin());
    } catch (const OutOfMemory&) {
      if (!take_smaller_workspace(plan)) throw;
    }
  }
}

void Convolutions::forward(const ConvolutionSizes& sizes, const void* x, const void* weight, void* y) {
  execute<Forward>(sizes, {x, weight, y, sizes.type}, false);
}

void Convolutions::backward_data(const ConvolutionSizes& sizes, const void* dy, const void* weight,
                                 void* dx) {
  execute<BackwardData>(sizes, {dx, weight, dy, sizes.type}, false);
}

void Convolutions::backward_weights(const ConvolutionSizes& sizes, const void* x, const void* dy,
                                    float* dweight, bool accumulate) {
  execute<BackwardWeights>(sizes, {x, dweight, dy, DType::f32}, accumulate);
}

}  // namespace motley::cuda
