#include "train/tasks/bert_names.h"

namespace motley::train {

NameRules bert_name_rules() {
  return {.prefix = "bert.",
          .beheaded = {"embeddings.", "encoder.", "pooler."},
          // TensorFlow's, which early conversions kept.
          .endings = {{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}},
          .ties = {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
                   {"cls.predictions.decoder.bias", "cls.predictions.bias"}},
          .counters = {"bert.embeddings.position_ids"},
          .optional_parts = {{"the pooler", "bert.pooler."},
                             {"the masked-language head", "cls.predictions."},
                             {"the next-sentence head", "cls.seq_relationship."}}};
}

}  // namespace motley::train
