// Masked-LM training data (Devlin et al., "BERT", 2019, section 3.1): some of the tokens are chosen to be
// predicted; of those 80 % become [MASK], 10 % stay, 10 % become a token drawn from the whole vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/philox.h"
#include "io/vocabulary.h"

namespace motley::io {

struct MaskingOptions {
  double probability = 0.15;  // in (0, 1]
  std::int64_t max_predictions = 20;
  // All pieces of a word are chosen together, each then replaced on its own.
  bool whole_word = false;
};

// `ids` [n] is one sequence without padding, [CLS] and [SEP] included: those are never chosen. The chosen
// ones, clamp(round(n * probability), 1, max_predictions) of them where there are as many, are replaced in
// place; their positions, ascending, and their original ids are appended to the outputs. With whole_word a
// word that would go beyond that number is passed over, so that there can be fewer.
//
// A pure function of its arguments: the same key and slot give the same mask wherever they are drawn. Use a
// key of Purpose::masking.
void mask_sequence(const MaskingOptions& options, const Vocabulary& vocabulary, const RandomKey& key,
                   std::uint32_t slot, std::span<std::int32_t> ids, std::vector<std::int32_t>& positions,
                   std::vector<std::int32_t>& labels);

}  // namespace motley::io
