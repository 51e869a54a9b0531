#include "train/tasks/bert_samples.h"

#include <algorithm>

#include "core/error.h"

namespace motley::train {

void BertSamples::read(const io::RowSource& source, const io::Window& window, std::int64_t row) {
  MOTLEY_CHECK(source.bert.has_value());
  const io::BertLayout& layout = *source.bert;
  const std::byte* record =
      window.fields.at(0).data() + static_cast<std::size_t>(row) * layout.row_bytes();
  sample_.ids.resize(layout.tokens());
  sample_.mask.resize(layout.tokens());
  sample_.types.resize(layout.tokens());
  sample_.positions.resize(layout.masked());
  sample_.labels.resize(layout.masked());
  io::unpack(layout, record,
             {.input_ids = sample_.ids,
              .input_mask = sample_.mask,
              .segment_ids = sample_.types,
              .masked_lm_positions = sample_.positions,
              .masked_lm_ids = sample_.labels,
              .next_sentence_label = &sample_.next_sentence});
  const auto end = std::find(sample_.positions.begin(), sample_.positions.end(), 0);
  sample_.labels.resize(static_cast<std::size_t>(end - sample_.positions.begin()));
  sample_.positions.resize(sample_.labels.size());
}

void BertSamples::mask_anew(const RandomKey& key, std::uint32_t slot) {
  for (std::size_t i = 0; i < sample_.positions.size(); ++i)
    sample_.ids[static_cast<std::size_t>(sample_.positions[i])] = sample_.labels[i];
  sample_.positions.clear();
  sample_.labels.clear();
  const auto last = std::find(sample_.mask.rbegin(), sample_.mask.rend(), 1);
  const auto tokens = static_cast<std::size_t>(sample_.mask.rend() - last);
  io::mask_sequence(dynamic_->options, *dynamic_->vocabulary, key, slot, std::span(sample_.ids).first(tokens),
                    sample_.positions, sample_.labels);
}

void BertSamples::add(const io::RowSource& source, const io::Window& window, std::int64_t row,
                      const RandomKey& key, std::uint32_t slot, HostBertBatch& batch) {
  read(source, window, row);
  if (dynamic_) mask_anew(key, slot);
  const auto first = static_cast<std::int32_t>(batch.n * batch.seq);
  batch.ids.insert(batch.ids.end(), sample_.ids.begin(), sample_.ids.end());
  batch.types.insert(batch.types.end(), sample_.types.begin(), sample_.types.end());
  for (const std::int32_t real : sample_.mask) batch.key_mask.push_back(real != 0 ? 1 : 0);
  for (const std::int32_t position : sample_.positions) batch.masked_rows.push_back(first + position);
  batch.masked_labels.insert(batch.masked_labels.end(), sample_.labels.begin(), sample_.labels.end());
  batch.next_sentence.push_back(sample_.next_sentence);
  ++batch.n;
}

std::int64_t BertSamples::count_masked(const io::RowSource& source, const io::Window& window,
                                       std::int64_t row, const RandomKey& key, std::uint32_t slot) {
  read(source, window, row);
  if (dynamic_) mask_anew(key, slot);
  return static_cast<std::int64_t>(sample_.positions.size());
}

}  // namespace motley::train
