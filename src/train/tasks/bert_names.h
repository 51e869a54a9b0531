// The names of BERT's parameters in Hugging Face directories, of today and of earlier years.
#pragma once

#include "train/name_rules.h"

namespace motley::train {

// For BertForPreTraining (all there), BertForMaskedLM (no pooler, no next-sentence head), BertModel (no
// heads, and names without "bert.") and others of these parts.
NameRules bert_name_rules();

}  // namespace motley::train
