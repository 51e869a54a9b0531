// Memory, time, and what reductions do over flat arenas.
#include <chrono>
#include <limits>
#include <thread>

#include "backend_test.h"

namespace motley::test {
namespace {

class MemoryTest : public BackendTest {};
MOTLEY_ON_EVERY_BACKEND(MemoryTest);

TEST_P(MemoryTest, is_aligned_zeroed_and_counted) {
  const std::size_t before = backend->allocated_bytes();
  {
    const Buffer a(*backend, 1), b(*backend, 3 << 20);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data()) % 64, 0u);
    EXPECT_EQ(backend->allocated_bytes(), before + 1 + (3 << 20));
    std::vector<char> bytes(b.bytes(), 1);
    backend->copy_to_host(bytes.data(), b.data(), bytes.size());
    EXPECT_EQ(bytes, std::vector<char>(bytes.size(), 0));
  }
  EXPECT_EQ(backend->allocated_bytes(), before);
}

TEST_P(MemoryTest, device_says_what_it_is) {
  EXPECT_FALSE(backend->device().name.empty());
  EXPECT_GT(backend->device().memory_limit_bytes, 1u << 20);
}

TEST_P(MemoryTest, limit_may_fall_below_what_is_in_use) {
  const std::size_t before = backend->allocated_bytes();
  Buffer first(*backend, 600);
  const Buffer second(*backend, 300);
  backend->set_memory_limit(before + 700);
  EXPECT_EQ(backend->device().memory_limit_bytes, before + 700);
  EXPECT_THROW(Buffer(*backend, 1), OutOfMemory);
  EXPECT_EQ(backend->allocated_bytes(), before + 900);
  first = Buffer();
  const Buffer third(*backend, 400);
  EXPECT_THROW(Buffer(*backend, 1), OutOfMemory);
  backend->set_memory_limit(before + 701);
  const Buffer fourth(*backend, 1);
}

TEST_P(MemoryTest, buffers_of_a_source_are_counted_whether_they_are_taken_or_not) {
  const std::size_t before = backend->allocated_bytes();
  BufferSource taking(*backend), counting;
  std::vector<Buffer> buffers;
  for (BufferSource* source : {&taking, &counting}) {
    for (const std::size_t bytes : {100, 0, 30}) buffers.push_back(source->take(bytes));
    EXPECT_EQ(source->bytes(), 130u);
  }
  EXPECT_EQ(buffers[0].bytes(), 100u);
  EXPECT_EQ(buffers[3].bytes(), 0u);
  EXPECT_EQ(backend->allocated_bytes(), before + 130);
}

class TimeTest : public BackendTest {};
MOTLEY_ON_EVERY_BACKEND(TimeTest);

TEST_P(TimeTest, passes_between_marks) {
  using Clock = std::chrono::steady_clock;
  const auto started = Clock::now();
  const std::int64_t first = backend->mark();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::int64_t second = backend->mark();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const std::int64_t third = backend->mark();
  backend->synchronize();
  const double all = std::chrono::duration<double>(Clock::now() - started).count();
  EXPECT_GE(backend->seconds_between(first, second), 0.02);
  EXPECT_GE(backend->seconds_between(second, third), 0.005);
  EXPECT_NEAR(backend->seconds_between(first, second) + backend->seconds_between(second, third),
              backend->seconds_between(first, third), 1e-6);
  EXPECT_LE(backend->seconds_between(first, third), all);
  EXPECT_EQ(backend->seconds_between(first, first), 0);
}

TEST(CpuMemory, beyond_the_limit_is_a_device_error_with_the_numbers) {
  const auto backend = make_cpu_backend(1, 1000);
  const Buffer first(*backend, 600);
  for (const std::size_t bytes : {std::size_t{500}, std::numeric_limits<std::size_t>::max() - 100}) {
    try {
      backend->allocate(bytes);
      FAIL() << "nothing was thrown";
    } catch (const OutOfMemory& error) {
      EXPECT_EQ(error.code(), ExitCode::device);
      for (const std::string& part : {std::to_string(bytes), std::string("600"), std::string("1000")}) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    }
    EXPECT_EQ(backend->allocated_bytes(), 600u);
  }
  const Buffer rest(*backend, 400);
}

TEST(CpuMemory, working_memory_of_operations_counts_against_the_limit) {
  constexpr std::size_t limit = 4 << 20;
  const auto backend = make_cpu_backend(1, limit);
  const Tensor x(*backend, random_values(4 * 64 * 9 * 9, 1), {4, 9, 9, 64});
  const Tensor weight(*backend, DType::f32, {64, 64, 3, 3}), y(*backend, DType::f32, {4, 7, 7, 64});
  const std::size_t left = limit - backend->allocated_bytes();
  const Conv2d conv{3, 3, 1, 1, 0, 0, 1};
  {
    const Buffer full(*backend, left);
    EXPECT_THROW(backend->conv2d_forward(conv, x, weight, {}, Activation::none, y), OutOfMemory);
  }
  const std::size_t before = backend->allocated_bytes();
  backend->conv2d_forward(conv, x, weight, {}, Activation::none, y);
  EXPECT_GT(backend->allocated_bytes(), before);
  backend->release_scratch();
  EXPECT_EQ(backend->allocated_bytes(), before);
  backend->conv2d_forward(conv, x, weight, {}, Activation::none, y);
}

