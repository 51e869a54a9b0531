// The two heads of BERT's pretraining: masked-language modelling and next-sentence prediction. Each computes
// its loss, and when training at once the gradients of its own parameters and of the encoder's output, so that
// logits live only for the rows at hand.
#pragma once

#include <cstdint>

#include "core/view.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "models/bert_config.h"
#include "models/bert_layer.h"
#include "models/layer.h"
#include "models/parameter_store.h"

namespace motley {

// Rows of the encoder's output that a head looks at, and what is right there. Device memory.
struct HeadTargets {
  ConstView rows;    // int32 [m]: rows of the output seen as [n * seq, hidden]
  ConstView labels;  // int32 [m]
  RowGroups groups;  // of rows; needed for training only
};

// Vocabulary logits at the masked positions alone: dense, activation, layer normalisation, and a decoder that
// shares its weights with the word embeddings and has a bias of its own.
class MaskedLanguageHead {
 public:
  MaskedLanguageHead(ParameterStore& store, const BertConfig& config, int word_embeddings);
  // What run() works in.
  struct Memory {
    DType type = DType::f32;
    std::int64_t chunk = 0;  // rows whose logits are held at once
    Buffer gathered, preactivation, sum, transformed, mean, rstd, logits, dlogits, dhidden;
  };
  // For up to max_rows masked positions.
  Memory make_memory(BufferSource& source, std::int64_t max_rows, DType type, bool training) const;

  // output T [n * seq, hidden]; adds to sums as Backend::softmax_nll does. With doutput, sets or accumulates
  // the gradients of `weight` times the summed loss and adds to doutput.
  void run(const Pass& pass, const Memory& memory, const HeadTargets& targets, ConstView output, View sums,
           View doutput, float weight) const;

 private:
  void decode(const Pass& pass, const Memory& memory, ConstView labels, View transformed, View sums,
              bool training, float weight) const;

  ParameterStore& store_;
  BertConfig config_;
  int word_embeddings_, bias_ = -1;
  Dense dense_;
  Norm norm_;
};

// The pooler (dense and tanh on the first token) and the classifier on top of it.
class NextSentenceHead {
 public:
  NextSentenceHead(ParameterStore& store, const BertConfig& config);
  struct Memory {
    DType type = DType::f32;
    Buffer first, preactivation, pooled, logits, dlogits, dpooled;
  };
  Memory make_memory(BufferSource& source, std::int64_t max_samples, DType type, bool training) const;
  // As MaskedLanguageHead::run; targets.rows are the first tokens of the samples.
  void run(const Pass& pass, const Memory& memory, const HeadTargets& targets, ConstView output, View sums,
           View doutput, float weight) const;
  std::size_t gradients_finished() const { return store_.finished_through(pooler_.weight); }

 private:
  ParameterStore& store_;
  BertConfig config_;
  Dense pooler_, classifier_;
};

}  // namespace motley
