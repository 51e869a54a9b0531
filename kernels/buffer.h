// Owned device memory.
#pragma once

#include <cstddef>

#include "core/view.h"
#include "kernels/backend.h"

namespace motley {

class Buffer {
 public:
  Buffer() = default;
  // Zero-filled. The backend must outlive the buffer.
  Buffer(Backend& backend, std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // The first shape.elements() elements, or those from byte `offset` on.
  View view(DType dtype, const Shape& shape, std::size_t offset = 0) const;

 private:
  Backend* backend_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Hands out the buffers of something that needs several, and counts their bytes. Without a backend they are
// empty: what a network would take is known without taking it, by the code that takes it.
class BufferSource {
 public:
  BufferSource() = default;
  explicit BufferSource(Backend& backend) : backend_(&backend) {}

  Buffer take(std::size_t bytes);
  // Of all buffers so far.
  std::size_t bytes() const { return bytes_; }

 private:
  Backend* backend_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace motley
