#include "kernels/buffer.h"

#include <utility>

namespace motley {

Buffer::Buffer(Backend& backend, std::size_t bytes) : backend_(&backend), bytes_(bytes) {
  if (bytes == 0) return;
  data_ = backend.allocate(bytes);
  backend.fill_zero({data_, DType::u8, Shape{static_cast<std::int64_t>(bytes)}});
}

Buffer::~Buffer() {
  if (data_ != nullptr) backend_->release(data_, bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : backend_(other.backend_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(backend_, other.backend_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

View Buffer::view(DType dtype, const Shape& shape, std::size_t offset) const {
  const View result{static_cast<std::byte*>(data_) + offset, dtype, shape};
  MOTLEY_CHECK(offset + result.bytes() <= bytes_);
  return result;
}

Buffer BufferSource::take(std::size_t bytes) {
  bytes_ += bytes;
  return backend_ == nullptr ? Buffer() : Buffer(*backend_, bytes);
}

}  // namespace motley
