// BERT for pretraining (Devlin, Chang, Lee, Toutanova, "BERT: pre-training of deep bidirectional transformers
// for language understanding", NAACL 2019), with the parameters and names of Hugging Face's
// BertForPreTraining: post-norm encoder, tied decoder, pooler and next-sentence head.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/view.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "models/bert_config.h"
#include "models/bert_heads.h"
#include "models/bert_layer.h"
#include "models/layer.h"
#include "models/parameter_store.h"

namespace motley {

// What memory is taken for.
struct BertMemory {
  std::int64_t samples = 1;     // largest micro-batch
  std::int64_t seq_length = 1;  // at most the config's max_positions
  std::int64_t masked = 0;      // most masked tokens of a micro-batch
  bool training = false;
  DType compute = DType::f32;  // of activations and products: float32 or bfloat16
  // Keep only the input of each layer and run its forward pass again in the backward pass (Chen et al.,
  // "Training deep nets with sublinear memory cost", 2016). Changes no bit of the result.
  bool recompute = false;
};

// A micro-batch in device memory. All indices have been checked to lie in their tables.
struct BertBatch {
  ConstView ids, types;       // int32 [n, seq]
  ConstView key_mask;         // uint8 [n, seq]
  HeadTargets masked;         // rows i * seq + position of the masked tokens, and their right ids
  HeadTargets next_sentence;  // rows i * seq, and 1 where the second sentence is a random one, else 0
  // For training: where equal ids, positions and types stand among the [n * seq] tokens. Padding is left out of
  // the words: as in Hugging Face, its embedding gets no gradient from where it is looked up.
  RowGroups words, positions, types_groups;
};

// What the two summed losses are multiplied by before they are added: 1 / their counts over the global batch.
struct BertLossWeights {
  double masked = 1, next_sentence = 1;
};

class Bert {
 public:
  explicit Bert(const BertConfig& config);
  Bert(const Bert&) = delete;
  Bert& operator=(const Bert&) = delete;

  const BertConfig& config() const { return config_; }
  ParameterStore parameters;
  // Memory for micro-batches of up to `size`, in place of what was reserved before, which is given back
  // first; after OutOfMemory nothing is reserved. The parameters must have been allocated for the same type.
  void reserve(Backend& backend, const BertMemory& size);
  void release() { memory_ = Memory(); }
  // What reserve() takes.
  std::size_t memory_bytes(const BertMemory& size) const;
  // The parameters, and memory for micro-batches of one size.
  void allocate(Backend& backend, const BertMemory& size);

  // sums: float64 [8]; the masked tokens' add to [0, 4) and the next sentences' to [4, 8), each as
  // Backend::softmax_nll adds them.
  void evaluate(const Pass& pass, const BertBatch& batch, View sums);
  // Also sets, or with pass.accumulate adds to, the gradients of the weighted sum of both losses.
  void train(const Pass& pass, const BertBatch& batch, const BertLossWeights& weights, View sums,
             const GradientsDone& done);

 private:
  struct Memory {
    BertMemory size;
    Buffer embedding_sum, embedding_mean, embedding_rstd;
    // The embeddings and what each layer makes of them; for evaluation alone, two that take turns.
    std::vector<Buffer> outputs;
    std::vector<BertLayer::State> states;  // one per layer, or one for all
    BertLayer::Workspace work;
    Buffer gradient;
    MaskedLanguageHead::Memory masked;
    NextSentenceHead::Memory next_sentence;
  };
  Memory make_memory(BufferSource& source, const BertMemory& size) const;
  TokenMask tokens_of(const BertBatch& batch) const;
  View output(std::size_t layer, const TokenMask& tokens) const;
  const BertLayer::State& state(std::size_t layer) const {
    return memory_.states.size() == 1 ? memory_.states.front() : memory_.states.at(layer);
  }
  void encode(const Pass& pass, const BertBatch& batch);
  // Both heads on the encoder's output, rows [n * seq, hidden]; without `gradient` they only judge.
  void run_heads(const Pass& pass, const BertBatch& batch, const BertLossWeights& weights, View rows,
                 View sums, View gradient);
  void embed(const Pass& pass, const BertBatch& batch);
  void embed_backward(const Pass& pass, const BertBatch& batch, View gradient);

  BertConfig config_;
  int word_ = -1, position_ = -1, type_ = -1;
  Norm embedding_norm_;
  std::vector<BertLayer> layers_;
  std::unique_ptr<NextSentenceHead> next_sentence_;
  std::unique_ptr<MaskedLanguageHead> masked_;
  Memory memory_;
};

}  // namespace motley
