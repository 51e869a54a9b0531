#include "train/tasks/bert_task.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/files.h"
#include "io/bert_set.h"
#include "train/stored_model.h"

namespace motley::train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t masked_total = 0, sentence_total = 1;

double mean(double sum, double count) {
  return count > 0 ? sum / count : 0;
}

// Masks that are drawn while training depend on the step and the slot; those for evaluation on the sample
// alone.
RandomKey training_key(const Slots& slots) {
  return RandomKey(slots.seed, Purpose::masking, 0, slots.step);
}

RandomKey evaluation_key() {
  return RandomKey(0, Purpose::masking, 1, 0);
}

// Whether some token, other than the likes of [CLS], has a capital letter: text is then not put in lower
// case, which would make the token useless. A vocabulary without any proves nothing.
bool has_capitals(const io::Vocabulary& vocabulary) {
  const auto is_capital = [](char c) { return c >= 'A' && c <= 'Z'; };
  return std::any_of(vocabulary.tokens().begin(), vocabulary.tokens().end(), [&](const std::string& token) {
    return !token.starts_with('[') && std::any_of(token.begin(), token.end(), is_capital);
  });
}

}  // namespace

BertTask::BertTask(const BertConfig& config, const ModelOptions& options,
                   std::optional<io::Vocabulary> vocabulary, std::string dict_path, std::string dict_text,
                   std::string tokenizer_config)
    : options_(options),
      vocabulary_(std::move(vocabulary)),
      dict_path_(std::move(dict_path)),
      dict_text_(std::move(dict_text)),
      tokenizer_config_(std::move(tokenizer_config)),
      bert_(std::make_unique<Bert>(config)) {
  if (tokenizer_config_.empty() && vocabulary_ && has_capitals(*vocabulary_)) {
    tokenizer_config_ = Json{{"tokenizer_class", "BertTokenizer"}, {"do_lower_case", false}}.dump(2) + "\n";
  }
}

bool BertTask::has_subset(const DataOptions& data, const std::string& subset) const {
  return !io::find_bert_subset(data.data, subset, data.valid_subsets).empty();
}

io::RowSource BertTask::open(const DataOptions& data, const std::string& subset) const {
  const BertConfig& config = bert_->config();
  io::RowSource source =
      io::describe_bert_set(io::bert_subset_paths(data.data, subset, data.valid_subsets), data.num_file,
                            {config.vocab_size, config.type_vocab_size, config.max_positions});
  if (source.bert->predictions == 0 && options_.masking != "dynamic") {
    fail(ExitCode::input,
         "{}: there is no masked_lm_positions, so the samples are not masked; expected --masking dynamic",
         source.path);
  }
  if (vocabulary_ && !source.vocab_xxh3.empty() &&
      source.vocab_xxh3 != io::vocabulary_fingerprint(*vocabulary_)) {
    fail(ExitCode::input,
         "{}: was made with another vocabulary than {}; expected the vocab.txt that motley data bert was "
         "given",
         source.path, dict_path_);
  }
  return source;
}

void BertTask::check(const io::RowSource& /*source*/, std::uint64_t /*first*/,
                     std::uint64_t /*count*/) const {}

void BertTask::expect(const io::RowSource& source) {
  // Every rank has the same description, so all throw. Memory is taken for the longest sequences.
  if (seq_length_ != 0 && source.bert->seq_length != seq_length_) {
    throw AgreedError(ExitCode::input,
                      fmt::format("{}: sequences of {} tokens, but this run has others of {}; "
                                  "expected the same length in all subsets",
                                  source.path, source.bert->seq_length, seq_length_));
  }
  seq_length_ = source.bert->seq_length;
  data_predictions_ = std::max(data_predictions_, source.bert->predictions);
}

std::int64_t BertTask::most_predictions() const {
  if (options_.masking != "dynamic") return data_predictions_;
  std::int64_t predictions = options_.max_predictions;
  if (predictions == 0)
    predictions =
        static_cast<std::int64_t>(std::ceil(options_.masked_lm_prob * static_cast<double>(seq_length_)));
  return std::min(predictions, seq_length_);
}

BertMemory BertTask::memory_of(std::int64_t micro_batch, bool training) const {
  return {.samples = micro_batch,
          .seq_length = seq_length_,
          .masked = micro_batch * most_predictions(),
          .training = training,
          .compute = options_.compute(),
          .recompute = options_.recompute};
}

void BertTask::allocate_parameters(Backend& backend, bool training) {
  MOTLEY_CHECK(seq_length_ > 0);
  std::optional<DynamicMasking> dynamic;
  if (options_.masking == "dynamic")
    dynamic = {{options_.masked_lm_prob, most_predictions(), options_.whole_word}, &*vocabulary_};
  samples_ = std::make_unique<BertSamples>(dynamic);
  bert_->parameters.allocate(backend, training, options_.compute());
}

std::size_t BertTask::memory_bytes(std::int64_t micro_batch, bool training) const {
  const BertMemory size = memory_of(micro_batch, training);
  return bert_->memory_bytes(size) + BertBatchMemory::memory_bytes(size);
}

