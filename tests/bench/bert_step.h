// A training step of BERT with the program's own network, optimizer and update: what bert_step_bench times on the
// CPU and gpu_bert_step_bench on a GPU.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>

#include "models/bert.h"
#include "models/bert_batch.h"
#include "train/optimizer.h"
#include "train/update.h"

namespace motley::bench {

// As many masked tokens as NVIDIA's data has: 20 of 128, 80 of 512.
inline std::int64_t masked_tokens(std::int64_t n, std::int64_t seq) {
  return n * (seq * 5 / 32);
}

// A batch of full sequences.
inline HostBertBatch make_bert_batch(std::int64_t n, std::int64_t seq, std::int64_t words) {
  HostBertBatch batch;
  batch.clear(seq);
  batch.n = n;
  for (std::int64_t i = 0; i < n * seq; ++i) {
    batch.ids.push_back(static_cast<std::int32_t>(1 + i * 7919 % (words - 1)));
    batch.types.push_back(i % seq < seq / 2 ? 0 : 1);
    batch.key_mask.push_back(1);
  }
  const std::int64_t masked = masked_tokens(n, seq);
  for (std::int64_t i = 0; i < masked; ++i) {
    batch.masked_rows.push_back(static_cast<std::int32_t>(i * n * seq / masked));
    batch.masked_labels.push_back(static_cast<std::int32_t>(1 + i * 104729 % (words - 1)));
  }
  for (std::int64_t i = 0; i < n; ++i) batch.next_sentence.push_back(static_cast<std::int32_t>(i % 2));
  return batch;
}

// Forward, backward, clipping to norm 1, AdamW; dropout as the config says.
class BertStep {
 public:
  BertStep(Backend& backend, const BertConfig& config, std::int64_t n, std::int64_t seq, DType type)
      : backend_(backend),
        bert_(config),
        host_(make_bert_batch(n, seq, config.vocab_size)),
        // Small gradients have to stay in the range of float16; any fixed factor costs as much as another.
        loss_scale_(type == DType::f16 ? 1024 : 1) {
    const BertMemory memory{n, seq, masked_tokens(n, seq), true, type, false};
    bert_.allocate(backend, memory);
    batch_.reserve(backend, memory);
    bert_.parameters.initialize(1);
    train::OptimizerOptions options;
    options.name = "adamw";
    options.weight_decay = 0.01;
    optimizer_ = train::make_optimizer(options, backend, bert_.parameters);
    update_.emplace(backend, 8, bert_.parameters, *optimizer_, 1);
  }

  // The loss: of masked tokens and next sentences, means of the batch. `stretch`: the passes are a stretch of the backend,
  // as in the trainer.
  static constexpr double rate = 1e-5;
  double step(double lr = rate, bool stretch = true) {
    ++step_;
    const View sums = update_->sums();
    backend_.fill_zero(sums);
    const Pass pass{backend_, true, 1, static_cast<std::uint32_t>(step_), 0, false};
    const BertLossWeights weights{loss_scale_ / static_cast<double>(host_.masked_rows.size()),
                                  loss_scale_ / static_cast<double>(host_.n)};
    bert_.parameters.refresh_copy();
    const auto train = [&] {
      bert_.train(pass, batch_.load(host_, true, bert_.config().pad_token_id), weights, sums, {});
    };
    if (stretch) {
      backend_.run_stretch({host_.n, 0}, train, train);
    } else {
      train();
    }
    norm_ = update_->norm(loss_scale_);
    update_->step(lr, step_);
    backend_.synchronize();
    double host[8];
    backend_.copy_to_host(host, sums.data, sizeof host);
    return host[0] / host[1] + host[4] / host[5];
  }

  // Of the last step's gradient, before clipping.
  double norm() const { return norm_; }
  const ParameterStore& parameters() const { return bert_.parameters; }

 private:
  Backend& backend_;
  Bert bert_;
  HostBertBatch host_;
  double loss_scale_, norm_ = 0;
  BertBatchMemory batch_;
  std::unique_ptr<train::Optimizer> optimizer_;
  std::optional<train::Update> update_;
  std::int64_t step_ = 0;
};

}  // namespace motley::bench
