// One encoder layer of BERT (Devlin et al., 2019; Vaswani et al., 2017, post-norm):
//
//   attended = LayerNorm(x + dropout(attention(x) Wo + bo))
//   y        = LayerNorm(attended + dropout(act(attended W1 + b1) W2 + b2))
#pragma once

#include <cstdint>
#include <string>

#include "core/view.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "models/bert_config.h"
#include "models/layer.h"
#include "models/parameter_store.h"

namespace motley {

// A dense layer's parameters.
struct Dense {
  int weight = -1, bias = -1;
};
// A layer normalisation's parameters.
struct Norm {
  int gamma = -1, beta = -1;
};

// Registered under PREFIX.weight and PREFIX.bias, initialised as Hugging Face's BERT.
Dense add_dense(ParameterStore& store, const std::string& prefix, std::int64_t in, std::int64_t out,
                const BertConfig& config);
Norm add_norm(ParameterStore& store, const std::string& prefix, std::int64_t size);

// The mask of a dropout of this network; none when the pass does not train.
DropoutMask dropout_mask(const Pass& pass, std::uint32_t index, double probability);
constexpr std::uint32_t embedding_dropout_index = 0;

// A micro-batch as the encoder sees it.
struct TokenMask {
  std::int64_t n = 0, seq = 0;
  ConstView keys;  // uint8 [n, seq]: 1 for a token, 0 for padding
};

class BertLayer {
 public:
  BertLayer(ParameterStore& store, const BertConfig& config, std::int64_t index);

  // What forward() leaves for backward(), for up to n samples of seq tokens.
  struct State {
    Buffer qkv, context, log_sum_exp, sum1, mean1, rstd1, attended, preactivation, activated, sum2, mean2,
        rstd2;
  };
  State make_state(BufferSource& source, std::int64_t n, std::int64_t seq, DType type) const;
  // Memory that backward() works in; one for all layers.
  struct Workspace {
    Buffer wide, projected, hidden;  // [n, seq, intermediate], [n, seq, 3 hidden], [n, seq, hidden]
  };
  Workspace make_workspace(BufferSource& source, std::int64_t n, std::int64_t seq, DType type) const;

  // x and y [n, seq, hidden].
  void forward(const Pass& pass, const TokenMask& tokens, ConstView x, const State& state, View y) const;
  // gradient [n, seq, hidden] is that of y on entry and that of x on return.
  void backward(const Pass& pass, const TokenMask& tokens, ConstView x, const State& state,
                const Workspace& work, View gradient) const;

  std::size_t gradients_finished() const { return store_.finished_through(qkv_weight_); }

 private:
  struct Views;
  Views views(const State& state, const TokenMask& tokens, DType type) const;

  ParameterStore& store_;
  BertConfig config_;
  std::uint32_t dropout_index_;
  int qkv_weight_, qkv_bias_;  // query, key and value, fused
  Dense attention_out_, wide_, out_;
  Norm norm1_, norm2_;
};

}  // namespace motley
