#include "models/bert_batch.h"

#include <algorithm>

namespace motley {

void HostBertBatch::clear(std::int64_t seq_length) {
  n = 0;
  seq = seq_length;
  ids.clear();
  types.clear();
  key_mask.clear();
  masked_rows.clear();
  masked_labels.clear();
  next_sentence.clear();
}

BertBatchMemory::Memory BertBatchMemory::make_memory(BufferSource& source, const BertMemory& size) {
  const std::int64_t tokens = size.samples * size.seq_length;
  const auto ints = [&](std::int64_t count) {
    return source.take(static_cast<std::size_t>(count) * sizeof(std::int32_t));
  };
  Memory memory;
  memory.ids = ints(tokens);
  memory.types = ints(tokens);
  memory.key_mask = source.take(static_cast<std::size_t>(tokens));
  memory.masked_rows = ints(size.masked);
  memory.masked_labels = ints(size.masked);
  memory.first_rows = ints(size.samples);
  memory.next_sentence = ints(size.samples);
  if (!size.training) return memory;
  const auto make = [&](Groups& groups, std::int64_t indices) {
    groups.rows = ints(indices);
    groups.starts = ints(indices + 1);
    groups.sources = ints(indices);
  };
  make(memory.words, tokens);
  make(memory.positions, tokens);
  make(memory.types_groups, tokens);
  make(memory.masked_groups, size.masked);
  make(memory.first_groups, size.samples);
  return memory;
}

void BertBatchMemory::reserve(Backend& backend, const BertMemory& size) {
  release();
  backend_ = &backend;
  BufferSource source(backend);
  memory_ = make_memory(source, size);
}

std::size_t BertBatchMemory::memory_bytes(const BertMemory& size) {
  BufferSource source;
  make_memory(source, size);
  return source.bytes();
}

View BertBatchMemory::copy(std::span<const std::int32_t> host, Buffer& buffer, const Shape& shape) {
  const View view = buffer.view(DType::i32, shape);
  MOTLEY_CHECK(static_cast<std::int64_t>(host.size()) == shape.elements());
  backend_->copy_to_device(view.data, host.data(), view.bytes());
  return view;
}

RowGroups BertBatchMemory::group(std::span<const std::int32_t> index, Groups& groups, std::int32_t skip) {
  group_rows(index, groups.host, skip);
  const auto vector = [&](const std::vector<std::int32_t>& host, Buffer& buffer) {
    return copy(host, buffer, Shape{static_cast<std::int64_t>(host.size())});
  };
  return {vector(groups.host.rows, groups.rows), vector(groups.host.starts, groups.starts),
          vector(groups.host.sources, groups.sources)};
}

BertBatch BertBatchMemory::load(const HostBertBatch& host, bool training, std::int64_t padding) {
  const Shape tokens{host.n, host.seq}, samples{host.n};
  const Shape masked{static_cast<std::int64_t>(host.masked_rows.size())};
  BertBatch batch;
  batch.ids = copy(host.ids, memory_.ids, tokens);
  batch.types = copy(host.types, memory_.types, tokens);
  const View key_mask = memory_.key_mask.view(DType::u8, tokens);
  backend_->copy_to_device(key_mask.data, host.key_mask.data(), key_mask.bytes());
  batch.key_mask = key_mask;
  batch.masked.rows = copy(host.masked_rows, memory_.masked_rows, masked);
  batch.masked.labels = copy(host.masked_labels, memory_.masked_labels, masked);
  index_.resize(static_cast<std::size_t>(host.n));
  for (std::int64_t i = 0; i < host.n; ++i)
    index_[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * host.seq);
  batch.next_sentence.rows = copy(index_, memory_.first_rows, samples);
  batch.next_sentence.labels = copy(host.next_sentence, memory_.next_sentence, samples);
  if (!training) return batch;

  batch.next_sentence.groups = group(index_, memory_.first_groups);
  batch.masked.groups = group(host.masked_rows, memory_.masked_groups);
  batch.types_groups = group(host.types, memory_.types_groups);
  index_.resize(host.ids.size());
  for (std::size_t i = 0; i < index_.size(); ++i)
    index_[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(host.seq));
  batch.positions = group(index_, memory_.positions);
  batch.words = group(host.ids, memory_.words, static_cast<std::int32_t>(padding));
  return batch;
}

}  // namespace motley
