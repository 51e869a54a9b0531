#include "kernels/cuda/matrix_products.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_backend.h"

namespace motley::cuda {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string_view text = call;
  const std::string sentence =
      fmt::format("{} failed on {}: {} ({})", text.substr(0, text.find('(')), device_text(),
                  cublasGetStatusString(status), cublasGetStatusName(status));
  // What cuBLAS takes by itself, when a kernel is first used, fails with other words.
  const bool may_be_memory =
      status == CUBLAS_STATUS_NOT_INITIALIZED || status == CUBLAS_STATUS_INTERNAL_ERROR;
  constexpr std::size_t scarce = std::size_t{64} << 20;
  std::size_t free = 0, total = 0;
  const bool out_of_memory =
      status == CUBLAS_STATUS_ALLOC_FAILED ||
      (may_be_memory && cudaMemGetInfo(&free, &total) == cudaSuccess && free < scarce);
  if (out_of_memory) throw OutOfMemory(sentence);
  throw Error(ExitCode::device, sentence);
}

// The call's own text up to its arguments is its name in the sentence.
#define MOTLEY_CUBLAS(call) check((call), #call)

cudaDataType_t type_of(DType type) {
  switch (type) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    default:
      fail(ExitCode::internal, "{} matrices cannot be multiplied", name_of(type));
  }
}

cublasOperation_t operation(bool transpose) {
  return transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
}

// What NVIDIA recommends for the generation, unless memory is scarce; below 16 KiB cuBLAS may refuse to work.
std::size_t workspace_size(int capability, std::size_t memory_limit) {
  const std::size_t recommended = std::size_t{capability >= 90 ? 32u : 4u} << 20;
  const std::size_t bytes = std::clamp<std::size_t>(memory_limit / 512, std::size_t{64} << 10, recommended);
  return bytes / 256 * 256;
}

std::int64_t piece_size(std::int64_t cache_bytes, std::size_t memory_limit) {
  constexpr std::int64_t least = std::int64_t{4} << 20, most = std::int64_t{32} << 20;
  return std::min(std::clamp(cache_bytes / 3, least, most), static_cast<std::int64_t>(memory_limit / 64));
}

// The power of two up to 16 that divides an address. No algorithm asks for more than 16, so that results do
// not depend on where else a matrix lies.
std::uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer) | 16u;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

// A matrix as BLAS sees it: our columns are its rows.
cublasLtMatrixLayout_t make_layout(DType type, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  MOTLEY_CUBLAS(cublasLtMatrixLayoutCreate(&layout, type_of(type), static_cast<std::uint64_t>(columns),
                                           static_cast<std::uint64_t>(rows), columns));
  return layout;
}

struct Preference {
  Preference() { MOTLEY_CUBLAS(cublasLtMatmulPreferenceCreate(&handle)); }
  ~Preference() { cublasLtMatmulPreferenceDestroy(handle); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    MOTLEY_CUBLAS(cublasLtMatmulPreferenceSetAttribute(handle, attribute, &value, sizeof(value)));
  }
  cublasLtMatmulPreference_t handle = nullptr;
};

constexpr std::size_t plans_kept = 1024;  // micro-batch sizes change over a run

int narrow(std::int64_t value) {
  MOTLEY_CHECK(value >= 0 && value <= std::numeric_limits<int>::max());
  return static_cast<int>(value);
}

}  // namespace

// A product of one shape, prepared. Not `found`: cuBLASLt has no algorithm for it.
struct MatrixProducts::Plan {
  Plan() = default;
  ~Plan() {
    if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
    for (const auto layout : {first, second, result})
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) const {
    MOTLEY_CUBLAS(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
  }

  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  bool found = false;
  cublasLtMatmulAlgo_t algorithm{};
};

MatrixProducts::MatrixProducts(CudaBackend& backend)
    : backend_(backend),
      workspace_bytes_(workspace_size(backend.capability(), backend.whole_memory_bytes())),
      piece_bytes_(piece_size(backend.cache_bytes(), backend.whole_memory_bytes())) {
  MOTLEY_CUBLAS(cublasLtCreate(&lt_));
}

MatrixProducts::~MatrixProducts() {
  plans_.clear();
  if (blas_ != nullptr) cublasDestroy(blas_);
  if (lt_ != nullptr) cublasLtDestroy(lt_);
}

void* MatrixProducts::workspace() {
  if (workspace_.data() == nullptr) workspace_ = Buffer(backend_, workspace_bytes_);
  return workspace_.data();
}

void MatrixProducts::release_memory() {
  workspace_ = Buffer();
  widened_ = Buffer();
  blas_has_workspace_ = false;
}

std::unique_ptr<MatrixProducts::Plan> MatrixProducts::make_plan(const Problem& problem) const {
  const Product& p = problem.product;
  auto plan = std::make_unique<Plan>();
  MOTLEY_CUBLAS(cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  plan->set(CUBLASLT_MATMUL_DESC_TRANSA, operation(p.transpose_b));
  plan->set(CUBLASLT_MATMUL_DESC_TRANSB, operation(p.transpose_a));
  if (problem.bias) plan->set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  plan->first = p.transpose_b ? make_layout(p.in, p.n, p.k) : make_layout(p.in, p.k, p.n);
  plan->second = p.transpose_a ? make_layout(p.in, p.k, p.m) : make_layout(p.in, p.m, p.k);
  plan->result = make_layout(p.out, p.m, p.n);
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_bytes_});
  preference.set(
      CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE} | std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, problem.alignment_b);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, problem.alignment_a);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, problem.alignment_c);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, problem.alignment_c);
  cublasLtMatmulHeuristicResult_t best{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(lt_, plan->operation, plan->first, plan->second, plan->result,
                                     plan->result, preference.handle, 1, &best, &count);
  // That there is none is an answer, of which takes_bias() makes use.
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "cublasLtMatmulAlgoGetHeuristic");
  plan->found = status == CUBLAS_STATUS_SUCCESS && count > 0 && best.state == CUBLAS_STATUS_SUCCESS;
  plan->algorithm = best.algo;
  return plan;
}