void BertTask::take_memory(Backend& backend, std::int64_t micro_batch, bool training) {
  const BertMemory size = memory_of(micro_batch, training);
  bert_->reserve(backend, size);
  device_batch_.reserve(backend, size);
}

void BertTask::release_memory() {
  bert_->release();
  device_batch_.release();
}

std::vector<std::string> BertTask::metric_names() const {
  return {"mlm_accuracy", "nsp_accuracy", "perplexity", "mlm_loss", "nsp_loss"};
}

Metrics BertTask::metrics(std::span<const double> sums) const {
  Metrics metrics;
  const double masked_loss = mean(sums[0], sums[1]), sentence_loss = mean(sums[4], sums[5]);
  metrics.loss = masked_loss + sentence_loss;
  metrics.count = sums[5];
  const double values[] = {mean(sums[2], sums[1]), mean(sums[6], sums[5]), std::exp(masked_loss), masked_loss,
                           sentence_loss};
  const std::vector<std::string> names = metric_names();
  for (std::size_t i = 0; i < names.size(); ++i) metrics.values.emplace_back(names[i], values[i]);
  return metrics;
}

void BertTask::count(const Rows& rows, const Slots& slots, std::span<double> totals) {
  for (std::int64_t i = 0; i < rows.n; ++i) {
    totals[masked_total] += static_cast<double>(
        samples_->count_masked(rows.source, rows.window, rows.first + i, training_key(slots),
                               slots.first + static_cast<std::uint32_t>(i)));
  }
  totals[sentence_total] += static_cast<double>(rows.n);
}

void BertTask::train(const Pass& pass, const Rows& rows, std::span<const double> totals, View sums,
                     const GradientsDone& done) {
  batch_.clear(rows.source.bert->seq_length);
  const RandomKey key = training_key({pass.seed, pass.step, pass.first_slot});
  for (std::int64_t i = 0; i < rows.n; ++i) {
    samples_->add(rows.source, rows.window, rows.first + i, key,
                  pass.first_slot + static_cast<std::uint32_t>(i), batch_);
  }
  const double weight = pass.gradient_weight;
  const BertLossWeights weights{totals[masked_total] > 0 ? weight / totals[masked_total] : 0,
                                totals[sentence_total] > 0 ? weight / totals[sentence_total] : 0};
  bert_->train(pass, device_batch_.load(batch_, true, bert_->config().pad_token_id), weights, sums, done);
}

void BertTask::evaluate(const Pass& pass, const Rows& rows, View sums) {
  batch_.clear(rows.source.bert->seq_length);
  for (std::int64_t i = 0; i < rows.n; ++i) {
    const auto row = static_cast<std::size_t>(rows.first + i);
    samples_->add(rows.source, rows.window, rows.first + i, evaluation_key(),
                  static_cast<std::uint32_t>(rows.window.ids[row]), batch_);
  }
  bert_->evaluate(pass, device_batch_.load(batch_, false, bert_->config().pad_token_id), sums);
}

std::map<std::string, std::string> BertTask::model_files() const {
  std::map<std::string, std::string> files{{"config.json", bert_->config().to_json().dump(2) + "\n"}};
  if (!dict_text_.empty()) files["vocab.txt"] = dict_text_;
  if (!tokenizer_config_.empty()) files["tokenizer_config.json"] = tokenizer_config_;
  return files;
}

std::unique_ptr<Task> make_bert_task(const TrainOptions& options) {
  const fs::path beside = directory_of_config(options.save);
  fs::path config_path = options.model.config_file;
  if (config_path.empty()) {
    if (beside.empty())
      fail(ExitCode::usage, "--config_file is missing; expected the bert_config.json of the network");
    config_path = beside / "config.json";
  }
  const BertConfig config = read_bert_config(config_path);
  fs::path dict = options.model.dict;
  std::error_code error;
  std::string tokenizer_config;
  if (dict.empty() && !beside.empty() && fs::exists(beside / "vocab.txt", error)) {
    dict = beside / "vocab.txt";
    const fs::path tokenizer = beside / "tokenizer_config.json";
    if (fs::exists(tokenizer, error)) tokenizer_config = read_file(tokenizer, ExitCode::input);
  }
  if (dict.empty()) {
    if (options.model.masking == "dynamic") {
      fail(ExitCode::usage, "--masking dynamic needs --dict, the vocab.txt that the data was made with");
    }
    return std::make_unique<BertTask>(config, options.model, std::nullopt, std::string(), std::string());
  }
  io::Vocabulary vocabulary = io::Vocabulary::read(dict.string());
  if (vocabulary.size() > config.vocab_size) {
    fail(ExitCode::input, "{} has {} tokens; expected at most \"vocab_size\" of {}, which is {}",
         dict.string(), vocabulary.size(), config_path.string(), config.vocab_size);
  }
  return std::make_unique<BertTask>(config, options.model, std::move(vocabulary), dict.string(),
                                    read_file(dict, ExitCode::input), std::move(tokenizer_config));
}

}  // namespace motley::train
