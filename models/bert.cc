#include "models/bert.h"

namespace motley {

Bert::Bert(const BertConfig& config) : config_(config) {
  const std::int64_t h = config.hidden_size;
  const std::string prefix = "bert.embeddings.";
  const Initializer normal = Initializer::normal(static_cast<float>(config.initializer_range));
  Initializer words = normal;
  words.zero_row = config.pad_token_id;
  word_ = parameters.add(prefix + "word_embeddings.weight", Shape{config.vocab_size, h}, words);
  position_ = parameters.add(prefix + "position_embeddings.weight", Shape{config.max_positions, h}, normal);
  type_ = parameters.add(prefix + "token_type_embeddings.weight", Shape{config.type_vocab_size, h}, normal);
  embedding_norm_ = add_norm(parameters, prefix + "LayerNorm", h);
  for (std::int64_t i = 0; i < config.layers; ++i) layers_.emplace_back(parameters, config, i);
  next_sentence_ = std::make_unique<NextSentenceHead>(parameters, config);
  masked_ = std::make_unique<MaskedLanguageHead>(parameters, config, word_);
}

Bert::Memory Bert::make_memory(BufferSource& source, const BertMemory& size) const {
  MOTLEY_CHECK(size.seq_length <= config_.max_positions);
  const std::int64_t tokens = size.samples * size.seq_length;
  const auto hidden = [&] {
    return source.take(static_cast<std::size_t>(tokens * config_.hidden_size) * size_of(size.compute));
  };
  const auto statistic = [&] { return source.take(static_cast<std::size_t>(tokens) * sizeof(float)); };
  Memory memory;
  memory.size = size;
  memory.embedding_sum = hidden();
  memory.embedding_mean = statistic();
  memory.embedding_rstd = statistic();
  const std::size_t outputs = size.training ? layers_.size() + 1 : 2;
  const std::size_t states = size.training && !size.recompute ? layers_.size() : 1;
  const BertLayer& layer = layers_.front();  // they are alike
  for (std::size_t i = 0; i < outputs; ++i) memory.outputs.push_back(hidden());
  for (std::size_t i = 0; i < states; ++i)
    memory.states.push_back(layer.make_state(source, size.samples, size.seq_length, size.compute));
  if (size.training) {
    memory.work = layer.make_workspace(source, size.samples, size.seq_length, size.compute);
    memory.gradient = hidden();
  }
  memory.masked = masked_->make_memory(source, size.masked, size.compute, size.training);
  memory.next_sentence = next_sentence_->make_memory(source, size.samples, size.compute, size.training);
  return memory;
}

void Bert::reserve(Backend& backend, const BertMemory& size) {
  release();
  BufferSource source(backend);
  memory_ = make_memory(source, size);
}

std::size_t Bert::memory_bytes(const BertMemory& size) const {
  BufferSource source;
  make_memory(source, size);
  return source.bytes();
}

void Bert::allocate(Backend& backend, const BertMemory& size) {
  parameters.allocate(backend, size.training, size.compute);
  reserve(backend, size);
}

TokenMask Bert::tokens_of(const BertBatch& batch) const {
  return {batch.ids.shape[0], batch.ids.shape[1], batch.key_mask};
}

View Bert::output(std::size_t layer, const TokenMask& tokens) const {
  return memory_.outputs.at(layer % memory_.outputs.size())
      .view(memory_.size.compute, Shape{tokens.n, tokens.seq, config_.hidden_size});
}

void Bert::embed(const Pass& pass, const BertBatch& batch) {
  const TokenMask tokens = tokens_of(batch);
  const View y = output(0, tokens), sum = memory_.embedding_sum.view(memory_.size.compute, y.shape);
  const Shape statistic{tokens.n, tokens.seq};
  pass.backend.embedding_forward(parameters.value(word_), parameters.value(position_),
                                 parameters.value(type_), batch.ids, batch.types, sum);
  pass.backend.add_layer_norm_forward({}, sum, {}, parameters.value(embedding_norm_.gamma),
                                      parameters.value(embedding_norm_.beta), config_.layer_norm_eps, sum, y,
                                      memory_.embedding_mean.view(DType::f32, statistic),
                                      memory_.embedding_rstd.view(DType::f32, statistic));
  if (pass.training && config_.hidden_dropout > 0)
    pass.backend.dropout(dropout_mask(pass, embedding_dropout_index, config_.hidden_dropout), y, y);
}

void Bert::embed_backward(const Pass& pass, const BertBatch& batch, View gradient) {
  const TokenMask tokens = tokens_of(batch);
  const Shape statistic{tokens.n, tokens.seq};
  if (config_.hidden_dropout > 0) {
    pass.backend.dropout(dropout_mask(pass, embedding_dropout_index, config_.hidden_dropout), gradient,
                         gradient);
  }
  pass.backend.add_layer_norm_backward(
      {}, gradient, memory_.embedding_sum.view(memory_.size.compute, gradient.shape),
      memory_.embedding_mean.view(DType::f32, statistic), memory_.embedding_rstd.view(DType::f32, statistic),
      parameters.value(embedding_norm_.gamma), gradient, {}, parameters.gradient(embedding_norm_.gamma),
      parameters.gradient(embedding_norm_.beta), pass.accumulate);
  const View rows = gradient.reshaped(Shape{tokens.n * tokens.seq, config_.hidden_size});
  if (!pass.accumulate) {
    pass.backend.fill_zero(parameters.gradient(position_));
    pass.backend.fill_zero(parameters.gradient(type_));
  }
  // The decoder, which shares the word embeddings, has set their gradient.
  pass.backend.scatter_add_rows(batch.words, rows, parameters.gradient(word_));
  pass.backend.scatter_add_rows(batch.positions, rows, parameters.gradient(position_));
  pass.backend.scatter_add_rows(batch.types_groups, rows, parameters.gradient(type_));
}

void Bert::encode(const Pass& pass, const BertBatch& batch) {
  parameters.refresh_copy();
  const TokenMask tokens = tokens_of(batch);
  embed(pass, batch);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].forward(pass, tokens, output(i, tokens), state(i), output(i + 1, tokens));
  }
}

