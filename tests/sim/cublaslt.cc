// The calls of cuBLASLt that the program makes, as the cuBLAS Library manual describes them.
#include <cublasLt.h>

#include <compare>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "blas.h"
#include "device.h"
#include "simt.h"

namespace sim = motley::sim;

struct cublasLtContext {
  int device = 0;
};

namespace {

struct Layout {
  cudaDataType_t type = CUDA_R_32F;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t ld = 0;

  auto operator<=>(const Layout&) const = default;
};

struct Operation {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
  cublasOperation_t transa = CUBLAS_OP_N, transb = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;

  auto operator<=>(const Operation&) const = default;
};

struct Preference {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
};

// What an algorithm was found for.
struct Problem {
  Operation operation;
  Layout a, b, c, d;

  auto operator<=>(const Problem&) const = default;
};

struct Algorithm {
  Problem problem;
  Preference preference;
  std::size_t workspace_bytes = 0;
};

struct Described {
  Operation operation;
  const void* bias = nullptr;
};

// All objects that live, by their handles.
struct Library {
  std::set<cublasLtHandle_t> handles;
  std::map<cublasLtMatrixLayout_t, Layout> layouts;
  std::map<cublasLtMatmulDesc_t, Described> operations;
  std::map<cublasLtMatmulPreference_t, Preference> preferences;
  std::vector<Algorithm> algorithms;
};

Library& library() {
  static auto* const one = new Library;
  return *one;
}

template <class F>
cublasStatus_t entry(const char* name, F work) {
  const sim::Call call(name);
  if (call.fault()) return static_cast<cublasStatus_t>(*call.fault());
  return work();
}

template <class Map>
auto& object_of(const char* name, Map& objects, typename Map::key_type handle) {
  const auto found = objects.find(handle);
  if (found == objects.end()) throw sim::Violation(std::string(name) + ": a descriptor that does not exist");
  return found->second;
}

template <class T>
bool set(T& field, const void* value, std::size_t bytes) {
  if (bytes != sizeof(T)) return false;
  std::memcpy(&field, value, bytes);
  return true;
}

cublasStatus_t result_of(bool done) {
  return done ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

constexpr std::uint64_t algorithm_mark = 0x6d6f746c65794c74;

bool extents_fit(const Problem& p) {
  const bool turn_a = p.operation.transa != CUBLAS_OP_N, turn_b = p.operation.transb != CUBLAS_OP_N;
  const std::uint64_t m = turn_a ? p.a.columns : p.a.rows, k = turn_a ? p.a.rows : p.a.columns;
  const std::uint64_t depth_b = turn_b ? p.b.columns : p.b.rows, n = turn_b ? p.b.rows : p.b.columns;
  return m > 0 && n > 0 && k > 0 && k == depth_b && p.c.rows == m && p.c.columns == n && p.d.rows == m &&
         p.d.columns == n;
}

bool supported(const Problem& p) {
  return p.operation.compute == CUBLAS_COMPUTE_32F && p.operation.scale == CUDA_R_32F &&
         p.a.type == p.b.type && p.c.type == p.d.type && sim::gemm_types_supported(p.a.type, p.d.type) &&
         sim::device_multiplies(p.a.type);
}

void check_matrix(const char* argument, const void* pointer, const Layout& layout, std::uint32_t alignment) {
  sim::check_device("cublasLtMatmul", argument, pointer,
                    sim::matrix_bytes(layout.type, static_cast<std::int64_t>(layout.rows),
                                      static_cast<std::int64_t>(layout.columns), layout.ld),
                    std::max<std::size_t>(alignment, sim::element_bytes(layout.type)));
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return entry("cublasLtCreate", [&] {
    *handle = new cublasLtContext{sim::current_device()};
    library().handles.insert(*handle);
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return entry("cublasLtDestroy", [&] {
    if (library().handles.erase(handle) == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns, std::int64_t ld) {
  return entry("cublasLtMatrixLayoutCreate", [&] {
    *layout = new cublasLtMatrixLayoutOpaque_t{};
    library().layouts[*layout] = {type, rows, columns, ld};
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return entry("cublasLtMatrixLayoutDestroy", [&] {
    object_of("cublasLtMatrixLayoutDestroy", library().layouts, layout);
    library().layouts.erase(layout);
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return entry("cublasLtMatmulDescCreate", [&] {
    *operation = new cublasLtMatmulDescOpaque_t{};
    library().operations[*operation].operation = {compute, scale};
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  return entry("cublasLtMatmulDescDestroy", [&] {
    object_of("cublasLtMatmulDescDestroy", library().operations, operation);
    library().operations.erase(operation);
    delete operation;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              std::size_t bytes) {
  constexpr auto name = "cublasLtMatmulDescSetAttribute";
  return entry(name, [&] {
    Described& o = object_of(name, library().operations, operation);
    switch (attribute) {
      case CUBLASLT_MATMUL_DESC_TRANSA:
        return result_of(set(o.operation.transa, value, bytes));
      case CUBLASLT_MATMUL_DESC_TRANSB:
        return result_of(set(o.operation.transb, value, bytes));
      case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return result_of(set(o.operation.epilogue, value, bytes));
      case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return result_of(set(o.bias, value, bytes));
      default:
        throw sim::Violation(std::string(name) + ": attribute " + std::to_string(attribute) +
                             " is not simulated");
    }
  });
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return entry("cublasLtMatmulPreferenceCreate", [&] {
    *preference = new cublasLtMatmulPreferenceOpaque_t{};
    library().preferences[*preference] = {};
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return entry("cublasLtMatmulPreferenceDestroy", [&] {
    object_of("cublasLtMatmulPreferenceDestroy", library().preferences, preference);
    library().preferences.erase(preference);
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  constexpr auto name = "cublasLtMatmulPreferenceSetAttribute";
  return entry(name, [&] {
    Preference& p = object_of(name, library().preferences, preference);
    switch (attribute) {
      case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return result_of(set(p.workspace_bytes, value, bytes));
      case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return result_of(set(p.reduction_schemes, value, bytes));
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return result_of(set(p.alignment_a, value, bytes));
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return result_of(set(p.alignment_b, value, bytes));
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return result_of(set(p.alignment_c, value, bytes));
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return result_of(set(p.alignment_d, value, bytes));
      default:
        throw sim::Violation(std::string(name) + ": attribute " + std::to_string(attribute) +
                             " is not simulated");
    }
  });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* returned) {
  constexpr auto name = "cublasLtMatmulAlgoGetHeuristic";
  return entry(name, [&]() -> cublasStatus_t {
    Library& l = library();
    *returned = 0;
    if (!l.handles.contains(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (requested <= 0) return CUBLAS_STATUS_INVALID_VALUE;
    Algorithm algorithm;
    algorithm.problem = {object_of(name, l.operations, operation).operation, object_of(name, l.layouts, a),
                         object_of(name, l.layouts, b), object_of(name, l.layouts, c),
                         object_of(name, l.layouts, d)};
    algorithm.preference = object_of(name, l.preferences, preference);
    const Problem& p = algorithm.problem;
    for (const Layout& layout : {p.a, p.b, p.c, p.d})
      if (layout.ld < static_cast<std::int64_t>(layout.rows)) return CUBLAS_STATUS_INVALID_VALUE;
    if (p.operation.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p.operation.epilogue != CUBLASLT_EPILOGUE_BIAS)
      throw sim::Violation(std::string(name) + ": an epilogue that is not simulated");
    if (!extents_fit(p)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!supported(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    // Of different kinds, as the real ones are: some need no workspace, some all of it.
    algorithm.workspace_bytes = (p.a.rows + p.b.columns) % 3 == 0
                                    ? 0
                                    : static_cast<std::size_t>(algorithm.preference.workspace_bytes);
    l.algorithms.push_back(algorithm);
    results[0] = {};
    results[0].algo.data[0] = algorithm_mark;
    results[0].algo.data[1] = l.algorithms.size() - 1;
    results[0].workspaceSize = algorithm.workspace_bytes;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    results[0].wavesCount = 1;
    *returned = 1;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t stream) {
  constexpr auto name = "cublasLtMatmul";
  return entry(name, [&]() -> cublasStatus_t {
    const Library& l = library();
    if (!l.handles.contains(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (handle->device != sim::current_device())
      throw sim::Violation("cublasLtMatmul: the handle belongs to another device than the current one");
    const Described& o = object_of(name, l.operations, operation);
    const Problem p{o.operation, object_of(name, l.layouts, a_layout), object_of(name, l.layouts, b_layout),
                    object_of(name, l.layouts, c_layout), object_of(name, l.layouts, d_layout)};
    if (algo == nullptr) throw sim::Violation("cublasLtMatmul: no algorithm was given");
    if (algo->data[0] != algorithm_mark || algo->data[1] >= l.algorithms.size())
      throw sim::Violation("cublasLtMatmul: an algorithm that the heuristics did not give");
    const Algorithm& algorithm = l.algorithms[algo->data[1]];
    if (algorithm.problem != p)
      throw sim::Violation("cublasLtMatmul: the algorithm was found for another problem");
    sim::check_host_scale(name, "alpha", alpha);
    sim::check_host_scale(name, "beta", beta);
    sim::Gemm gemm;
    gemm.transpose_a = p.operation.transa != CUBLAS_OP_N;
    gemm.transpose_b = p.operation.transb != CUBLAS_OP_N;
    gemm.m = static_cast<std::int64_t>(p.d.rows), gemm.n = static_cast<std::int64_t>(p.d.columns);
    gemm.k = static_cast<std::int64_t>(gemm.transpose_a ? p.a.rows : p.a.columns);
    gemm.alpha = *static_cast<const float*>(alpha), gemm.beta = *static_cast<const float*>(beta);
    gemm.in = p.a.type, gemm.out = p.d.type;
    gemm.lda = p.a.ld, gemm.ldb = p.b.ld, gemm.ldc = p.d.ld;
    const Preference& preference = algorithm.preference;
    check_matrix("A", a, p.a, preference.alignment_a);
    check_matrix("B", b, p.b, preference.alignment_b);
    check_matrix("D", d, p.d, preference.alignment_d);
    if (c != d || p.c != p.d) throw sim::Violation("cublasLtMatmul: only products with C = D are simulated");
    const bool with_bias = p.operation.epilogue == CUBLASLT_EPILOGUE_BIAS;
    if (with_bias) {
      // Of the result's type, and read in packs of up to 16 bytes.
      sim::check_device(name, "the bias", o.bias, p.d.rows * sim::element_bytes(p.d.type), 16);
      if (o.bias == nullptr) throw sim::Violation("cublasLtMatmul: the epilogue has no bias");
    }
    if (workspace_bytes > 0) sim::check_device(name, "workspace", workspace, workspace_bytes, 256);
    if (workspace_bytes < algorithm.workspace_bytes)
      throw sim::Violation("cublasLtMatmul: the workspace is smaller than the algorithm's");
    const std::size_t used = std::min<std::size_t>(algorithm.workspace_bytes, 64 << 10);
    const cudaError_t error = sim::enqueue(stream, name, [=, bias = with_bias ? o.bias : nullptr] {
      std::memset(workspace, 0xFF, used);
      sim::run_gemm(gemm, a, b, d, bias);
      return true;
    });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
  });
}

}  // extern "C"
