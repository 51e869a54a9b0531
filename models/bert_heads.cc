#include "models/bert_heads.h"

#include <algorithm>

namespace motley {
namespace {

// Rows of vocabulary logits that are held at once: enough for products at full speed, and not much memory.
constexpr std::int64_t largest_chunk = 512;
constexpr std::int64_t next_sentence_classes = 2;
constexpr int top_k = 5;

Buffer take(BufferSource& source, std::int64_t elements, DType type) {
  return source.take(static_cast<std::size_t>(elements) * size_of(type));
}

// Rows [first, first + count) of a matrix or vector.
template <class AnyView>
AnyView rows_of(const AnyView& view, std::int64_t first, std::int64_t count) {
  Shape shape{count};
  for (int i = 1; i < view.shape.rank(); ++i) shape.append(view.shape[i]);
  const std::size_t offset =
      static_cast<std::size_t>(first * view.shape.elements_from(1)) * size_of(view.dtype);
  using Byte = std::conditional_t<std::is_same_v<AnyView, View>, std::byte, const std::byte>;
  return {static_cast<Byte*>(view.data) + offset, view.dtype, shape};
}

}  // namespace

MaskedLanguageHead::MaskedLanguageHead(ParameterStore& store, const BertConfig& config, int word_embeddings)
    : store_(store), config_(config), word_embeddings_(word_embeddings) {
  const std::string prefix = "cls.predictions.";
  dense_ = add_dense(store, prefix + "transform.dense", config.hidden_size, config.hidden_size, config);
  norm_ = add_norm(store, prefix + "transform.LayerNorm", config.hidden_size);
  bias_ = store.add(prefix + "bias", Shape{config.vocab_size}, Initializer::zeros(), false);
}

MaskedLanguageHead::Memory MaskedLanguageHead::make_memory(BufferSource& source, std::int64_t max_rows,
                                                           DType type, bool training) const {
  const std::int64_t hidden = max_rows * config_.hidden_size;
  Memory memory;
  memory.type = type;
  memory.chunk = std::min(max_rows, largest_chunk);
  memory.gathered = take(source, hidden, type);
  memory.preactivation = take(source, hidden, type);
  memory.sum = take(source, hidden, type);
  memory.transformed = take(source, hidden, type);
  memory.mean = take(source, max_rows, DType::f32);
  memory.rstd = take(source, max_rows, DType::f32);
  memory.logits = take(source, memory.chunk * config_.vocab_size, DType::f32);
  if (!training) return memory;
  memory.dhidden = take(source, hidden, type);
  if (type != DType::f32) memory.dlogits = take(source, memory.chunk * config_.vocab_size, type);
  return memory;
}

void MaskedLanguageHead::run(const Pass& pass, const Memory& memory, const HeadTargets& targets,
                             ConstView output, View sums, View doutput, float weight) const {
  Backend& backend = pass.backend;
  const std::int64_t m = targets.rows.elements(), h = config_.hidden_size;
  const bool training = !doutput.empty();
  const Shape rows{m, h}, samples{m, 1, h}, statistic{m, 1};
  const DType type = memory.type;
  const View gathered = memory.gathered.view(type, rows),
             preactivation = memory.preactivation.view(type, rows);
  const View sum = memory.sum.view(type, samples), transformed = memory.transformed.view(type, rows);
  const View mean = memory.mean.view(DType::f32, statistic), rstd = memory.rstd.view(DType::f32, statistic);
  const DropoutMask none;

  backend.gather_rows(output, targets.rows, gathered);
  backend.linear_forward(gathered, store_.compute_value(dense_.weight), store_.value(dense_.bias),
                         config_.hidden_act, sum.reshaped(rows), preactivation);
  backend.add_layer_norm_forward(none, sum, {}, store_.value(norm_.gamma), store_.value(norm_.beta),
                                 config_.layer_norm_eps, sum, transformed.reshaped(samples), mean, rstd);
  decode(pass, memory, targets.labels, transformed, sums, training, weight);
  if (!training) return;

  const View gradient = memory.dhidden.view(type, rows), gradient3 = gradient.reshaped(samples);
  backend.add_layer_norm_backward(none, gradient3, sum, mean, rstd, store_.value(norm_.gamma), gradient3, {},
                                  store_.gradient(norm_.gamma), store_.gradient(norm_.beta), pass.accumulate);
  backend.activation_backward(config_.hidden_act, preactivation, gradient, gradient);
  backend.linear_backward_weights(gathered, gradient, store_.gradient(dense_.weight),
                                  store_.gradient(dense_.bias), pass.accumulate);
  backend.linear_backward_data(gradient, store_.compute_value(dense_.weight), transformed);
  backend.scatter_add_rows(targets.groups, transformed, doutput);
}

// Logits, loss and their gradients, a chunk of rows at a time; also without any row, so that gradients are set.
void MaskedLanguageHead::decode(const Pass& pass, const Memory& memory, ConstView labels, View transformed,
                                View sums, bool training, float weight) const {
  Backend& backend = pass.backend;
  const std::int64_t m = transformed.shape[0], vocabulary = config_.vocab_size;
  const View words = store_.compute_value(word_embeddings_);
  std::int64_t first = 0;
  do {
    const std::int64_t count = std::min(memory.chunk, m - first);
    const View part = rows_of(transformed, first, count);
    const View logits = memory.logits.view(DType::f32, Shape{count, vocabulary});
    View dlogits;
    if (training)
      dlogits =
          memory.type == DType::f32 ? logits : memory.dlogits.view(memory.type, Shape{count, vocabulary});
    backend.linear_forward(part, words, store_.value(bias_), Activation::none, logits);
    backend.softmax_nll(logits, rows_of(labels, first, count), top_k, sums, dlogits, weight);
    if (training) {
      backend.linear_backward_weights(part, dlogits, store_.gradient(word_embeddings_),
                                      store_.gradient(bias_), pass.accumulate || first > 0);
      backend.linear_backward_data(
          dlogits, words, rows_of(memory.dhidden.view(memory.type, transformed.shape), first, count));
    }
    first += count;
  } while (first < m);
}

NextSentenceHead::NextSentenceHead(ParameterStore& store, const BertConfig& config)
    : store_(store),
      config_(config),
      pooler_(add_dense(store, "bert.pooler.dense", config.hidden_size, config.hidden_size, config)),
      classifier_(
          add_dense(store, "cls.seq_relationship", config.hidden_size, next_sentence_classes, config)) {}

NextSentenceHead::Memory NextSentenceHead::make_memory(BufferSource& source, std::int64_t max_samples,
                                                       DType type, bool training) const {
  const std::int64_t hidden = max_samples * config_.hidden_size;
  const std::int64_t logits = max_samples * next_sentence_classes;
  Memory memory;
  memory.type = type;
  memory.first = take(source, hidden, type);
  memory.preactivation = take(source, hidden, type);
  memory.pooled = take(source, hidden, type);
  memory.logits = take(source, logits, DType::f32);
  if (!training) return memory;
  memory.dlogits = take(source, logits, type);
  memory.dpooled = take(source, hidden, type);
  return memory;
}

void NextSentenceHead::run(const Pass& pass, const Memory& memory, const HeadTargets& targets,
                           ConstView output, View sums, View doutput, float weight) const {
  Backend& backend = pass.backend;
  const std::int64_t n = targets.rows.elements();
  const bool training = !doutput.empty();
  const Shape hidden{n, config_.hidden_size}, classes{n, next_sentence_classes};
  const DType type = memory.type;
  const View first = memory.first.view(type, hidden), preactivation = memory.preactivation.view(type, hidden);
  const View pooled = memory.pooled.view(type, hidden), logits = memory.logits.view(DType::f32, classes);
  const View dlogits = training ? memory.dlogits.view(type, classes) : View{};

  backend.gather_rows(output, targets.rows, first);
  backend.linear_forward(first, store_.compute_value(pooler_.weight), store_.value(pooler_.bias),
                         Activation::tanh, pooled, preactivation);
  backend.linear_forward(pooled, store_.compute_value(classifier_.weight), store_.value(classifier_.bias),
                         Activation::none, logits);
  backend.softmax_nll(logits, targets.labels, 1, sums, dlogits, weight);
  if (!training) return;

  const auto weights_of = [&](const Dense& dense, const View& x, const View& dy) {
    backend.linear_backward_weights(x, dy, store_.gradient(dense.weight), store_.gradient(dense.bias),
                                    pass.accumulate);
  };
  const View dpooled = memory.dpooled.view(type, hidden);
  weights_of(classifier_, pooled, dlogits);
  backend.linear_backward_data(dlogits, store_.compute_value(classifier_.weight), dpooled);
  backend.activation_backward(Activation::tanh, preactivation, dpooled, dpooled);
  weights_of(pooler_, first, dpooled);
  backend.linear_backward_data(dpooled, store_.compute_value(pooler_.weight), pooled);
  backend.scatter_add_rows(targets.groups, pooled, doutput);
}

}  // namespace motley
