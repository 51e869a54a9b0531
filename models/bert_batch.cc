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

void BertBatchMemory::allocate(Backend& backend, const BertMemory& memory) {
  backend_ = &backend;
  const std::int64_t tokens = memory.samples * memory.seq_length;
  const auto ints = [&](std::int64_t count) {
    return Buffer(backend, static_cast<std::size_t>(count) * sizeof(std::int32_t));
  };
  ids_ = ints(tokens);
  types_ = ints(tokens);
  key_mask_ = Buffer(backend, static_cast<std::size_t>(tokens));
  masked_rows_ = ints(memory.masked);
  masked_labels_ = ints(memory.masked);
  first_rows_ = ints(memory.samples);
  next_sentence_ = ints(memory.samples);
  if (!memory.training) return;
  const auto make = [&](Groups& groups, std::int64_t indices) {
    groups.rows = ints(indices);
    groups.starts = ints(indices + 1);
    groups.sources = ints(indices);
  };
  make(words_, tokens);
  make(positions_, tokens);
  make(types_groups_, tokens);
  make(masked_groups_, memory.masked);
  make(first_groups_, memory.samples);
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
  batch.ids = copy(host.ids, ids_, tokens);
  batch.types = copy(host.types, types_, tokens);
  const View key_mask = key_mask_.view(DType::u8, tokens);
  backend_->copy_to_device(key_mask.data, host.key_mask.data(), key_mask.bytes());
  batch.key_mask = key_mask;
  batch.masked.rows = copy(host.masked_rows, masked_rows_, masked);
  batch.masked.labels = copy(host.masked_labels, masked_labels_, masked);
  index_.resize(static_cast<std::size_t>(host.n));
  for (std::int64_t i = 0; i < host.n; ++i)
    index_[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * host.seq);
  batch.next_sentence.rows = copy(index_, first_rows_, samples);
  batch.next_sentence.labels = copy(host.next_sentence, next_sentence_, samples);
  if (!training) return batch;

  batch.next_sentence.groups = group(index_, first_groups_);
  batch.masked.groups = group(host.masked_rows, masked_groups_);
  batch.types_groups = group(host.types, types_groups_);
  index_.resize(host.ids.size());
  for (std::size_t i = 0; i < index_.size(); ++i)
    index_[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(host.seq));
  batch.positions = group(index_, positions_);
  batch.words = group(host.ids, words_, static_cast<std::int32_t>(padding));
  return batch;
}

}  // namespace motley
