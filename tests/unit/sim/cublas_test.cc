// The stand-ins of cuBLAS and cuBLASLt compute by columns, and refuse what the libraries would refuse or do
// silently wrong.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "device.h"
#include "simt.h"

namespace motley::sim {
namespace {

// Device memory with values.
class Memory {
 public:
  explicit Memory(const std::vector<float>& values) : count_(values.size()) {
    EXPECT_EQ(cudaMalloc(&data_, count_ * sizeof(float)), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(data_, values.data(), count_ * sizeof(float), cudaMemcpyHostToDevice, nullptr),
              cudaSuccess);
  }
  explicit Memory(std::size_t bytes) : count_(bytes / sizeof(float)) { cudaMalloc(&data_, bytes); }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  float* data() const { return static_cast<float*>(data_); }
  std::vector<float> values() const {
    std::vector<float> result(count_);
    cudaMemcpyAsync(result.data(), data_, count_ * sizeof(float), cudaMemcpyDeviceToHost, nullptr);
    return result;
  }

 private:
  void* data_ = nullptr;
  std::size_t count_;
};

// --- cuBLASLt ---------------------------------------------------------------------------------------------

constexpr std::size_t workspace_bytes = 4096;

// C [2, 2] = A [2, 3] B [3, 2] by columns.
class CublasLt : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulPreferenceCreate(&preference);
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_bytes});
    for (const auto alignment :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(alignment, std::uint32_t{16});
  }
  void TearDown() override {
    for (const auto one : layouts) cublasLtMatrixLayoutDestroy(one);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(operation);
    cublasLtDestroy(handle);
  }
  template <class T>
  void prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    ASSERT_EQ(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
              CUBLAS_STATUS_SUCCESS);
  }
  template <class T>
  cublasStatus_t describe(cublasLtMatmulDescAttributes_t attribute, T value) {
    return cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value));
  }
  cublasLtMatrixLayout_t layout(std::uint64_t rows, std::uint64_t columns, std::int64_t ld,
                                cudaDataType_t type = CUDA_R_32F) {
    cublasLtMatrixLayout_t made = nullptr;
    cublasLtMatrixLayoutCreate(&made, type, rows, columns, ld);
    layouts.push_back(made);
    return made;
  }
  cublasStatus_t find(cublasLtMatrixLayout_t first, cublasLtMatrixLayout_t second,
                      cublasLtMatrixLayout_t result) {
    int count = 0;
    return cublasLtMatmulAlgoGetHeuristic(handle, operation, first, second, result, result, preference, 1,
                                          &found, &count);
  }
  cublasStatus_t multiply(const void* first, const void* second, void* result, float beta = 0) {
    const float alpha = 1;
    return cublasLtMatmul(handle, operation, &alpha, first, a, second, b, &beta, result, c, result, c,
                          &found.algo, workspace.data(), workspace_given, nullptr);
  }

  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  std::vector<cublasLtMatrixLayout_t> layouts;
  cublasLtMatmulHeuristicResult_t found{};
  cublasLtMatrixLayout_t a = layout(2, 3, 2), b = layout(3, 2, 3), c = layout(2, 2, 2);
  std::size_t workspace_given = workspace_bytes;
  const Memory workspace{workspace_bytes};
  const Memory x{{1, 2, 3, 4, 5, 6}}, y{{1, 0, 1, 0, 1, 2}};
};

