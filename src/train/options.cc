#include "train/options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "balance/balancer.h"
#include "balance/shares.h"
#include "balance/slow.h"
#include "core/error.h"
#include "core/quantity.h"
#include "io/image_set.h"
#include "models/image_archs.h"
#include "report/progress.h"
#include "train/memory_limit.h"
#include "train/option_users.h"

namespace motley::train {
namespace {

template <std::size_t count>
void expect_one_of(const char* option, const std::string& value,
                   const std::array<const char*, count>& choices) {
  std::string list;
  for (const char* choice : choices) {
    if (value == choice) return;
    list += list.empty() ? "" : ", ";
    list += choice;
  }
  fail(ExitCode::usage, "--{} is \"{}\"; expected one of: {}", option, value, list);
}

void expect(bool holds, const char* option, double value, const char* expected) {
  if (!holds) fail(ExitCode::usage, "--{} is {}; expected {}", option, value, expected);
}

void check_optimizer(const OptimizerOptions& optimizer) {
  expect_one_of("optimizer", optimizer.name, std::array{"sgd", "adam", "adamw", "lamb", "adadelta"});
  expect(optimizer.momentum >= 0 && optimizer.momentum < 1, "momentum", optimizer.momentum,
         "a number in [0, 1)");
  expect(optimizer.adam_beta1 >= 0 && optimizer.adam_beta1 < 1, "adam-betas", optimizer.adam_beta1,
         "numbers in [0, 1)");
  expect(optimizer.adam_beta2 >= 0 && optimizer.adam_beta2 < 1, "adam-betas", optimizer.adam_beta2,
         "numbers in [0, 1)");
  expect(optimizer.adam_eps > 0, "adam-eps", optimizer.adam_eps, "a positive number");
  expect(optimizer.adadelta_rho >= 0 && optimizer.adadelta_rho <= 1, "adadelta-rho", optimizer.adadelta_rho,
         "a number in [0, 1]");
  expect(optimizer.adadelta_eps > 0, "adadelta-eps", optimizer.adadelta_eps, "a positive number");
  expect(optimizer.weight_decay >= 0, "weight-decay", optimizer.weight_decay, "a number of at least 0");
  expect(optimizer.clip_norm >= 0, "clip-norm", optimizer.clip_norm,
         "a number of at least 0 (0: no clipping)");
  if (optimizer.nesterov &&
      (optimizer.name != "sgd" || optimizer.momentum == 0 || optimizer.dampening != 0)) {
    fail(ExitCode::usage, "--nesterov needs --optimizer sgd with a --momentum above 0 and no --dampening");
  }
}

void check_schedule(const ScheduleOptions& schedule) {
  for (const double lr : schedule.lr) expect(lr >= 0 && std::isfinite(lr), "lr", lr, "rates of at least 0");
  if (schedule.lr.empty()) fail(ExitCode::usage, "--lr is empty; expected at least one rate");
  expect(schedule.warmup_updates >= 0, "warmup-updates", static_cast<double>(schedule.warmup_updates),
         "at least 0");
  expect_one_of("lr-scheduler", schedule.scheduler, std::array{"polynomial", "cosine", "step"});
  expect_one_of("lr-unit", schedule.unit, std::array{"epoch", "update"});
  expect(schedule.end_learning_rate >= 0, "end-learning-rate", schedule.end_learning_rate, "at least 0");
  expect(schedule.power >= 0, "power", schedule.power, "at least 0");
  if (schedule_uses(schedule, "total-num-update") && schedule.total_num_update <= schedule.warmup_updates) {
    fail(ExitCode::usage, "--total-num-update is {}; expected more than --warmup-updates, which is {}",
         schedule.total_num_update, schedule.warmup_updates);
  }
  if (schedule_uses(schedule, "lr-epochs"))
    expect(schedule.epochs >= 1, "lr-epochs", static_cast<double>(schedule.epochs), "at least 1");
  if (schedule.scheduler != "step") return;
  expect(schedule.gamma > 0 && schedule.gamma <= 1, "lr-gamma", schedule.gamma,
         "a number above 0 and at most 1");
  expect(schedule.step_size >= 0, "lr-step-size", static_cast<double>(schedule.step_size), "at least 1");
  if ((schedule.step_size > 0) == !schedule.milestones.empty()) {
    fail(ExitCode::usage,
         "--lr-scheduler step needs either --lr-step-size, the {0}s between two falls of the rate, or "
         "--lr-milestones, the {0}s after which it falls",
         schedule.unit);
  }
  for (std::size_t i = 0; i < schedule.milestones.size(); ++i) {
    if (schedule.milestones[i] >= 1 && (i == 0 || schedule.milestones[i] > schedule.milestones[i - 1]))
      continue;
    fail(ExitCode::usage, "--lr-milestones has {} as its number {}; expected ascending numbers of at least 1",
         schedule.milestones[i], i + 1);
  }
}

void check_batch(const BatchOptions& batch, int ranks) {
  // Each factor is bounded by itself first, so that their product does not overflow.
  using balance::largest_batch;
  const auto in_range = [](std::int64_t value, std::int64_t least) {
    return value >= least && value <= largest_batch;
  };
  expect(in_range(batch.max_sentences, 1), "max-sentences", static_cast<double>(batch.max_sentences),
         "1 to 2147483648");
  expect(in_range(batch.global_batch, 0), "global-batch", static_cast<double>(batch.global_batch),
         "1 to 2147483648");
  if (batch.update_freq.empty())
    fail(ExitCode::usage, "--update-freq is empty; expected at least one number");
  expect(batch.window >= 1 && batch.window <= 4096, "window", static_cast<double>(batch.window),
         "1 to 4096 steps");
  for (const std::int64_t frequency : batch.update_freq) {
    expect(in_range(frequency, 1), "update-freq", static_cast<double>(frequency), "numbers of at least 1");
    const double product = static_cast<double>(batch.max_sentences) * static_cast<double>(frequency) * ranks;
    if (batch.global_batch == 0 && product > static_cast<double>(largest_batch)) {
      fail(ExitCode::usage,
           "the global batch, --max-sentences x --update-freq x ranks, is {}; expected at most {}", product,
           largest_batch);
    }
  }
  const balance::PolicyKind policy = balance::parse_policy(batch.policy);
  if (policy == balance::PolicyKind::fixed && batch.weights.empty())
    fail(ExitCode::usage, "--policy static needs --weights with {} numbers, one per rank", ranks);
  if (policy == balance::PolicyKind::sync && !batch.weights.empty())
    fail(ExitCode::usage, "--weights and --policy sync, which gives equal shares, contradict each other");
  if (!batch.weights.empty()) balance::parse_weights(batch.weights, ranks);
  expect(batch.local_steps >= 1 && batch.local_steps <= 1000000, "local-steps",
         static_cast<double>(batch.local_steps), "1 (all ranks step together) to 1000000");
  if (policy == balance::PolicyKind::dp && batch.local_steps > 1) {
    fail(ExitCode::usage,
         "--local-steps averages parameters by shares, and --policy dp gives all ranks the same weight; "
         "expected "
         "another policy, such as edp, which has the same shares");
  }
}

void check_duration(const char* option, const std::string& text, bool may_be_empty) {
  if (text.empty() && may_be_empty) return;
  const std::optional<double> seconds = parse_duration(text);
  if (!seconds || *seconds <= 0)
    fail(ExitCode::usage, "--{} is \"{}\"; expected a time above 0, such as 11h50m, 90s or 1d12h", option,
         text);
}

// Options of one task mean nothing to another.
void expect_bert(const std::string& task, const char* option, bool given) {
  if (given && task != "bert") fail(ExitCode::usage, "--{} is for task bert; this is task {}", option, task);
}

void check_model(const ModelOptions& model, const std::string& task) {
  const ModelOptions unset;
  expect_one_of("precision", model.precision, std::array{"fp32", "bf16", "fp16"});
  expect(model.loss_scale == 0 || (model.loss_scale >= 1 && model.loss_scale <= 0x1p60), "loss-scale",
         model.loss_scale, "0 (by itself) or a number from 1 to 2^60");
  if (model.loss_scale != 0 && model.precision != "fp16") {
    fail(ExitCode::usage, "--loss-scale is for --precision fp16; --precision {} needs none", model.precision);
  }
  expect_one_of("masking", model.masking, std::array{"static", "dynamic"});
  expect_bert(task, "config-file", !model.config_file.empty());
  expect_bert(task, "dict", !model.dict.empty());
  expect_bert(task, "recompute", model.recompute);
  expect_bert(task, "masking dynamic", model.masking != unset.masking);
  expect(model.masked_lm_prob > 0 && model.masked_lm_prob <= 1, "masked-lm-prob", model.masked_lm_prob,
         "a number above 0 and at most 1");
  expect(model.max_predictions >= 0 && model.max_predictions <= 65535, "max-predictions-per-seq",
         static_cast<double>(model.max_predictions), "0 (by itself) to 65535");
  const bool dynamic = model.masking == "dynamic";
  const auto expect_dynamic = [&](const char* option, bool given) {
    if (given && !dynamic)
      fail(ExitCode::usage, "--{} is for --masking dynamic; the data is masked already", option);
  };
  expect_dynamic("masked-lm-prob", model.masked_lm_prob != unset.masked_lm_prob);
  expect_dynamic("max-predictions-per-seq", model.max_predictions != 0);
  expect_dynamic("whole-word", model.whole_word);
}

void check_image(const ImageOptions& image, const std::string& task) {
  expect_images(task, "arch", !image.arch.empty());
  expect_images(task, "classes", image.classes != 0);
  expect_images(task, "mean", !image.mean.empty());
  expect_images(task, "deviation", !image.deviation.empty());
  expect_images(task, "crop-padding", image.crop_padding != 0);
  expect_images(task, "flip", image.flip);
  if (!image.arch.empty()) find_image_arch(image.arch);
  expect(image.classes >= 0 && image.classes <= io::most_classes, "classes",
         static_cast<double>(image.classes), "1 to 16777216");
  if (image.mean.size() != image.deviation.size()) {
    fail(ExitCode::usage, "--mean has {} number(s) and --deviation has {}; expected one per channel each",
         image.mean.size(), image.deviation.size());
  }
  for (const double deviation : image.deviation)
    expect(deviation > 0, "deviation", deviation, "positive numbers");
  constexpr std::int64_t most_padding = 1024;
  expect(image.crop_padding >= 0 && image.crop_padding <= most_padding, "crop-padding",
         static_cast<double>(image.crop_padding), "0 (no cropping) to 1024 pixels");
}

const OptionUsers optimizer_options[] = {
    {"momentum", {"sgd"}},
    {"dampening", {"sgd"}},
    {"nesterov", {"sgd"}},
    {"adam-betas", {"adam", "adamw", "lamb"}},
    {"adam-eps", {"adam", "adamw", "lamb"}},
    {"adadelta-rho", {"adadelta"}},
    {"adadelta-eps", {"adadelta"}},
};

}  // namespace

void expect_images(const std::string& task, const char* option, bool given) {
  if (given && task == "bert") fail(ExitCode::usage, "--{} is for images; this is task bert", option);
}

DType ModelOptions::compute() const {
  if (precision == "bf16") return DType::bf16;
  return precision == "fp16" ? DType::f16 : DType::f32;
}

std::string users_of(const std::string& optimizer_option) {
  return users_text(optimizer_options, optimizer_option);
}

bool optimizer_uses(const std::string& optimizer, const std::string& option) {
  return is_used(optimizer_options, option, optimizer);
}

void check_options(const TrainOptions& options, int ranks) {
  expect_one_of("task", options.data.task, std::array{"mnist", "cifar10", "cifar100", "images", "bert"});
  check_model(options.model, options.data.task);
  check_image(options.image, options.data.task);
  if (options.data.data.empty())
    fail(ExitCode::usage, "--data is missing; expected the directory with the HDF5 files");
  check_batch(options.batch, ranks);
  check_optimizer(options.optimizer);
  check_schedule(options.schedule);
  expect(options.data.validate_interval >= 0, "validate-interval",
         static_cast<double>(options.data.validate_interval), "at least 0 (0: never)");
  expect(options.data.curriculum >= 0 && options.data.curriculum <= std::numeric_limits<int>::max(),
         "curriculum", static_cast<double>(options.data.curriculum), "0 to 2147483647");
  expect(options.data.num_file >= 0, "num-file", static_cast<double>(options.data.num_file),
         "at least 0 (0: all)");
  constexpr std::int64_t largest_pool = 1LL << 31;
  expect(options.data.shuffle_pool >= 1 && options.data.shuffle_pool <= largest_pool, "shuffle-pool",
         static_cast<double>(options.data.shuffle_pool), "1 to 2147483648 samples");
  expect(options.save.save_interval >= 0, "save-interval", static_cast<double>(options.save.save_interval),
         "at least 0 (0: only at the end)");
  expect(options.save.save_interval_updates >= 0, "save-interval-updates",
         static_cast<double>(options.save.save_interval_updates), "at least 0 (0: never)");
  expect(options.save.keep_interval_updates >= -1, "keep-interval-updates",
         static_cast<double>(options.save.keep_interval_updates), "at least -1 (-1 or 0: all)");
  expect(options.save.keep_last_epochs >= -1, "keep-last-epochs",
         static_cast<double>(options.save.keep_last_epochs), "at least -1 (-1 or 0: all)");
  expect(options.guard.max_skips >= 1 && options.guard.max_skips <= 1000000, "max-skips",
         static_cast<double>(options.guard.max_skips), "1 to 1000000 steps in a row");
  expect(options.guard.verify_every >= 0, "verify-every", static_cast<double>(options.guard.verify_every),
         "at least 0 (0: never)");
  check_duration("stop-after", options.guard.stop_after, true);
  check_duration("checkpoint-deadline", options.guard.checkpoint_deadline, false);
  expect(options.report.log_interval >= 1, "log-interval", static_cast<double>(options.report.log_interval),
         "at least 1");
  report::parse_log_format(options.report.log_format);
  constexpr std::int64_t largest_int = std::numeric_limits<int>::max();
  expect(options.max_epoch >= 0 && options.max_epoch <= largest_int, "max-epoch",
         static_cast<double>(options.max_epoch), "0 (no limit) to 2147483647");
  expect(options.max_update >= 0, "max-update", static_cast<double>(options.max_update),
         "at least 0 (0: no limit)");
  constexpr std::int64_t largest_step = 0xffffffffLL;  // a step is a 32-bit word of the random counter
  expect(options.max_update <= largest_step, "max-update", static_cast<double>(options.max_update),
         "at most 4294967295");
  const bool rate_ends =
      options.schedule.scheduler != "step" && options.schedule.min_lr >= options.schedule.end_learning_rate;
  if (options.max_epoch == 0 && options.max_update == 0 && !rate_ends) {
    fail(ExitCode::usage,
         "nothing says when to stop; expected --max-epoch, --max-update, or a --min-lr that the rate falls "
         "to");
  }
  if (options.data.valid_subset_given && options.data.validate_interval == 0) {
    fail(ExitCode::usage, "--valid-subset and --validate-interval 0 contradict each other");
  }
  expect_one_of("device", options.device, std::array{"auto", "cpu", "cuda"});
  expect(options.threads >= 0 && options.threads <= 1024, "threads", options.threads,
         "0 (by itself) to 1024");
  expect(options.bucket_cap_mb > 0 && options.bucket_cap_mb <= 1e6, "bucket-cap-mb", options.bucket_cap_mb,
         "a number above 0 and at most 1000000");
  expect_one_of("allreduce-dtype", options.allreduce_dtype, std::array{"fp32", "bf16"});
  if (options.model.precision == "fp16" && options.batch.local_steps > 1) {
    fail(ExitCode::usage,
         "--precision fp16 and --local-steps contradict each other: ranks that step alone would not skip the "
         "same "
         "steps; expected --precision bf16 or fp32");
  }
  if (options.allreduce_dtype != "fp32" && options.batch.local_steps > 1) {
    fail(ExitCode::usage,
         "--allreduce-dtype bf16 is for gradients, and with --local-steps {} it is parameters that are "
         "summed; "
         "expected fp32",
         options.batch.local_steps);
  }
  expect(options.timeout_s > 0, "timeout", options.timeout_s, "a positive number of seconds");
  if (!options.slow.empty()) balance::parse_slow(options.slow, ranks);
  if (!options.memory_limit.empty()) parse_memory_limit(options.memory_limit, ranks);
}

std::int64_t global_batch(const BatchOptions& options, int epoch, int ranks) {
  if (options.global_batch > 0) return options.global_batch;
  const auto index = std::min(static_cast<std::size_t>(epoch - 1), options.update_freq.size() - 1);
  return options.max_sentences * options.update_freq[index] * ranks;
}

}  // namespace motley::train
