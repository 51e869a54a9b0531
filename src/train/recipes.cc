#include <algorithm>
#include <iterator>

#include "balance/balancer.h"
#include "core/error.h"
#include "train/option_users.h"
#include "train/options.h"

namespace motley::train {
namespace {

// The dynamic-partition experiments' for CIFAR-10, which is He et al.'s but for the batch and the cosine.
void follow_cifar_recipe(TrainOptions& options, const Given& given) {
  OptimizerOptions& optimizer = options.optimizer;
  if (optimizer.name == "sgd") {
    if (!given("lr")) options.schedule.lr = {0.1};
    if (!given("weight-decay")) optimizer.weight_decay = 5e-4;
    if (!given("nesterov")) optimizer.nesterov = optimizer.momentum > 0 && optimizer.dampening == 0;
  }
  if (!given("clip-norm")) optimizer.clip_norm = 0;
  if (!given("lr-scheduler")) options.schedule.scheduler = "cosine";
  if (!given("global-batch") && !given("update-freq")) options.batch.global_batch = 256;
  if (!given("best-checkpoint-metric") && !given("maximize-best-checkpoint-metric")) {
    options.save.best_metric = "accuracy";
    options.save.maximize_best_metric = true;
  }
  if (options.data.task == "images") return;  // not every image may be mirrored: digits, text
  if (!given("crop-padding")) options.image.crop_padding = 4;
  if (!given("flip")) options.image.flip = true;
}

void settle_batch_norm(TrainOptions& options, const Given& given) {
  const bool published = balance::is_published(balance::parse_policy(options.batch.policy));
  if (!given("sync-bn")) options.image.sync_bn = !published && options.batch.local_steps == 1;
  if (!options.image.sync_bn || !given("sync-bn")) return;
  expect_images(options.data.task, "sync-bn", true);
  if (options.batch.local_steps > 1)
    fail(ExitCode::usage,
         "--sync-bn and --local-steps {} contradict each other: ranks that step alone normalise by their own "
         "rows",
         options.batch.local_steps);
  if (published)
    fail(ExitCode::usage,
         "--sync-bn and --policy {} contradict each other: as published, ranks normalise by their own rows",
         options.batch.policy);
}

void settle_schedule(TrainOptions& options, const Given& given) {
  ScheduleOptions& schedule = options.schedule;
  if (schedule.scheduler == "PolynomialDecayScheduler") schedule.scheduler = "polynomial";  // HetSeq's name
  if (!given("lr-unit")) {
    const bool by_updates = schedule.scheduler == "cosine" && !given("lr-epochs") &&
                            (given("total-num-update") || (options.max_epoch == 0 && options.max_update > 0));
    schedule.unit = by_updates ? "update" : "epoch";
  }
  if (schedule.scheduler != "cosine") return;
  const bool by_updates = schedule.unit == "update";
  if (!by_updates && !given("lr-epochs")) schedule.epochs = options.max_epoch;
  if (by_updates && !given("total-num-update") && options.max_update > 0)
    schedule.total_num_update = options.max_update;
  if (by_updates ? given("total-num-update") || options.max_update > 0 : schedule.epochs != 0) return;
  fail(ExitCode::usage, "--lr-scheduler cosine by {}s does not know where it ends; expected {}",
       schedule.unit, by_updates ? "--total-num-update or --max-update" : "--lr-epochs or --max-epoch");
}

const OptionUsers schedule_options[] = {
    {"power", {"polynomial"}},       {"total-num-update", {"polynomial", "cosine"}},
    {"lr-unit", {"cosine", "step"}}, {"end-learning-rate", {"polynomial", "cosine"}},
    {"lr-epochs", {"cosine"}},       {"lr-step-size", {"step"}},
    {"lr-milestones", {"step"}},     {"lr-gamma", {"step"}},
};

}  // namespace

void fill_in(TrainOptions& options, const Given& given) {
  const std::string& task = options.data.task;
  if (!given("optimizer"))
    options.optimizer.name = task == "bert" ? "adam" : task == "mnist" ? "adadelta" : "sgd";
  if (task != "bert" && task != "mnist") follow_cifar_recipe(options, given);
  settle_batch_norm(options, given);
  settle_schedule(options, given);
}

std::string schedulers_of(const std::string& schedule_option) {
  return users_text(schedule_options, schedule_option);
}

bool schedule_uses(const ScheduleOptions& schedule, const std::string& option) {
  if (!is_used(schedule_options, option, schedule.scheduler)) return false;
  if (schedule.scheduler != "cosine") return true;
  if (option == "lr-epochs") return schedule.unit == "epoch";
  return option != "total-num-update" || schedule.unit == "update";
}

}  // namespace motley::train
