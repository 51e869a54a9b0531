#include "models/bert_layer.h"

#include <algorithm>

namespace motley {
namespace {

constexpr std::uint32_t dropouts_per_layer = 3;

std::size_t bytes_of(std::int64_t elements, DType type) {
  return static_cast<std::size_t>(elements) * size_of(type);
}

Initializer weights_of(const BertConfig& config) {
  return Initializer::normal(static_cast<float>(config.initializer_range));
}

}  // namespace

Dense add_dense(ParameterStore& store, const std::string& prefix, std::int64_t in, std::int64_t out,
                const BertConfig& config) {
  Dense dense;
  dense.weight = store.add(prefix + ".weight", Shape{out, in}, weights_of(config));
  dense.bias = store.add(prefix + ".bias", Shape{out}, Initializer::zeros(), false);
  return dense;
}

Norm add_norm(ParameterStore& store, const std::string& prefix, std::int64_t size) {
  Norm norm;
  norm.gamma = store.add(prefix + ".weight", Shape{size}, Initializer::ones(), false);
  norm.beta = store.add(prefix + ".bias", Shape{size}, Initializer::zeros(), false);
  return norm;
}

DropoutMask dropout_mask(const Pass& pass, std::uint32_t index, double probability) {
  return {RandomKey(pass.seed, Purpose::dropout, index, pass.step), pass.first_slot,
          pass.training ? probability : 0};
}

BertLayer::BertLayer(ParameterStore& store, const BertConfig& config, std::int64_t index)
    : store_(store),
      config_(config),
      dropout_index_(embedding_dropout_index + 1 + static_cast<std::uint32_t>(index) * dropouts_per_layer) {
  const std::string prefix = "bert.encoder.layer." + std::to_string(index) + ".";
  const std::string self = prefix + "attention.self.";
  const std::int64_t h = config.hidden_size;
  qkv_weight_ = store.add_fused({self + "query.weight", self + "key.weight", self + "value.weight"},
                                Shape{h, h}, weights_of(config));
  qkv_bias_ = store.add_fused({self + "query.bias", self + "key.bias", self + "value.bias"}, Shape{h},
                              Initializer::zeros(), false);
  attention_out_ = add_dense(store, prefix + "attention.output.dense", h, h, config);
  norm1_ = add_norm(store, prefix + "attention.output.LayerNorm", h);
  wide_ = add_dense(store, prefix + "intermediate.dense", h, config.intermediate_size, config);
  out_ = add_dense(store, prefix + "output.dense", config.intermediate_size, h, config);
  norm2_ = add_norm(store, prefix + "output.LayerNorm", h);
}

BertLayer::State BertLayer::make_state(BufferSource& source, std::int64_t n, std::int64_t seq,
                                       DType type) const {
  const std::int64_t tokens = n * seq, h = config_.hidden_size;
  const auto wide = [&] { return source.take(bytes_of(tokens * config_.intermediate_size, type)); };
  const auto hidden = [&] { return source.take(bytes_of(tokens * h, type)); };
  const auto statistic = [&] { return source.take(bytes_of(tokens, DType::f32)); };
  State state;
  state.qkv = source.take(bytes_of(tokens * 3 * h, type));
  state.context = hidden();
  state.log_sum_exp = source.take(bytes_of(tokens * config_.heads, DType::f32));
  state.sum1 = hidden();
  state.mean1 = statistic();
  state.rstd1 = statistic();
  state.attended = hidden();
  state.preactivation = wide();
  state.activated = wide();
  state.sum2 = hidden();
  state.mean2 = statistic();
  state.rstd2 = statistic();
  return state;
}

BertLayer::Workspace BertLayer::make_workspace(BufferSource& source, std::int64_t n, std::int64_t seq,
                                               DType type) const {
  const std::int64_t tokens = n * seq, h = config_.hidden_size;
  Workspace work;
  // Also holds the gradient of the context.
  work.wide = source.take(bytes_of(tokens * std::max(config_.intermediate_size, h), type));
  work.projected = source.take(bytes_of(tokens * 3 * h, type));
  work.hidden = source.take(bytes_of(tokens * h, type));
  return work;
}

// The state as tensors of the micro-batch at hand: [tokens, features] for products, [n, seq, features] where
// samples matter.
struct BertLayer::Views {
  Shape by_token, by_sample, wide, statistic;
  View qkv, context, log_sum_exp, sum1, mean1, rstd1, attended, preactivation, activated, sum2, mean2, rstd2;
};

BertLayer::Views BertLayer::views(const State& state, const TokenMask& tokens, DType type) const {
  const std::int64_t n = tokens.n, seq = tokens.seq, h = config_.hidden_size;
  Views v;
  v.by_token = Shape{n * seq, h};
  v.by_sample = Shape{n, seq, h};
  v.wide = Shape{n * seq, config_.intermediate_size};
  v.statistic = Shape{n, seq};
  v.qkv = state.qkv.view(type, Shape{n, seq, 3, config_.heads, h / config_.heads});
  v.context = state.context.view(type, v.by_sample);
  v.log_sum_exp = state.log_sum_exp.view(DType::f32, Shape{n, config_.heads, seq});
  v.sum1 = state.sum1.view(type, v.by_sample);
  v.mean1 = state.mean1.view(DType::f32, v.statistic);
  v.rstd1 = state.rstd1.view(DType::f32, v.statistic);
  v.attended = state.attended.view(type, v.by_sample);
  v.preactivation = state.preactivation.view(type, v.wide);
  v.activated = state.activated.view(type, v.wide);
  v.sum2 = state.sum2.view(type, v.by_sample);
  v.mean2 = state.mean2.view(DType::f32, v.statistic);
  v.rstd2 = state.rstd2.view(DType::f32, v.statistic);
  return v;
}

void BertLayer::forward(const Pass& pass, const TokenMask& tokens, ConstView x, const State& state,
                        View y) const {
  Backend& backend = pass.backend;
  const Views v = views(state, tokens, x.dtype);
  const std::int64_t rows = tokens.n * tokens.seq, h = config_.hidden_size;
  const ConstView x_rows{x.data, x.dtype, v.by_token};
  const auto weight = [&](const Dense& dense) { return store_.compute_value(dense.weight); };

  backend.linear_forward(x_rows, store_.fused(store_.compute_value(qkv_weight_), 3),
                         store_.fused(store_.value(qkv_bias_), 3), Activation::none,
                         v.qkv.reshaped(Shape{rows, 3 * h}));
  backend.attention_forward({config_.heads, dropout_mask(pass, dropout_index_, config_.attention_dropout)},
                            v.qkv, tokens.keys, v.context, v.log_sum_exp);
  backend.linear_forward(v.context.reshaped(v.by_token), weight(attention_out_),
                         store_.value(attention_out_.bias), Activation::none, v.sum1.reshaped(v.by_token));
  backend.add_layer_norm_forward(dropout_mask(pass, dropout_index_ + 1, config_.hidden_dropout), v.sum1, x,
                                 store_.value(norm1_.gamma), store_.value(norm1_.beta),
                                 config_.layer_norm_eps, v.sum1, v.attended, v.mean1, v.rstd1);
  backend.linear_forward(v.attended.reshaped(v.by_token), weight(wide_), store_.value(wide_.bias),
                         config_.hidden_act, v.activated, v.preactivation);
  backend.linear_forward(v.activated, weight(out_), store_.value(out_.bias), Activation::none,
                         v.sum2.reshaped(v.by_token));
  backend.add_layer_norm_forward(dropout_mask(pass, dropout_index_ + 2, config_.hidden_dropout), v.sum2,
                                 v.attended, store_.value(norm2_.gamma), store_.value(norm2_.beta),
                                 config_.layer_norm_eps, v.sum2, y, v.mean2, v.rstd2);
}

void BertLayer::backward(const Pass& pass, const TokenMask& tokens, ConstView x, const State& state,
                         const Workspace& work, View gradient) const {
  Backend& backend = pass.backend;
  const bool add = pass.accumulate;
  const Views v = views(state, tokens, x.dtype);
  const std::int64_t rows = tokens.n * tokens.seq, h = config_.hidden_size;
  const View branch = work.hidden.view(x.dtype, v.by_sample);
  const View branch_rows = branch.reshaped(v.by_token), gradient_rows = gradient.reshaped(v.by_token);
  const auto weights_of = [&](const Dense& dense, ConstView input, ConstView dy) {
    backend.linear_backward_weights(input, dy, store_.gradient(dense.weight), store_.gradient(dense.bias),
                                    add);
  };
  const auto norm = [&](const Norm& parameters, std::uint32_t dropout, const View& sum, const View& mean,
                        const View& rstd) {
    backend.add_layer_norm_backward(dropout_mask(pass, dropout, config_.hidden_dropout), gradient, sum, mean,
                                    rstd, store_.value(parameters.gamma), gradient, branch,
                                    store_.gradient(parameters.gamma), store_.gradient(parameters.beta), add);
  };

  norm(norm2_, dropout_index_ + 2, v.sum2, v.mean2, v.rstd2);
  weights_of(out_, v.activated, branch_rows);
  const View dwide = work.wide.view(x.dtype, v.wide);
  backend.linear_backward_data(branch_rows, store_.compute_value(out_.weight), dwide);
  backend.activation_backward(config_.hidden_act, v.preactivation, dwide, dwide);
  weights_of(wide_, v.attended.reshaped(v.by_token), dwide);
  backend.linear_backward_data(dwide, store_.compute_value(wide_.weight), gradient_rows, true);

  norm(norm1_, dropout_index_ + 1, v.sum1, v.mean1, v.rstd1);
  weights_of(attention_out_, v.context.reshaped(v.by_token), branch_rows);
  const View dcontext = work.wide.view(x.dtype, v.by_sample);
  backend.linear_backward_data(branch_rows, store_.compute_value(attention_out_.weight),
                               dcontext.reshaped(v.by_token));
  const View dqkv = work.projected.view(x.dtype, v.qkv.shape);
  backend.attention_backward({config_.heads, dropout_mask(pass, dropout_index_, config_.attention_dropout)},
                             v.qkv, tokens.keys, v.context, v.log_sum_exp, dcontext, dqkv);
  const View dqkv_rows = dqkv.reshaped(Shape{rows, 3 * h});
  backend.linear_backward_weights(ConstView{x.data, x.dtype, v.by_token}, dqkv_rows,
                                  store_.fused(store_.gradient(qkv_weight_), 3),
                                  store_.fused(store_.gradient(qkv_bias_), 3), add);
  backend.linear_backward_data(dqkv_rows, store_.fused(store_.compute_value(qkv_weight_), 3), gradient_rows,
                               true);
}

}  // namespace motley
