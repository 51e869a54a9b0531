#include "cli/train.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>

#include "balance/balancer.h"
#include "cli/command.h"
#include "cli/ending.h"
#include "cli/option_set.h"
#include "cli/shared_options.h"
#include "comm/agree.h"
#include "core/stop_signal.h"
#include "train/trainer.h"

namespace motley::cli {
namespace {

void declare(OptionSet& set, train::TrainOptions& options, SharedOptions& shared) {
  set.group("data");
  add_data_options(set, options.data);
  set.add("train-subset", &options.data.train_subset,
          "train on DIR/<this>.h5; for BERT also on the shards in DIR/<this>");
  set.add("valid-subset", &options.data.valid_subsets,
          "judge on DIR/<this>.h5, several with commas between them");
  set.add("validate-interval", &options.data.validate_interval, "judge every this many epochs; 0: never");
  set.add("curriculum", &options.data.curriculum, "do not shuffle the first this many epochs");
  set.add("shuffle-pool", &options.data.shuffle_pool,
          "samples of shards that are shuffled together; packed files are shuffled as a whole");
  set.group("network (task bert)");
  add_model_options(set, options.model);
  set.add_switch("recompute", &options.model.recompute,
                 "keep only the inputs of layers for the backward pass: less memory, a third more work");
  set.group("network and images (other tasks)");
  add_image_options(set, options.image);
  set.add("crop-padding", &options.image.crop_padding,
          "crop training images at random after padding them by this many black pixels; 0: no; by itself 4 "
          "for cifar10 and "
          "cifar100");
  set.add_switch("flip", &options.image.flip,
                 "mirror training images at random; by itself for cifar10 and cifar100");
  set.add_switch(
      "sync-bn", &options.image.sync_bn,
      "batch norm's statistics are those of the whole global batch, each rank its share at once; "
      "--no-sync-bn: of each micro-batch, as published, and so by itself with --local-steps, dp and edp");
  set.group("batches and shares");
  add_batch_options(set, options.batch, true);
  set.add("update-freq", &options.batch.update_freq,
          "micro-batches per rank and step, one number per epoch; without --global-batch");
  set.add("local-steps", &options.batch.local_steps,
          "ranks step alone and average their parameters, weighted by shares, every this many steps; 1: "
          "together");
  set.group("length of the run");
  set.add("max-epoch", &options.max_epoch, "stop after this epoch; 0: no limit");
  set.add("max-update", &options.max_update, "stop after this step; 0: no limit");
  set.add("min-lr", &options.schedule.min_lr,
          "stop when the learning rate has fallen to this; negative: never");
  set.group("optimizer");
  train::OptimizerOptions& optimizer = options.optimizer;
  optimizer.name.clear();  // the default follows from the task
  set.add("optimizer", &optimizer.name,
          "sgd, adamw or adadelta, as PyTorch defines them, HetSeq's adam, or lamb; by itself adam for bert, "
          "adadelta for "
          "mnist, sgd for the others");
  set.add("momentum", &optimizer.momentum, "sgd");
  set.add("dampening", &optimizer.dampening, "sgd");
  set.add_switch("nesterov", &optimizer.nesterov, "sgd; by itself for cifar10, cifar100 and images");
  set.add("adam-betas", &shared.adam_betas, "adam, adamw, lamb");
  set.add("adam-eps", &optimizer.adam_eps, "adam, adamw, lamb");
  set.add("adadelta-rho", &optimizer.adadelta_rho, "adadelta");
  set.add("adadelta-eps", &optimizer.adadelta_eps, "adadelta");
  set.add("weight-decay", &optimizer.weight_decay,
          "added to the gradient; adam: taken off all weights; adamw, lamb: the same, of bert not off biases "
          "and norms; by itself 5e-4 for sgd on cifar10, cifar100 and images");
  set.add("clip-norm", &optimizer.clip_norm,
          "largest norm of the gradient; 0: no clipping, and so by itself for cifar10, cifar100 and images");
  set.group("learning rate");
  train::ScheduleOptions& schedule = options.schedule;
  set.add("lr", &schedule.lr,
          "one rate per epoch, the last for all further ones; by itself 0.1 for sgd on cifar10, cifar100 and "
          "images");
  set.add("lr-scheduler", &schedule.scheduler,
          "polynomial (HetSeq's PolynomialDecayScheduler), cosine or step, as PyTorch's; by itself cosine "
          "for cifar10, cifar100 "
          "and images");
  set.add("warmup-updates", &schedule.warmup_updates, "steps of linear warm-up");
  set.add("total-num-update", &schedule.total_num_update,
          "step at which the decay ends: polynomial, and cosine by updates, there --max-update by itself");
  set.add("end-learning-rate", &schedule.end_learning_rate,
          "rate at which the decay ends: polynomial, cosine");
  set.add("power", &schedule.power, "of the polynomial decay");
  set.add("lr-unit", &schedule.unit,
          "cosine, step: the rate changes with every epoch or with every update; by itself update for a "
          "cosine whose end is "
          "given in updates");
  set.add("lr-epochs", &schedule.epochs, "cosine: epochs that it takes; by itself --max-epoch");
  set.add("lr-step-size", &schedule.step_size, "step: epochs or updates between two falls of the rate");
  set.add("lr-milestones", &schedule.milestones, "step: or the epochs or updates after which it falls");
  set.add("lr-gamma", &schedule.gamma, "step: what the rate is multiplied by then");
  set.group("checkpoints");
  train::SaveOptions& save = options.save;
  set.add("save-dir", &save.save_dir, "directory for checkpoints, metrics.jsonl and config.ini");
  set.add("restore-file", &save.restore_file,
          "checkpoint to continue from; without it the newest good one of --save-dir");
  set.add(
      "init-from", &save.init_from,
      "begin a new run with the parameters of this checkpoint, run or Hugging Face directory, step 0 and a "
      "fresh optimizer");
  set.add_switch("restart-from-scratch", &save.restart_from_scratch,
                 "begin anew where --save-dir has checkpoints and none of them is good");
  set.add_switch("allow-changed-options", &save.allow_changed_options,
                 "continue a run with options, data or a network that make it another one");
  set.add("save-interval", &save.save_interval, "save every this many epochs; 0: only at the end");
  set.add("save-interval-updates", &save.save_interval_updates,
          "save and judge every this many steps; 0: never");
  set.add("keep-interval-updates", &save.keep_interval_updates,
          "keep the last this many of --save-interval-updates; -1 or 0: all");
  set.add("keep-last-epochs", &save.keep_last_epochs,
          "keep the last this many of --save-interval; -1 or 0: all");
  set.add_switch("no-save", &save.no_save, "write no checkpoints");
  set.add("best-checkpoint-metric", &save.best_metric,
          "metric of the first --valid-subset that decides what is best");
  set.add_switch("maximize-best-checkpoint-metric", &save.maximize_best_metric, "the largest is the best");
  set.group("when something goes wrong");
  set.add(
      "max-skips", &options.guard.max_skips,
      "a step whose loss or gradient is not finite is skipped by all ranks; this many in a row end the run");
  set.add("verify-every", &options.guard.verify_every,
          "compare the parameters of all ranks every this many steps, and before each checkpoint; 0: never");
  set.add(
      "stop-after", &options.guard.stop_after,
      "save, stop and exit with 75 after so long, such as 11h50m; Slurm's end of the job counts by itself");
  set.add(
      "checkpoint-deadline", &options.guard.checkpoint_deadline,
      "how long the site leaves from a signal to the end: a run whose end is known stops as much earlier");
  set.group("what is shown");
  set.add("log-interval", &options.report.log_interval, "steps per line of metrics.jsonl and of the log");
  set.add("log-format", &options.report.log_format, "none, simple or json");
  set.add_switch("no-progress-bar", &options.report.no_progress_bar, "plain lines, also on a terminal");
  set.group("ranks and devices");
  add_device_options(set, shared);
  set.add_switch(
      "cuda-graph", &options.cuda_graph,
      "GPUs run the passes of micro-batches as CUDA graphs, with the same results; --no-cuda-graph: "
      "kernel by kernel");
  set.add("loss-scale", &options.model.loss_scale,
          "fp16: factor of the loss while its gradient is formed; 0: by itself, as PyTorch's GradScaler");
  set.add("bucket-cap-mb", &options.bucket_cap_mb,
          "largest bucket in which gradients are summed over ranks; small models use smaller ones");
  set.add(
      "allreduce-dtype", &options.allreduce_dtype,
      "fp32, or bf16: gradients are rounded to bfloat16 while they are summed over ranks, half the bytes");
  set.add("seed", &options.seed, "of everything random");
  add_hetseq_options(set);
}

// Options of the optimizer that were given though another was chosen.
void check_optimizer_options(const OptionSet& set, const train::OptimizerOptions& optimizer) {
  for (const auto& [name, value] : set.as_used()) {
    // A switch may be given to say no; check_options() looks at it.
    if (name != "nesterov" && set.given(name) && !train::optimizer_uses(optimizer.name, name)) {
      fail(ExitCode::usage, "--{} is for --optimizer {}; this is {}", name, train::users_of(name),
           optimizer.name);
    }
  }
}

void check_schedule_options(const OptionSet& set, const train::ScheduleOptions& schedule) {
  for (const auto& [name, value] : set.as_used()) {
    if (!set.given(name) || train::schedule_uses(schedule, name)) continue;
    const std::string schedulers = train::schedulers_of(name);
    if (schedulers.find(schedule.scheduler) == std::string::npos)
      fail(ExitCode::usage, "--{} is for --lr-scheduler {}; this is {}", name, schedulers,
           schedule.scheduler);
    fail(ExitCode::usage, "--{} says when a cosine ends by {}s; this one goes by {}s (--lr-unit)", name,
         schedule.unit == "epoch" ? "update" : "epoch", schedule.unit);
  }
}

// Whether an option plays a part in the run. What does not is left out of config.ini: given, it would be
// refused when the file is read back; and validation data that was not asked for by name may be absent.
bool plays_a_part(const std::string& name, const train::TrainOptions& options) {
  constexpr std::array bert_options = {"config-file", "dict",           "recompute",
                                       "masking",     "masked-lm-prob", "max-predictions-per-seq",
                                       "whole-word"};
  const bool of_bert = std::any_of(bert_options.begin(), bert_options.end(),
                                   [&](std::string_view option) { return option == name; });
  if (of_bert && options.data.task != "bert") return false;
  constexpr std::array image_options = {"arch",         "classes", "mean",   "deviation",
                                        "crop-padding", "flip",    "sync-bn"};
  const bool of_images = std::any_of(image_options.begin(), image_options.end(),
                                     [&](std::string_view option) { return option == name; });
  if (of_images && options.data.task == "bert") return false;
  if (name == "sync-bn")
    return options.batch.local_steps == 1 &&
           !balance::is_published(balance::parse_policy(options.batch.policy));
  if (name == "max-sentences") return options.batch.max_sentences_given;
  if (name == "loss-scale") return options.model.precision == "fp16";
  if (name == "update-freq") return options.batch.global_batch == 0;
  if (name == "valid-subset") return options.data.valid_subset_given;
  return masking_uses(options.model, name) && train::optimizer_uses(options.optimizer.name, name) &&
         train::schedule_uses(options.schedule, name);
}

constexpr const char* description =
    "Trains a network on the samples of DIR/train.h5, every rank its share of each global batch. Started "
    "again with the\n"
    "same --save-dir it continues from the newest good checkpoint.";

// mpirun can give ranks command lines of their own. What a rank does about its device is its own affair; any other
// difference would make ranks wait for different things, or learn different things.
void require_same_options(const train::TrainOptions& options, const comm::Communicator& world) {
  constexpr std::array own = {"device", "cpu", "threads", "config"};
  std::string text;
  for (const auto& [name, value] : options.as_used) text += name + "\n" + value + "\n";
  std::istringstream of_root(world.broadcast(text, 0, "the options of rank 0"));
  comm::agree(world, "comparing the options", [&] {
    for (const auto& [name, value] : options.as_used) {
      std::string root_name, root_value;
      std::getline(of_root, root_name);
      std::getline(of_root, root_value);
      const bool free = std::any_of(own.begin(), own.end(), [&](std::string_view o) { return o == name; });
      if (free || root_value == value) continue;
      fail(ExitCode::usage,
           "--{} is \"{}\", but \"{}\" on rank 0: ranks may differ in --device and --threads only", name,
           value, root_value);
    }
  });
}

}  // namespace

std::string train_help() {
  OptionSet set("train");
  train::TrainOptions options;
  SharedOptions shared;
  declare(set, options, shared);
  return set.help(
      "mpirun -n RANKS motley train --task mnist --data DIR --max-epoch N [OPTIONS]\n"
      "       mpirun -n RANKS motley train --task cifar10 --arch resnet18 --data DIR --max-epoch 150 "
      "[OPTIONS]\n"
      "       mpirun -n RANKS motley train --task bert --data DIR --config-file FILE --max-epoch N [OPTIONS]",
      description);
}

train::TrainOptions read_train_options(const std::vector<std::string>& arguments, int rank, int ranks) {
  train::TrainOptions options;
  OptionSet set("train");
  SharedOptions shared;
  declare(set, options, shared);
  set.parse(arguments);
  apply_shared(shared, options);
  if (set.given("update-freq") && options.batch.global_batch > 0) {
    fail(ExitCode::usage, "--global-batch already says how many samples a step has; leave --update-freq out");
  }
  options.batch.max_sentences_given = set.given("max-sentences");
  options.cuda_graph_given = set.given("cuda-graph");
  options.data.valid_subset_given = set.given("valid-subset");
  train::fill_in(options, [&](const std::string& name) { return set.given(name); });
  train::check_options(options, ranks);
  check_optimizer_options(set, options.optimizer);
  check_schedule_options(set, options.schedule);
  check_masking_options(set, options.model);
  options.as_used = set.as_used();
  for (auto& [name, value] : options.as_used) {
    if (!plays_a_part(name, options)) value.clear();
  }
  warn_of_ignored(set, rank);
  return options;
}

void train(const std::vector<std::string>& arguments, const Context& context) {
  train::TrainOptions options;
  comm::agree(context.world, "reading the options",
              [&] { options = read_train_options(arguments, context.world.rank(), context.world.size()); });
  require_same_options(options, context.world);
  context.session.set_timeout(options.timeout_s);
  const comm::Communicator world(context.world.handle(), options.timeout_s);
  note_stop_signals();
  train::Trainer trainer(options, world);
  run_or_abort([&] {
    trainer.prepare();
    trainer.run();
  });
}

}  // namespace motley::cli