TEST(CpuMemory, what_the_system_does_not_have_is_out_of_memory_too) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers end the program instead";
#endif
  const auto backend = make_cpu_backend(1, std::numeric_limits<std::size_t>::max());
  for (const std::size_t bytes : {std::size_t{1} << 60, std::numeric_limits<std::size_t>::max() - 10}) {
    try {
      backend->allocate(bytes);
      FAIL() << "nothing was thrown";
    } catch (const OutOfMemory& error) {
      EXPECT_NE(std::string(error.what()).find("the system has no more"), std::string::npos) << error.what();
    }
    EXPECT_EQ(backend->allocated_bytes(), 0u);
  }
}

class ReductionTest : public BackendTest {};
MOTLEY_ON_EVERY_BACKEND(ReductionTest);

TEST_P(ReductionTest, sum_of_squares_is_that_of_float64) {
  for (const std::int64_t length : {0, 1, 17, 16384, 16385, 100003}) {
    const Tensor x = random({length}, 1), sum = zeros({1}, DType::f64);
    double want = 0;
    for (const float value : x.values()) want += static_cast<double>(value) * static_cast<double>(value);
    backend->sum_squares(x, sum);
    EXPECT_NEAR(sum.values<double>()[0], want, 1e-12 * want);
  }
}

TEST_P(ReductionTest, sum_of_squares_takes_any_address_and_more_than_one_pass_of_the_device) {
  constexpr std::int64_t length = 1'200'007;
  const auto values = random_values(length, 1);
  const Tensor x = tensor(values, {length}), sum = zeros({1}, DType::f64);
  for (const std::int64_t first : {std::int64_t{0}, std::int64_t{1}, std::int64_t{4}, length - 3}) {
    double want = 0;
    for (auto i = static_cast<std::size_t>(first); i < values.size(); ++i)
      want += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    backend->sum_squares(view_of(static_cast<const float*>(x.view().data) + first, {length - first}), sum);
    EXPECT_NEAR(sum.values<double>()[0], want, 1e-12 * want) << first;
  }
}

TEST(CpuReduction, sum_of_squares_has_the_same_bits_on_any_number_of_threads) {
  const auto values = random_values(1'199'882, 1);
  std::vector<double> sums;
  for (const int threads : {1, 2, 3, 7, 2}) {
    const auto backend = make_cpu_backend(threads);
    const Tensor x(*backend, values, {static_cast<std::int64_t>(values.size())}),
        sum(*backend, DType::f64, {1});
    backend->sum_squares(x, sum);
    sums.push_back(sum.values<double>()[0]);
  }
  EXPECT_EQ(sums, std::vector<double>(sums.size(), sums[0]));
}

class GradientScaleTest : public BackendTest {
 protected:
  std::vector<float> scale_and_norm(double sum_squares, double count, float clip_norm) {
    const Tensor squares(*backend, std::vector<double>{sum_squares}, {1});
    const Tensor counted(*backend, std::vector<double>{count}, {1});
    const Tensor out = junk({2});
    backend->gradient_scale(squares, counted, clip_norm, out);
    return out.values();
  }
};
MOTLEY_ON_EVERY_BACKEND(GradientScaleTest);

TEST_P(GradientScaleTest, divides_by_the_count_and_clips_the_norm_of_the_mean) {
  EXPECT_EQ(scale_and_norm(400 * 400, 100, 0), (std::vector<float>{0.01f, 4.0f}));
  EXPECT_EQ(scale_and_norm(400 * 400, 100, 5), (std::vector<float>{0.01f, 4.0f}));
  EXPECT_EQ(scale_and_norm(0, 4, 1), (std::vector<float>{0.25f, 0.0f}));
  EXPECT_EQ(scale_and_norm(9, 0, 1), (std::vector<float>{0.0f, 0.0f}));
  const auto clipped = scale_and_norm(400 * 400, 100, 1);
  EXPECT_NEAR(clipped[0], 0.01 / (4 + 1e-6), 1e-9);
  EXPECT_EQ(clipped[1], 4.0f);
  // 1e-6 is added to the norm as torch.nn.utils.clip_grad_norm_ does, which small norms show: 1 / (3 + 1).
  EXPECT_NEAR(scale_and_norm(9e-12, 1, 1e-6f)[0], 0.25, 1e-6);
}

TEST_P(GradientScaleTest, a_norm_that_is_not_a_number_stays_visible) {
  const auto got = scale_and_norm(std::numeric_limits<double>::quiet_NaN(), 100, 1);
  EXPECT_TRUE(std::isnan(got[0]));
  EXPECT_TRUE(std::isnan(got[1]));
}

}  // namespace
}  // namespace motley::test
