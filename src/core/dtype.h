// Element types of tensors, files and parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace motley {

enum class DType : std::uint8_t { f32, f64, f16, bf16, u8, i8, u16, i16, u32, i32, u64, i64 };

constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::u8:
    case DType::i8:
      return 1;
    case DType::f16:
    case DType::bf16:
    case DType::u16:
    case DType::i16:
      return 2;
    case DType::f32:
    case DType::u32:
    case DType::i32:
      return 4;
    case DType::f64:
    case DType::u64:
    case DType::i64:
      return 8;
  }
  return 0;
}

constexpr std::string_view name_of(DType type) {
  switch (type) {
    case DType::f32:
      return "float32";
    case DType::f64:
      return "float64";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    case DType::u8:
      return "uint8";
    case DType::i8:
      return "int8";
    case DType::u16:
      return "uint16";
    case DType::i16:
      return "int16";
    case DType::u32:
      return "uint32";
    case DType::i32:
      return "int32";
    case DType::u64:
      return "uint64";
    case DType::i64:
      return "int64";
  }
  return "?";
}

// The DType of a C++ type, for View::as checks. Half types have no C++20 type and are viewed as raw uint16_t.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<std::int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct DTypeOf<std::uint16_t> {
  static constexpr DType value = DType::u16;
};
template <>
struct DTypeOf<std::int16_t> {
  static constexpr DType value = DType::i16;
};
template <>
struct DTypeOf<std::uint32_t> {
  static constexpr DType value = DType::u32;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::uint64_t> {
  static constexpr DType value = DType::u64;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};

}  // namespace motley