TEST_F(CublasLt, multiplies_by_columns_and_does_not_read_a_result_that_beta_leaves_out) {
  const Memory z({NAN, NAN, NAN, NAN}), bias({100, 200, 0, 0});
  ASSERT_EQ(find(a, b, c), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(multiply(x.data(), y.data(), z.data()), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(z.values(), (std::vector<float>{6, 8, 13, 16}));
  ASSERT_EQ(multiply(x.data(), y.data(), z.data(), 1), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(z.values(), (std::vector<float>{12, 16, 26, 32}));
  describe(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  describe(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.data()));
  ASSERT_EQ(find(a, b, c), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(multiply(x.data(), y.data(), z.data()), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(z.values(), (std::vector<float>{106, 208, 113, 216}));
}

TEST_F(CublasLt, turns_its_operands) {
  const Memory z({0, 0, 0, 0});
  describe(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  describe(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T);
  a = layout(3, 2, 3), b = layout(2, 3, 2);
  ASSERT_EQ(find(a, b, c), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(multiply(x.data(), y.data(), z.data()), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(z.values(), (std::vector<float>{1 + 2 + 3, 4 + 5 + 6, 3 * 2, 6 * 2}));
}

TEST_F(CublasLt, extents_leading_dimensions_and_types_are_checked) {
  EXPECT_EQ(find(layout(2, 4, 2), b, c), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(find(layout(2, 3, 1), b, c), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(find(a, b, layout(3, 2, 3)), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(find(layout(2, 3, 2, CUDA_R_16F), b, c), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(find(a, b, layout(2, 2, 2, CUDA_R_16F)), CUBLAS_STATUS_NOT_SUPPORTED);
  const auto half_a = layout(2, 3, 2, CUDA_R_16BF), half_b = layout(3, 2, 3, CUDA_R_16BF);
  EXPECT_EQ(find(half_a, half_b, c), CUBLAS_STATUS_SUCCESS);
  ::setenv("MOTLEY_SIM_CAPABILITY", "75", 1);
  EXPECT_EQ(find(half_a, half_b, c), CUBLAS_STATUS_NOT_SUPPORTED);
  ::unsetenv("MOTLEY_SIM_CAPABILITY");
  EXPECT_EQ(describe(CUBLASLT_MATMUL_DESC_TRANSA, std::int64_t{1}), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_THROW(describe(CUBLASLT_MATMUL_DESC_POINTER_MODE, 0), Violation);
}

TEST_F(CublasLt, an_algorithm_serves_the_problem_that_it_was_found_for) {
  const Memory z({0, 0, 0, 0});
  EXPECT_THROW(multiply(x.data(), y.data(), z.data()), Violation);
  ASSERT_EQ(find(a, b, c), CUBLAS_STATUS_SUCCESS);
  describe(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  EXPECT_THROW(multiply(x.data(), y.data(), z.data()), Violation);
  ASSERT_EQ(find(a, b, c), CUBLAS_STATUS_SUCCESS);
  EXPECT_THROW(multiply(x.data(), y.data(), z.data()), Violation) << "there is no bias";
}

TEST_F(CublasLt, memory_is_on_the_device_large_enough_and_aligned_as_promised) {
  const Memory z({0, 0, 0, 0, 0, 0, 0, 0});
  std::vector<float> host(6);
  ASSERT_EQ(find(a, b, c), CUBLAS_STATUS_SUCCESS);
  EXPECT_THROW(multiply(host.data(), y.data(), z.data()), Violation);
  EXPECT_THROW(multiply(x.data(), y.data() + 4, z.data()), Violation);
  EXPECT_THROW(multiply(x.data(), y.data(), z.data() + 1), Violation);
  // Extents [3, 2] are of the kind that uses the workspace.
  a = layout(3, 3, 3), b = layout(3, 2, 3), c = layout(3, 2, 3);
  const Memory nine(std::vector<float>(9, 1.0f));
  ASSERT_EQ(find(a, b, c), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(multiply(nine.data(), y.data(), z.data()), CUBLAS_STATUS_SUCCESS);
  workspace_given = found.workspaceSize / 2;
  ASSERT_GT(found.workspaceSize, 0u);
  EXPECT_THROW(multiply(nine.data(), y.data(), z.data()), Violation);
}

// --- cuBLAS -----------------------------------------------------------------------------------------------

// Two products C [2, 2] = A [2, 3] B [3, 2] by columns.
class Cublas : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
    cublasSetStream(handle, nullptr);
    ASSERT_EQ(cublasSetWorkspace(handle, workspace.data(), 16 << 10), CUBLAS_STATUS_SUCCESS);
  }
  void TearDown() override { cublasDestroy(handle); }

  // Of pointers to matrices.
  static std::vector<float> pointers(std::initializer_list<const float*> matrices) {
    std::vector<float> words(matrices.size() * 2);
    std::memcpy(words.data(), matrices.begin(), matrices.size() * sizeof(float*));
    return words;
  }
  cublasStatus_t multiply(const Memory& first, const Memory& second, const Memory& result,
                          cudaDataType_t in = CUDA_R_32F, cudaDataType_t out = CUDA_R_32F, int lda = 2,
                          const float* alpha = nullptr) {
    const float one = 1, zero = 0;
    const auto at = [](const Memory& m) { return reinterpret_cast<void**>(m.data()); };
    return cublasGemmBatchedEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 3, alpha == nullptr ? &one : alpha,
                               at(first), in, lda, at(second), in, 3, &zero, at(result), out, 2, 2,
                               CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  }

  cublasHandle_t handle = nullptr;
  const Memory workspace{std::size_t{16 << 10}};
  const Memory x{{1, 2, 3, 4, 5, 6}}, y{{1, 0, 1, 0, 1, 2}}, z{{NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN}};
  const Memory a{pointers({x.data(), x.data()})}, b{pointers({y.data(), y.data()})},
      c{pointers({z.data(), z.data() + 4})};
};

TEST_F(Cublas, multiplies_the_matrices_that_the_pointers_name) {
  ASSERT_EQ(multiply(a, b, c), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(z.values(), (std::vector<float>{6, 8, 13, 16, 6, 8, 13, 16}));
}

TEST_F(Cublas, types_and_leading_dimensions_are_checked) {
  EXPECT_EQ(multiply(a, b, c, CUDA_R_32F, CUDA_R_16F), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(multiply(a, b, c, CUDA_R_32F, CUDA_R_32F, 1), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_THROW(multiply(a, b, c, CUDA_R_32F, CUDA_R_32F, 2, x.data()), Violation);
}

TEST_F(Cublas, matrices_are_looked_at_when_the_stream_comes_to_them) {
  const Memory beyond{pointers({x.data(), x.data() + 1})};
  EXPECT_THROW(
      {
        multiply(beyond, b, c);
        cudaStreamSynchronize(nullptr);
      },
      Violation);
}

TEST_F(Cublas, a_new_stream_takes_the_workspace_away) {
  cublasSetStream(handle, nullptr);
  EXPECT_THROW(multiply(a, b, c), Violation);
  EXPECT_EQ(cublasSetWorkspace(handle, workspace.data() + 1, 4096), CUBLAS_STATUS_INVALID_VALUE);
}

}  // namespace
}  // namespace motley::sim
