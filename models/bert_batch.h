// A micro-batch of BERT on its way from the host to the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "kernels/row_groups.h"
#include "models/bert.h"

namespace motley {

struct HostBertBatch {
  std::int64_t n = 0, seq = 0;
  std::vector<std::int32_t> ids, types;   // [n, seq]
  std::vector<std::uint8_t> key_mask;     // [n, seq]
  std::vector<std::int32_t> masked_rows;  // [m]: i * seq + position
  std::vector<std::int32_t> masked_labels;
  std::vector<std::int32_t> next_sentence;  // [n]

  void clear(std::int64_t seq_length);
};

class BertBatchMemory {
 public:
  // Memory for micro-batches of up to `size`, in place of what was reserved before, which is given back
  // first; after OutOfMemory nothing is reserved.
  void reserve(Backend& backend, const BertMemory& size);
  void release() { memory_ = Memory(); }
  // What reserve() takes.
  static std::size_t memory_bytes(const BertMemory& size);
  // The batch on the device, until the next call. With `training` also where equal indices stand; `padding` is
  // the id whose embedding gets no gradient.
  BertBatch load(const HostBertBatch& host, bool training, std::int64_t padding);

 private:
  struct Groups {
    HostRowGroups host;
    Buffer rows, starts, sources;
  };
  struct Memory {
    Buffer ids, types, key_mask, masked_rows, masked_labels, first_rows, next_sentence;
    Groups words, positions, types_groups, masked_groups, first_groups;
  };
  static Memory make_memory(BufferSource& source, const BertMemory& size);
  View copy(std::span<const std::int32_t> host, Buffer& buffer, const Shape& shape);
  RowGroups group(std::span<const std::int32_t> index, Groups& groups, std::int32_t skip = -1);

  Backend* backend_ = nullptr;
  Memory memory_;
  std::vector<std::int32_t> index_;
};

}  // namespace motley
