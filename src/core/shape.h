// The extents of a tensor, outermost first. Held inline: shapes are copied freely and never allocate.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace motley {

class Shape {
 public:
  static constexpr int max_rank = 6;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents);

  int rank() const { return rank_; }
  // Extent of dimension i; negative i counts from the last.
  std::int64_t operator[](int i) const;
  // Product of all extents; 1 for a scalar (rank 0).
  std::int64_t elements() const;
  // Product of the extents from dimension `first` on: elements per row for first = 1.
  std::int64_t elements_from(int first) const;

  void append(std::int64_t extent);
  // The same shape with another dimension in front: Shape{h,w}.with_batch(n) is [n, h, w].
  Shape with_batch(std::int64_t n) const;
  // The shape without its first dimension.
  Shape without_batch() const;

  bool operator==(const Shape& other) const;
  std::string to_string() const;  // "[64, 28, 28, 1]"

 private:
  std::array<std::int64_t, max_rank> extents_{};
  int rank_ = 0;
};

}  // namespace motley
