// The calls of cuBLAS that the program makes, as the cuBLAS Library manual describes them.
#include <cublas_v2.h>

#include <set>
#include <string>

#include "blas.h"
#include "cudart.h"
#include "device.h"
#include "simt.h"

namespace sim = motley::sim;

struct cublasContext {
  int device = 0;
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  unsigned math_mode = CUBLAS_DEFAULT_MATH;
};

namespace {

std::set<cublasHandle_t>& handles() {
  static auto* const all = new std::set<cublasHandle_t>;
  return *all;
}

// Runs `work` unless the call is to fail.
template <class F>
cublasStatus_t entry(const char* name, F work) {
  const sim::Call call(name);
  if (call.fault()) return static_cast<cublasStatus_t>(*call.fault());
  return work();
}

template <class F>
cublasStatus_t with_handle(const char* name, cublasHandle_t handle, F work) {
  return entry(name, [&]() -> cublasStatus_t {
    if (!handles().contains(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (handle->device != sim::current_device())
      throw sim::Violation(std::string(name) + ": the handle belongs to another device than the current one");
    return work(*handle);
  });
}

constexpr std::size_t least_workspace_bytes = 16 << 10;

// Device memory of pointers to matrices, looked at when the stream comes to it.
void check_matrices(const char* argument, const void* const* matrices, int count, std::size_t bytes,
                    std::size_t alignment) {
  for (int i = 0; i < count; ++i)
    sim::check_device("cublasGemmBatchedEx", argument, matrices[i], bytes, alignment);
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  return entry("cublasCreate", [&] {
    *handle = new cublasContext{.device = sim::current_device()};
    handles().insert(*handle);
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  return with_handle("cublasDestroy", handle, [&](cublasContext&) {
    sim::synchronize_device();
    handles().erase(handle);
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  return with_handle("cublasSetStream", handle, [&](cublasContext& context) {
    context.stream = stream;
    // The workspace becomes the library's own again, whatever it was.
    context.workspace = nullptr;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  return with_handle("cublasSetWorkspace", handle, [&](cublasContext& context) -> cublasStatus_t {
    sim::check_device("cublasSetWorkspace", "workspace", workspace, bytes);
    if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) return CUBLAS_STATUS_INVALID_VALUE;
    context.workspace = workspace;
    context.workspace_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  return with_handle("cublasSetMathMode", handle, [&](cublasContext& context) {
    const auto bits = static_cast<unsigned>(mode);
    if ((bits & ~static_cast<unsigned>(CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)) !=
        CUBLAS_DEFAULT_MATH)
      throw sim::Violation("cublasSetMathMode: only the default mode is simulated");
    context.math_mode = bits;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                   int m, int n, int k, const void* alpha, const void* const a[],
                                   cudaDataType a_type, int lda, const void* const b[], cudaDataType b_type,
                                   int ldb, const void* beta, void* const c[], cudaDataType c_type, int ldc,
                                   int count, cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
  constexpr auto name = "cublasGemmBatchedEx";
  return with_handle(name, handle, [&](cublasContext& context) -> cublasStatus_t {
    const bool turn_a = transa != CUBLAS_OP_N, turn_b = transb != CUBLAS_OP_N;
    if (m < 0 || n < 0 || k < 0 || count < 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (lda < std::max(1, turn_a ? k : m) || ldb < std::max(1, turn_b ? n : k) || ldc < std::max(1, m))
      return CUBLAS_STATUS_INVALID_VALUE;
    if (transa == CUBLAS_OP_C || transb == CUBLAS_OP_C || algorithm != CUBLAS_GEMM_DEFAULT)
      throw sim::Violation("cublasGemmBatchedEx: an operation or algorithm that is not simulated");
    if (compute != CUBLAS_COMPUTE_32F || a_type != b_type || !sim::gemm_types_supported(a_type, c_type))
      return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!sim::device_multiplies(a_type)) return CUBLAS_STATUS_ARCH_MISMATCH;
    if (m == 0 || n == 0 || count == 0) return CUBLAS_STATUS_SUCCESS;
    sim::check_host_scale(name, "alpha", alpha);
    sim::check_host_scale(name, "beta", beta);
    const std::size_t pointers = static_cast<std::size_t>(count) * sizeof(void*);
    sim::check_device(name, "Aarray", a, pointers, sizeof(void*));
    sim::check_device(name, "Barray", b, pointers, sizeof(void*));
    sim::check_device(name, "Carray", c, pointers, sizeof(void*));
    // Without one of the user's, results may differ from run to run.
    if (context.workspace == nullptr)
      throw sim::Violation("cublasGemmBatchedEx: the handle has no workspace for its stream");
    if (context.workspace_bytes < least_workspace_bytes) return CUBLAS_STATUS_ALLOC_FAILED;
    sim::Gemm gemm{turn_a, turn_b, m, n, k};
    gemm.alpha = *static_cast<const float*>(alpha);
    gemm.beta = *static_cast<const float*>(beta);
    gemm.in = a_type, gemm.out = c_type;
    gemm.lda = lda, gemm.ldb = ldb, gemm.ldc = ldc;
    // Tensor cores read in packs: the manual's rule for matrices of 16-bit elements.
    const std::size_t element = sim::element_bytes(a_type);
    const std::size_t alignment = element == 4 ? 4 : k % 8 == 0 ? 16 : k % 2 == 0 ? 4 : 2;
    void* const workspace = context.workspace;
    const cudaError_t error = sim::enqueue(context.stream, name, [=] {
      const std::size_t bytes_a = sim::matrix_bytes(a_type, turn_a ? k : m, turn_a ? m : k, lda);
      const std::size_t bytes_b = sim::matrix_bytes(b_type, turn_b ? n : k, turn_b ? k : n, ldb);
      check_matrices("A", a, count, bytes_a, alignment);
      check_matrices("B", b, count, bytes_b, alignment);
      check_matrices("C", c, count, sim::matrix_bytes(c_type, m, n, ldc),
                     c_type == a_type ? alignment : sim::element_bytes(c_type));
      std::memset(workspace, 0xFF, least_workspace_bytes);
      for (int i = 0; i < count; ++i) sim::run_gemm(gemm, a[i], b[i], c[i], nullptr);
      return true;
    });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
  });
}

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "a status that the simulated device has no name for";
  }
}

const char* cublasGetStatusString(cublasStatus_t status) {
  static thread_local std::string text;
  text = "simulated status " + std::to_string(static_cast<int>(status));
  return text.c_str();
}

}  // extern "C"
