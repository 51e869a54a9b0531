// Pretraining of BERT: masked-language modelling and next-sentence prediction.
//
// Loss = cross entropy summed over the masked tokens of the global batch / their number + cross entropy
// summed over its next-sentence labels / their number (law 2). Both numbers are known before the first
// backward pass of a step, so that each term's gradient is formed with its own divisor and the sum is the
// gradient of the loss.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/vocabulary.h"
#include "models/bert.h"
#include "models/bert_batch.h"
#include "train/task.h"
#include "train/tasks/bert_names.h"
#include "train/tasks/bert_samples.h"

namespace motley::train {

class BertTask final : public Task {
 public:
  // `dict_text` and `tokenizer_config`, the whole vocab.txt and tokenizer_config.json or nothing, go into
  // checkpoints. Without the latter one is made where the vocabulary tells what to write.
  BertTask(const BertConfig& config, const ModelOptions& options, std::optional<io::Vocabulary> vocabulary,
           std::string dict_path, std::string dict_text, std::string tokenizer_config = {});

  std::string name() const override { return "bert"; }
  bool has_subset(const DataOptions& data, const std::string& subset) const override;
  io::RowSource open(const DataOptions& data, const std::string& subset) const override;
  void check(const io::RowSource& source, std::uint64_t first, std::uint64_t count) const override;
  void expect(const io::RowSource& source) override;
  ParameterStore& parameters() override { return bert_->parameters; }
  void allocate_parameters(Backend& backend, bool training) override;
  std::size_t memory_bytes(std::int64_t micro_batch, bool training) const override;

  // Masked tokens: summed loss, count, right, among the best 5; sentences: the same.
  std::int64_t sums() const override { return 8; }
  Metrics metrics(std::span<const double> sums) const override;
  double divisor(std::span<const double> /*sums*/) const override { return 1; }
  std::vector<std::string> metric_names() const override;
  // Masked tokens and sentences.
  std::int64_t totals() const override { return 2; }
  void count(const Rows& rows, const Slots& slots, std::span<double> totals) override;
  void train(const Pass& pass, const Rows& rows, std::span<const double> totals, View sums,
             const GradientsDone& done) override;
  void evaluate(const Pass& pass, const Rows& rows, View sums) override;
  std::map<std::string, std::string> model_files() const override;
  NameRules name_rules() const override { return bert_name_rules(); }

 private:
  void take_memory(Backend& backend, std::int64_t micro_batch, bool training) override;
  void release_memory() override;
  // Masked tokens of one sample at most.
  std::int64_t most_predictions() const;
  BertMemory memory_of(std::int64_t micro_batch, bool training) const;

  ModelOptions options_;
  std::optional<io::Vocabulary> vocabulary_;
  std::string dict_path_, dict_text_, tokenizer_config_;
  std::unique_ptr<Bert> bert_;
  // Of the data: the longest sequence and the most predictions of all subsets.
  std::int64_t seq_length_ = 0, data_predictions_ = 0;
  std::unique_ptr<BertSamples> samples_;
  BertBatchMemory device_batch_;
  HostBertBatch batch_;
};

// Reads --config_file, or the config.json of the checkpoint to continue or of --init-from, and --dict.
std::unique_ptr<Task> make_bert_task(const TrainOptions& options);

}  // namespace motley::train
