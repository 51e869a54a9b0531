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
      "a {}x{} convolution of [{}, {}, {}, {}] to [{}, {}, {}, {}], stride {}x{}, padding {}x{}, {} groups",
      c.kernel_h, c.kernel_w, s.n, s.h, s.w, s.in, s.n, s.out_h, s.out_w, s.out, c.stride_h, c.stride_w,
      c.pad_h, c.pad_w, c.groups);
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

void describe(const Descriptors& d, const ConvolutionSizes& s, bool channels_last) {
  const Conv2d& c = s.conv;
  const cudnnTensorFormat_t format = channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
  constexpr cudnnDataType_t type = CUDNN_DATA_FLOAT;
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
  // No TF32: it has the range of float32, but 10 bits of its 23.
  MOTLEY_CUDNN(cudnnSetConvolutionMathType(d.conv, CUDNN_FMA_MATH));
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
  return {operation,  s.n,        s.h,        s.w,     s.in,    s.out,   c.kernel_h,
          c.kernel_w, c.stride_h, c.stride_w, c.pad_h, c.pad_w, c.groups};
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

  // Channels-last, channels-first, and both again with algorithms that do not give the same bits twice.
  static constexpr int deterministic_stages = 2, stages = 4;
  bool channels_last() const { return stage % 2 == 0; }
  bool deterministic() const { return stage < deterministic_stages; }
};

// In the backend's layout.
struct Convolutions::Tensors {
  const float* x;
  const float* weight;
  const float* y;
};

Convolutions::~Convolutions() {
  if (handle_ != nullptr) cudnnDestroy(handle_);
}

cudnnHandle_t Convolutions::handle() {
  if (handle_ == nullptr) {
    MOTLEY_CUDNN(cudnnCreate(&handle_));
    MOTLEY_CUDNN(cudnnSetStream(handle_, backend_.stream()));
  }
  return handle_;
}

// The candidates of the plan's stage.
template <class Operation>
void Convolutions::find_algorithms(Plan& plan, const ConvolutionSizes& sizes) {
  describe(plan.descriptors, sizes, plan.channels_last());
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

// Runs the plan's first candidate. Tensors whose layout is not the plan's, or whose address is not a multiple
// of 16 bytes, which cuDNN's kernels expect, go through working memory: [copies | workspace].
template <class Operation>
cudnnStatus_t Convolutions::attempt(const Plan& plan, const ConvolutionSizes& s, const Tensors& tensors,
                                    bool accumulate) {
  struct Tensor {
    float* data;
    Matrices shape;  // in the backend's layout; the other one is its transposition
    bool transposed;
    float* copy = nullptr;
    std::size_t bytes() const { return static_cast<std::size_t>(shape.elements()) * sizeof(float); }
  };
  const auto tensor = [](const float* data, const Matrices& shape, bool other_layout) {
    const bool transposed = other_layout && shape.rows > 1 && shape.columns > 1;
    Tensor t{const_cast<float*>(data), shape, transposed};
    if (!transposed) t.shape = {1, 1, shape.elements()};  // a plain copy
    return t;
  };
  const bool first = !plan.channels_last();
  std::array<Tensor, 3> all{
      tensor(tensors.x, {s.n, s.h * s.w, s.in}, first),
      tensor(tensors.weight, {s.out, s.in / s.conv.groups, s.conv.kernel_h * s.conv.kernel_w}, !first),
      tensor(tensors.y, {s.n, s.out_h * s.out_w, s.out}, first),
  };
  const auto copied = [](const Tensor& t) {
    return t.transposed || reinterpret_cast<std::uintptr_t>(t.data) % 16 != 0;
  };

  std::size_t copies_bytes = 0;
  for (const Tensor& t : all) copies_bytes += copied(t) ? round_up(t.bytes()) : 0;
  const auto& [algorithm, workspace_bytes] = plan.candidates.front();
  std::byte* work = backend_.scratch(copies_bytes + workspace_bytes);

  Pointers pointers;
  for (std::size_t i = 0; i < all.size(); ++i) {
    Tensor& t = all[i];
    pointers.at[i] = t.data;
    if (!copied(t)) continue;
    t.copy = reinterpret_cast<float*>(work);
    pointers.at[i] = t.copy;
    work += round_up(t.bytes());
    if (i != Operation::output) transpose(Operation::name, backend_, t.shape, t.data, t.copy);
  }

  const Tensor& output = all[Operation::output];
  const bool add_afterwards = output.copy != nullptr;
  const float beta = accumulate && !add_afterwards ? 1 : 0;
  const Workspace workspace{workspace_bytes > 0 ? work : nullptr, workspace_bytes};
  const cudnnStatus_t status =
      Operation::run(handle(), plan.descriptors, static_cast<typename Operation::Algorithm>(algorithm),
                     pointers, workspace, beta);
  if (status == CUDNN_STATUS_SUCCESS && add_afterwards) {
    const Matrices other{output.shape.count, output.shape.columns, output.shape.rows};
    transpose(Operation::name, backend_, other, output.copy, output.data, accumulate);
  }
  return status;
}

template <class Operation>
void Convolutions::execute(const ConvolutionSizes& sizes, const Tensors& tensors, bool accumulate) {
  auto& plan = plans_.find_or_make<Plan>(key_of(Operation::number, sizes), [&] {
    require_size(sizes);
    return std::make_unique<Plan>();
  });
  const int stages = backend_.deterministic() ? Plan::deterministic_stages : Plan::stages;
  for (;;) {
    while (plan.candidates.empty()) {
      if (plan.stage + 1 >= stages) {
        fail(ExitCode::device, "cuDNN has no {}algorithm on {} for {} of {}: {}",
             backend_.deterministic() ? "deterministic " : "", device_text(), Operation::name, text_of(sizes),
             cudnnGetErrorString(plan.last_answer));
      }
      ++plan.stage;
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

void Convolutions::forward(const ConvolutionSizes& sizes, const float* x, const float* weight, float* y) {
  execute<Forward>(sizes, {x, weight, y}, false);
}

void Convolutions::backward_data(const ConvolutionSizes& sizes, const float* dy, const float* weight,
                                 float* dx) {
  execute<BackwardData>(sizes, {dx, weight, dy}, false);
}

void Convolutions::backward_weights(const ConvolutionSizes& sizes, const float* x, const float* dy,
                                    float* dweight, bool accumulate) {
  execute<BackwardWeights>(sizes, {x, dweight, dy}, accumulate);
}

}  // namespace motley::cuda
