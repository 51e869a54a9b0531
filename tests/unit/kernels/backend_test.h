// What all tests of operations share. Bodies are written once against Backend and run for every device; each
// test program brings its own backends().
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "core/philox.h"
#include "kernels/backend.h"
#include "core/bfloat16.h"
#include "kernels/buffer.h"
#include "core/float16.h"

namespace motley::test {

struct BackendCase {
  std::string name;
  std::function<std::unique_ptr<Backend>()> make;
};

inline void PrintTo(const BackendCase& backend, std::ostream* out) {
  *out << backend.name;
}

std::vector<BackendCase> backends();

inline std::string case_name(const testing::TestParamInfo<BackendCase>& info) {
  return info.param.name;
}

// Numbers in [low, high) that are the same on every machine.
inline std::vector<float> random_values(std::int64_t count, std::uint32_t stream, float low = -1,
                                        float high = 1) {
  const RandomKey key(77, Purpose::initialization, stream, 0);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = low + (high - low) * to_unit_float(random_u32(key, 0, static_cast<std::uint32_t>(i)));
  }
  return values;
}

// A tensor on the device, with the way there and back.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Backend& backend, DType dtype, const Shape& shape)
      : backend_(&backend),
        buffer_(backend, static_cast<std::size_t>(shape.elements()) * size_of(dtype)),
        dtype_(dtype),
        shape_(shape) {}
  template <class T>
  Tensor(Backend& backend, const std::vector<T>& values, const Shape& shape)
      : Tensor(backend, DTypeOf<T>::value, shape) {
    MOTLEY_CHECK(static_cast<std::int64_t>(values.size()) == shape.elements());
    backend.copy_to_device(buffer_.data(), values.data(), buffer_.bytes());
  }

  const Shape& shape() const { return shape_; }
  View view() const { return buffer_.view(dtype_, shape_); }
  operator View() const { return view(); }       // NOLINT: tests pass tensors as views
  operator ConstView() const { return view(); }  // NOLINT

  template <class T = float>
  std::vector<T> values() const {
    MOTLEY_CHECK(dtype_ == DTypeOf<T>::value);
    std::vector<T> result(static_cast<std::size_t>(shape_.elements()));
    backend_->synchronize();
    backend_->copy_to_host(result.data(), buffer_.data(), buffer_.bytes());
    return result;
  }
  // Of float32, bfloat16 or float16.
  std::vector<float> floats() const {
    if (dtype_ == DType::f32) return values<float>();
    return dtype_ == DType::bf16 ? widened<Bf16>() : widened<F16>();
  }

 private:
  template <class T>
  std::vector<float> widened() const {
    std::vector<float> result;
    for (const T value : values<T>()) result.push_back(to_float(value));
    return result;
  }

  Backend* backend_ = nullptr;
  Buffer buffer_;
  DType dtype_ = DType::f32;
  Shape shape_;
};

// Of float32, bfloat16 or float16, rounded to that.
inline Tensor typed(Backend& backend, DType dtype, const std::vector<float>& values, const Shape& shape) {
  if (dtype == DType::f32) return {backend, values, shape};
  std::vector<Bf16> bf16;
  std::vector<F16> f16;
  for (const float value : values) {
    bf16.push_back(from_float<Bf16>(value));
    f16.push_back(from_float<F16>(value));
  }
  if (dtype == DType::bf16) return {backend, bf16, shape};
  return {backend, f16, shape};
}

// The types in which a backend holds and multiplies activations: "T" of backend.h.
inline std::vector<DType> element_types(const Backend& backend) {
  if (backend.device().kind == "cuda") return {DType::f32, DType::bf16, DType::f16};
  return {DType::f32, DType::bf16};
}

class BackendTest : public testing::TestWithParam<BackendCase> {
 protected:
  Tensor tensor(const std::vector<float>& values, const Shape& shape) { return {*backend, values, shape}; }
  Tensor zeros(const Shape& shape, DType dtype = DType::f32) { return {*backend, dtype, shape}; }
  Tensor random(const Shape& shape, std::uint32_t stream) {
    return {*backend, random_values(shape.elements(), stream), shape};
  }
  Tensor typed(DType dtype, const std::vector<float>& values, const Shape& shape) {
    return test::typed(*backend, dtype, values, shape);
  }
  // Not zero: what an operation must overwrite.
  Tensor junk(const Shape& shape, DType dtype = DType::f32) {
    return typed(dtype, std::vector<float>(static_cast<std::size_t>(shape.elements()), 12345.0f), shape);
  }

  std::unique_ptr<Backend> backend = GetParam().make();
};

// Each value within `relative` of the wanted one or of the size of its terms, whichever is larger.
inline void expect_close(const std::vector<float>& got, const std::vector<double>& want,
                         const std::vector<double>& size_of_terms, double relative = 2e-6) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double allowed = relative * std::max(std::abs(want[i]), size_of_terms[i]) + 1e-30;
    ASSERT_LE(std::abs(static_cast<double>(got[i]) - want[i]), allowed)
        << "element " << i << ": " << got[i] << " instead of " << want[i];
  }
}

inline void expect_near(const std::vector<float>& got, const std::vector<float>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double allowed = tolerance * std::max(1.0, std::abs(static_cast<double>(want[i])));
    ASSERT_NEAR(got[i], want[i], allowed) << "element " << i;
  }
}

// Each value within `relative` of the wanted one plus `absolute`, for results of an element type whose own
// rounding is `relative`.
inline void expect_within(const std::vector<float>& got, const std::vector<double>& want, double relative,
                          double absolute) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::abs(static_cast<double>(got[i]) - want[i]), relative * std::abs(want[i]) + absolute)
        << "element " << i << ": " << got[i] << " instead of " << want[i];
  }
}

// The rounding of an element type, and a little for the sums before it.
inline double rounding(DType dtype) {
  if (dtype == DType::f32) return 2e-6;
  return dtype == DType::bf16 ? 1.01 / 256 : 1.01 / 2048;
}

// The statement throws Error(internal) whose sentence holds all of `parts`.
inline void expect_refused(const std::function<void()>& statement, const std::vector<std::string>& parts) {
  try {
    statement();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::internal);
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

}  // namespace motley::test

// Runs the TEST_Ps of a suite on every backend.
#define MOTLEY_ON_EVERY_BACKEND(suite) \
  INSTANTIATE_TEST_SUITE_P(, suite, testing::ValuesIn(::motley::test::backends()), ::motley::test::case_name)
