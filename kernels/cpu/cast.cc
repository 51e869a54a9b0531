// Conversions between the floating-point types. float16 is converted with integer operations and one
// multiplication, without conditions, so that the loops are vectorised on every processor.
#include <bit>
#include <cstring>

#include "kernels/bfloat16.h"
#include "kernels/cpu/checks.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"

namespace motley {
namespace {

struct F16 {
  std::uint16_t bits;
};

using motley::to_float;

inline float to_float(F16 x) {
  const std::uint32_t magnitude = x.bits & 0x7fffu, sign = (x.bits & 0x8000u) << 16;
  // The exponent is 112 too small, also for subnormal numbers, after the bits are moved; infinity and NaN
  // keep the highest one.
  const float finite = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t special = 0x7f800000u | (magnitude << 13);
  const std::uint32_t bits = magnitude >= 0x7c00u ? special : std::bit_cast<std::uint32_t>(finite);
  return std::bit_cast<float>(bits | sign);
}

inline F16 to_f16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  // Normal: the lower 13 bits are rounded off and the exponent made 112 smaller.
  const std::uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  // Below 2^-14: adding 0.5 leaves multiples of 2^-24, the smallest float16, in the low bits.
  const float small = std::bit_cast<float>(magnitude) + 0.5f;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(small) - std::bit_cast<std::uint32_t>(0.5f);
  const std::uint32_t not_a_number = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  std::uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;  // from 65520 on: infinity
  result = magnitude > 0x7f800000u ? not_a_number : result;
  return {static_cast<std::uint16_t>(result | sign)};
}

template <class T>
T convert(float x) {
  if constexpr (std::is_same_v<T, F16>) {
    return to_f16(x);
  } else {
    return from_float<T>(x);
  }
}

template <class From, class To>
void convert_all(int threads, const void* from, void* to, std::int64_t elements) {
  const auto* in = static_cast<const From*>(from);
  auto* out = static_cast<To*>(to);
  parallel_blocks(threads, elements, elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) out[i] = convert<To>(to_float(in[i]));
  });
}

template <class Body>
void with_float_type(const char* argument, const ConstView& view, const Body& body) {
  switch (view.dtype) {
    case DType::f32:
      return body(float{});
    case DType::bf16:
      return body(Bf16{});
    case DType::f16:
      return body(F16{});
    default:
      fail(ExitCode::internal, "cast: {} is {}, but float32, bfloat16 or float16 belongs there", argument,
           name_of(view.dtype));
  }
}

}  // namespace

void CpuBackend::cast(ConstView x, View y) {
  check_dtype("cast", "x", x, x.dtype);
  check_view("cast", "y", y, y.dtype, x.shape);
  with_float_type("x", x, [&](auto from) {
    with_float_type("y", y, [&](auto to) {
      convert_all<decltype(from), decltype(to)>(threads(), x.data, y.data, x.elements());
    });
  });
}

}  // namespace motley