const MatrixProducts::Plan& MatrixProducts::plan_of(const Product& p, const void* a, const void* b,
                                                    const void* c, bool bias) {
  Problem problem{p, bias, alignment_of(a), alignment_of(b), alignment_of(c)};
  problem.product.accumulate = false;  // makes no difference to it
  const auto known = plans_.find(problem);
  if (known != plans_.end()) return *known->second;
  if (plans_.size() >= plans_kept) plans_.clear();
  return *plans_.emplace(problem, make_plan(problem)).first->second;
}

bool MatrixProducts::takes_bias(const Product& p, const void* a, const void* b, const void* c,
                                const float* bias) {
  // The bias is read in packs whose alignment the heuristics are not told.
  return bias != nullptr && p.out == DType::f32 && alignment_of(bias) == 16 &&
         multiplies(backend_.capability(), p.in) && plan_of(p, a, b, c, true).found;
}

void MatrixProducts::multiply(const Product& p, const void* a, const void* b, void* c, const float* bias) {
  if (!multiplies(backend_.capability(), p.in)) {
    MOTLEY_CHECK(bias == nullptr);
    return multiply_widened(p, a, b, c);
  }
  const Plan& plan = plan_of(p, a, b, c, bias != nullptr);
  if (!plan.found) check(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic");
  if (bias != nullptr) plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  const float alpha = 1, beta = p.accumulate ? 1.0f : 0.0f;
  void* const memory = workspace();
  MOTLEY_CUBLAS(cublasLtMatmul(lt_, plan.operation, &alpha, b, plan.first, a, plan.second, &beta, c,
                               plan.result, c, plan.result, &plan.algorithm, memory, workspace_bytes_,
                               backend_.stream()));
}

void MatrixProducts::multiply_widened(const Product& p, const void* a, const void* b, void* c) {
  const bool narrow_result = p.out != DType::f32;
  const auto room = [](std::int64_t elements) {
    return (static_cast<std::size_t>(elements) * sizeof(float) + 255) / 256 * 256;
  };
  const std::size_t room_a = room(p.m * p.k), room_b = room(p.k * p.n),
                    room_c = narrow_result ? room(p.m * p.n) : 0;
  if (widened_.bytes() < room_a + room_b + room_c) {
    widened_ = Buffer();  // first give the old memory back, so that the two never count together
    widened_ = Buffer(backend_, room_a + room_b + room_c);
  }
  const View wide_a = widened_.view(DType::f32, {p.m * p.k}),
             wide_b = widened_.view(DType::f32, {p.k * p.n}, room_a);
  backend_.cast({a, p.in, wide_a.shape}, wide_a);
  backend_.cast({b, p.in, wide_b.shape}, wide_b);
  Product wide = p;
  wide.in = wide.out = DType::f32;
  if (!narrow_result) return multiply(wide, wide_a.data, wide_b.data, c);
  const View wide_c = widened_.view(DType::f32, {p.m * p.n}, room_a + room_b),
             narrow_c{c, p.out, wide_c.shape};
  if (p.accumulate) backend_.cast(narrow_c, wide_c);
  multiply(wide, wide_a.data, wide_b.data, wide_c.data);
  backend_.cast(wide_c, narrow_c);
}

cublasHandle_t MatrixProducts::batched_handle() {
  if (blas_ == nullptr) {
    MOTLEY_CUBLAS(cublasCreate(&blas_));
    // Never TF32, and partial sums of a product that is cut along its depth stay float32.
    MOTLEY_CUBLAS(cublasSetMathMode(
        blas_,
        static_cast<cublasMath_t>(static_cast<int>(CUBLAS_DEFAULT_MATH) |
                                  static_cast<int>(CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION))));
    MOTLEY_CUBLAS(cublasSetStream(blas_, backend_.outer_stream()));
  }
  if (!blas_has_workspace_) {
    MOTLEY_CUBLAS(cublasSetWorkspace(blas_, workspace(), workspace_bytes_));
    blas_has_workspace_ = true;
  }
  return blas_;
}

void MatrixProducts::multiply_batched(const BatchedProduct& p, const void* const* a, const void* const* b,
                                      void* const* c) {
  const cublasHandle_t handle = batched_handle();
  const float beta = 0;
  backend_.stream();  // which the handle has
  MOTLEY_CUBLAS(cublasGemmBatchedEx(handle, operation(p.transpose_b), operation(p.transpose_a), narrow(p.n),
                                    narrow(p.m), narrow(p.k), &p.factor, b, type_of(p.in), narrow(p.row_b), a,
                                    type_of(p.in), narrow(p.row_a), &beta, c, type_of(p.out), narrow(p.row_c),
                                    narrow(p.count), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

}  // namespace motley::cuda