void Bert::run_heads(const Pass& pass, const BertBatch& batch, const BertLossWeights& weights, View rows,
                     View sums, View gradient) {
  masked_->run(pass, memory_.masked, batch.masked, rows, view_of(sums.as<double>(), Shape{4}), gradient,
               static_cast<float>(weights.masked));
  next_sentence_->run(pass, memory_.next_sentence, batch.next_sentence, rows,
                      view_of(sums.as<double>() + 4, Shape{4}), gradient,
                      static_cast<float>(weights.next_sentence));
}

void Bert::evaluate(const Pass& pass, const BertBatch& batch, View sums) {
  encode(pass, batch);
  const TokenMask tokens = tokens_of(batch);
  const View rows =
      output(layers_.size(), tokens).reshaped(Shape{tokens.n * tokens.seq, config_.hidden_size});
  run_heads(pass, batch, {}, rows, sums, {});
}

void Bert::train(const Pass& pass, const BertBatch& batch, const BertLossWeights& weights, View sums,
                 const GradientsDone& done) {
  encode(pass, batch);
  const TokenMask tokens = tokens_of(batch);
  const Shape by_row{tokens.n * tokens.seq, config_.hidden_size};
  const View last = output(layers_.size(), tokens);
  const View gradient = memory_.gradient.view(memory_.size.compute, last.shape);
  const auto finished = [&](std::size_t elements) {
    if (done) done(elements);
  };

  pass.backend.fill_zero(gradient);
  run_heads(pass, batch, weights, last.reshaped(by_row), sums, gradient.reshaped(by_row));
  finished(next_sentence_->gradients_finished());
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const View input = output(i, tokens);
    // With one state for all layers it holds the last layer's. The output is written once more, with the same
    // bits.
    if (memory_.size.recompute && i + 1 < layers_.size())
      layers_[i].forward(pass, tokens, input, state(i), output(i + 1, tokens));
    layers_[i].backward(pass, tokens, input, state(i), memory_.work, gradient);
    finished(layers_[i].gradients_finished());
  }
  embed_backward(pass, batch, gradient);
  finished(parameters.arena_elements());
}

}  // namespace motley
