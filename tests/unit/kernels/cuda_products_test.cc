// What the products of the CUDA backend do with memory.
#include "backend_test.h"
#include "kernels/cuda/gpu_driver.h"

namespace motley::test {
namespace {

std::unique_ptr<Backend> open(std::size_t memory_limit_bytes) {
  return cuda::gpu_driver().open(0, {.memory_limit_bytes = memory_limit_bytes});
}

constexpr std::size_t plenty = std::size_t{1} << 30, scarce = std::size_t{2} << 20;

TEST(CudaProducts, working_memory_counts_and_is_given_back) {
  const auto backend = open(scarce);
  const Tensor x(*backend, random_values(300 * 40, 1), {300, 40}),
      weight(*backend, random_values(24 * 40, 2), {24, 40}), y(*backend, DType::f32, {300, 24});
  const std::size_t before = backend->allocated_bytes();
  backend->linear_forward(x, weight, {}, Activation::none, y);
  const std::size_t kept = backend->allocated_bytes() - before;
  EXPECT_GT(kept, 0u);
  EXPECT_LE(kept, scarce / 16);
  backend->linear_forward(x, weight, {}, Activation::none, y);
  EXPECT_EQ(backend->allocated_bytes(), before + kept);
  backend->release_scratch();
  EXPECT_EQ(backend->allocated_bytes(), before);
  {
    const Buffer full(*backend, scarce - before);
    EXPECT_THROW(backend->linear_forward(x, weight, {}, Activation::none, y), OutOfMemory);
  }
  const auto got = y.values();
  backend->linear_forward(x, weight, {}, Activation::none, y);
  EXPECT_EQ(y.values(), got);
}

TEST(CudaProducts, where_memory_is_scarce_work_is_cut_into_pieces) {
  constexpr std::int64_t n = 700, in = 16, out = 40;
  std::vector<std::vector<float>> forward, context, gradients;
  for (const std::size_t limit : {plenty, scarce}) {
    const auto backend = open(limit);
    const Tensor x = typed(*backend, DType::f16, random_values(n * in, 1), {n, in}),
                 weight = typed(*backend, DType::f16, random_values(out * in, 2), {out, in}),
                 bias(*backend, random_values(out, 3), {out}), y(*backend, DType::f16, {n, out});
    backend->linear_forward(x, weight, bias, Activation::gelu, y);
    forward.push_back(y.floats());
    const Shape inputs{3, 40, 3, 2, 8}, outputs{3, 40, 16};
    const Tensor qkv = typed(*backend, DType::f16, random_values(inputs.elements(), 4), inputs),
                 gradient = typed(*backend, DType::f16, random_values(outputs.elements(), 5), outputs),
                 mask(*backend, std::vector<std::uint8_t>(120, 1), {3, 40}),
                 result(*backend, DType::f16, outputs), sums(*backend, DType::f32, {3, 2, 40}),
                 dqkv(*backend, DType::f16, inputs);
    const Attention attention{2, {RandomKey(7, Purpose::dropout, 1, 2), 5, 0.2}};
    backend->attention_forward(attention, qkv, mask, result, sums);
    backend->attention_backward(attention, qkv, mask, result, sums, gradient, dqkv);
    context.push_back(result.floats());
    gradients.push_back(dqkv.floats());
  }
  const double tolerance = rounding(DType::f16);
  expect_near(forward[1], forward[0], tolerance);
  expect_near(context[1], context[0], tolerance);
  expect_near(gradients[1], gradients[0], tolerance);
}

}  // namespace
}  // namespace motley::test
