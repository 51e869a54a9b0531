#include "core/shape.h"

#include "core/error.h"

namespace motley {

Shape::Shape(std::initializer_list<std::int64_t> extents) {
  for (const std::int64_t extent : extents) append(extent);
}

void Shape::append(std::int64_t extent) {
  MOTLEY_CHECK(rank_ < max_rank);
  MOTLEY_CHECK(extent >= 0);
  extents_[static_cast<std::size_t>(rank_++)] = extent;
}

std::int64_t Shape::operator[](int i) const {
  const int index = i < 0 ? rank_ + i : i;
  MOTLEY_CHECK(index >= 0 && index < rank_);
  return extents_[static_cast<std::size_t>(index)];
}

std::int64_t Shape::elements() const {
  return elements_from(0);
}

std::int64_t Shape::elements_from(int first) const {
  std::int64_t product = 1;
  for (int i = first; i < rank_; ++i) product *= extents_[static_cast<std::size_t>(i)];
  return product;
}

Shape Shape::with_batch(std::int64_t n) const {
  Shape result;
  result.append(n);
  for (int i = 0; i < rank_; ++i) result.append((*this)[i]);
  return result;
}

Shape Shape::without_batch() const {
  Shape result;
  for (int i = 1; i < rank_; ++i) result.append((*this)[i]);
  return result;
}

bool Shape::operator==(const Shape& other) const {
  if (rank_ != other.rank_) return false;
  for (int i = 0; i < rank_; ++i) {
    if ((*this)[i] != other[i]) return false;
  }
  return true;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string((*this)[i]);
  }
  return text + "]";
}

}  // namespace motley
