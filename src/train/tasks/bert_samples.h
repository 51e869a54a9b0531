// From records of BERT samples to micro-batches: static masks as the data has them, or dynamic ones.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "io/bert_record.h"
#include "io/masking.h"
#include "io/vocabulary.h"
#include "models/bert_batch.h"
#include "train/task.h"

namespace motley::train {

// Masks drawn anew whenever a sample is used (Liu et al., "RoBERTa", 2019, section 4.1), by counted randomness
// of (seed, step, slot).
struct DynamicMasking {
  io::MaskingOptions options;
  const io::Vocabulary* vocabulary = nullptr;
};

class BertSamples {
 public:
  explicit BertSamples(std::optional<DynamicMasking> dynamic) : dynamic_(dynamic) {}

  // Adds the sample in row `row` of the window. Masks that the data has are taken as they are: the first position
  // that is 0 ends their list, as in HetSeq and NVIDIA's scripts. With dynamic masking they are undone first.
  void add(const io::RowSource& source, const io::Window& window, std::int64_t row, const RandomKey& key,
           std::uint32_t slot, HostBertBatch& batch);
  // The masked tokens of that sample alone.
  std::int64_t count_masked(const io::RowSource& source, const io::Window& window, std::int64_t row,
                            const RandomKey& key, std::uint32_t slot);

 private:
  struct Sample {
    std::vector<std::int32_t> ids, mask, types, positions, labels;
    std::int32_t next_sentence = 0;
  };
  void read(const io::RowSource& source, const io::Window& window, std::int64_t row);
  void mask_anew(const RandomKey& key, std::uint32_t slot);

  std::optional<DynamicMasking> dynamic_;
  Sample sample_;
};

}  // namespace motley::train
