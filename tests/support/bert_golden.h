// The tiny network of tests/golden/bert.py, with its inputs and parameters.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "models/bert.h"
#include "models/bert_batch.h"
#include "support/golden.h"

namespace motley::test {

inline BertConfig golden_bert_config(Activation activation = Activation::gelu) {
  BertConfig config;
  config.vocab_size = 37;
  config.hidden_size = 12;
  config.layers = 2;
  config.heads = 3;
  config.intermediate_size = 20;
  config.hidden_act = activation;
  config.hidden_dropout = config.attention_dropout = 0;
  config.max_positions = 14;
  return config;
}

// Samples [first, first + n) of the golden batch.
inline HostBertBatch golden_bert_batch(const Golden& golden, std::int64_t first, std::int64_t n) {
  const std::int64_t seq = golden["input/ids"].shape[1];
  const auto ids = golden["input/ids"].values<std::int32_t>(),
             types = golden["input/types"].values<std::int32_t>(),
             mask = golden["input/mask"].values<std::int32_t>(),
             labels = golden["input/labels"].values<std::int32_t>(),
             next = golden["input/next_sentence"].values<std::int32_t>();
  HostBertBatch batch;
  batch.clear(seq);
  batch.n = n;
  for (std::int64_t i = 0; i < n * seq; ++i) {
    const auto at = static_cast<std::size_t>(first * seq + i);
    batch.ids.push_back(ids[at]);
    batch.types.push_back(types[at]);
    batch.key_mask.push_back(static_cast<std::uint8_t>(mask[at]));
    if (labels[at] < 0) continue;
    batch.masked_rows.push_back(static_cast<std::int32_t>(i));
    batch.masked_labels.push_back(labels[at]);
  }
  for (std::int64_t i = 0; i < n; ++i)
    batch.next_sentence.push_back(next[static_cast<std::size_t>(first + i)]);
  return batch;
}

// A network on the CPU backend whose parameters are those of the golden file.
struct GoldenBert {
  static constexpr std::int64_t samples = 3, masked = 5;

  GoldenBert(const Golden& golden_, const BertConfig& config, DType compute = DType::f32,
             bool recompute = false)
      : golden(golden_),
        backend(make_cpu_backend(2)),
        bert(std::make_unique<Bert>(config)),
        memory{samples, golden["input/ids"].shape[1], masked, true, compute, recompute} {
    bert->allocate(*backend, memory);
    batches.reserve(*backend, memory);
    sums = Buffer(*backend, 8 * sizeof(double));
    const ParameterStore& store = bert->parameters;
    for (std::size_t i = 0; i < store.all().size(); ++i) {
      const std::vector<float> values = golden["start/" + store.all()[i].name].values<float>();
      const View view = store.value(static_cast<int>(i));
      backend->copy_to_device(view.data, values.data(), view.bytes());
    }
    bert->parameters.changed();
  }

  // Memory for so many samples, with room for the masked tokens of the whole batch.
  void reserve(std::int64_t of_samples) {
    memory.samples = of_samples;
    bert->reserve(*backend, memory);
    batches.reserve(*backend, memory);
  }

  // Runs the golden batch in micro-batches of the given sizes; returns the two mean losses.
  std::vector<double> train(const std::vector<std::int64_t>& micro_batches, std::uint32_t step = 1,
                            const GradientsDone& done = {}) {
    backend->fill_zero(sums.view(DType::f64, Shape{8}));
    std::int64_t first = 0;
    for (const std::int64_t n : micro_batches) {
      const BertBatch batch = batches.load(golden_bert_batch(golden, first, n), true, 0);
      const Pass pass{*backend, true, 42, step, static_cast<std::uint32_t>(first), first > 0};
      bert->train(pass, batch, {1.0 / masked, 1.0 / samples}, sums.view(DType::f64, Shape{8}), done);
      first += n;
    }
    double host[8];
    backend->copy_to_host(host, sums.data(), sizeof host);
    return {host[0] / host[1], host[4] / host[5]};
  }

  std::vector<float> gradient(std::size_t index) const {
    return host(bert->parameters.gradient(static_cast<int>(index)));
  }
  std::vector<float> value(std::size_t index) const {
    return host(bert->parameters.value(static_cast<int>(index)));
  }
  std::vector<float> host(const View& view) const {
    std::vector<float> values(static_cast<std::size_t>(view.elements()));
    backend->copy_to_host(values.data(), view.data, view.bytes());
    return values;
  }

  const Golden& golden;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Bert> bert;
  BertMemory memory;
  BertBatchMemory batches;
  Buffer sums;
};

inline double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(sum);
}

}  // namespace motley::test
