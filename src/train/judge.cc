#include "train/judge.h"

#include <chrono>
#include <cmath>

#include "core/error.h"
#include "core/log.h"

namespace motley::train {

Json Best::to_json() const {
  if (step < 0) return nullptr;
  return {{"metric", metric}, {"maximize", maximize}, {"value", value}, {"step", step}};
}

Best Best::from_json(const Json& json, const Best& wanted) {
  if (!json.is_object() || json.value("metric", "") != wanted.metric ||
      json.value("maximize", !wanted.maximize) != wanted.maximize) {
    return wanted;
  }
  Best best = wanted;
  best.value = json_get<double>(json, "value", "\"best\" of trainer.json", ExitCode::checkpoint);
  best.step = json_get<std::int64_t>(json, "step", "\"best\" of trainer.json", ExitCode::checkpoint);
  return best;
}

Judge::Judge(const TrainOptions& options, const comm::Communicator& world, Task& task)
    : options_(options), world_(world), task_(task) {
  best_.metric = options.save.best_metric;
  best_.maximize = options.save.maximize_best_metric;
  std::string list = "loss";
  for (const std::string& name : task.metric_names()) {
    if (name == best_.metric) return;
    list += ", " + name;
  }
  if (best_.metric == "loss") return;
  fail(ExitCode::usage, "--best-checkpoint-metric is \"{}\"; task {} has: {}", best_.metric, task.name(),
       list);
}

void Judge::open() {
  if (options_.data.validate_interval == 0) return;
  for (const std::string& subset : options_.data.valid_subsets) {
    auto set = open_subset(task_, options_.data, subset, options_.data.valid_subset_given, world_);
    if (set) {
      sets_.push_back(std::move(*set));
    } else {
      log::info("there is no subset {} in {}: training without validation", subset, options_.data.data);
    }
  }
}

std::optional<std::vector<report::ValidRecord>> Judge::judge(Backend& backend, const Position& position,
                                                             const EvaluateOptions& how) {
  std::optional<Metrics> of_first;
  std::vector<report::ValidRecord> records;
  ComputeRegion region(backend, options_.slow, world_, options_.seed);
  for (DataSet& data : sets_) {
    const auto started = std::chrono::steady_clock::now();
    const std::optional<Metrics> metrics = evaluate(task_, backend, data, world_, how, region);
    if (!metrics) return std::nullopt;
    if (!of_first) of_first = metrics;
    report::ValidRecord record;
    record.subset = data.subset;
    record.step = position.step;
    record.epoch = position.epoch;
    record.loss = metrics->loss;
    record.samples = static_cast<std::int64_t>(data.source.rows);
    record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    record.metrics = metrics->values;
    records.push_back(record);
  }
  if (of_first) consider(*of_first, position.step);
  return records;
}

void Judge::consider(const Metrics& metrics, std::int64_t step) {
  double value = metrics.loss;
  for (const auto& [name, found] : metrics.values) {
    if (name == best_.metric) value = found;
  }
  if (!std::isfinite(value)) return;
  const bool better = best_.maximize ? value > best_.value : value < best_.value;
  if (best_.step >= 0 && !better) return;
  best_.value = value;
  best_.step = step;
}

}  // namespace motley::train
