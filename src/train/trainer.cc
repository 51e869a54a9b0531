#include "train/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "checkpoint/directory.h"
#include "comm/agree.h"
#include "comm/liveness.h"
#include "core/clock.h"
#include "core/files.h"
#include "core/log.h"
#include "core/quantity.h"
#include "report/terminal.h"
#include "train/reducers.h"
#include "train/schedule.h"

namespace motley::train {
namespace {

constexpr const char* skipped_name = "skipped.jsonl";

std::int64_t largest_global_batch(const BatchOptions& options, int ranks) {
  std::int64_t largest = 0;
  for (int epoch = 1; epoch <= static_cast<int>(options.update_freq.size()); ++epoch) {
    largest = std::max(largest, global_batch(options, epoch, ranks));
  }
  return largest;
}

StopTimes stop_times(const GuardOptions& options) {
  return {.stop_after_s = parse_duration(options.stop_after).value_or(0),
          .checkpoint_deadline_s = parse_duration(options.checkpoint_deadline).value_or(0),
          .job_ends_s = seconds_to_job_end()};
}

}  // namespace

Trainer::Trainer(const TrainOptions& options, const comm::Communicator& world, TaskMaker maker)
    : options_(options),
      world_(world),
      make_task_(std::move(maker)),
      bad_steps_(options.guard.max_skips),
      stop_clock_(stop_times(options.guard)) {}

Trainer::~Trainer() = default;

void Trainer::prepare() {
  comm::agree(world_, "making the model", [&] {
    task_ = make_task_(options_);
    judge_ = std::make_unique<Judge>(options_, world_, *task_);
  });
  meter_ = StepMeter(task_->sums());
  open_train_data();
  judge_->open();
  build();
  start_or_continue();
  open_outputs();
}

void Trainer::open_train_data() {
  const DataOptions& data = options_.data;
  train_data_ = std::move(*open_subset(*task_, data, data.train_subset, true, world_, {true, options_.seed}));
}

std::int64_t Trainer::largest_batch() const {
  return std::min(largest_global_batch(options_.batch, world_.size()),
                  static_cast<std::int64_t>(train_data_.source.rows));
}

// Device, model, optimizer and what a step needs besides.
void Trainer::build() {
  backend_ =
      make_backend({options_.device, options_.threads, options_.deterministic, options_.cuda_graph}, world_);
  devices_text_ = devices_text(*backend_, world_);
  settle_cuda_graph();
  memory_limits_ = begin_with_memory_limit(options_.memory_limit, world_, *backend_);
  memory_limit_ = memory_limits_.bytes(1);
  const bool has_gpu = backend_->device().kind == "cuda";
  const comm::ProcessorShare share = comm::processor_share(world_, has_gpu);
  double crowding[] = {comm::crowding(share, has_gpu ? 1 : backend_->device().threads)};
  world_.all_reduce_max(crowding, "how crowded the hosts are");
  crowded_ = crowding[0] > 1;
  check_precision(options_.model.precision, *backend_, world_);
  warn_of_slow_precision();
  if (options_.model.precision == "fp16") loss_scale_ = LossScale(options_.model.loss_scale);
  whole_shares_ = normalizes_global_batches(options_, *task_);
  std::int64_t largest_share = largest_batch();
  if (!whole_shares_ || options_.batch.max_sentences_given)
    largest_share = std::min(largest_share, options_.batch.max_sentences);
  comm::agree(world_, "taking memory for the model", [&] {
    task_->allocate_parameters(*backend_, true);
    optimizer_ = make_optimizer(options_.optimizer, *backend_, task_->parameters());
  });
  // Sums first: the micro-batches take what memory is left.
  const std::size_t elements = task_->parameters().arena_elements();
  auto reducer =
      make_reducer(world_, *backend_, elements, gradient_bucket_bytes(options_.bucket_cap_mb, elements),
                   options_.allreduce_dtype);
  std::unique_ptr<comm::SmallSum> statistics;
  if (whole_shares_) statistics = make_small_sum(world_, *backend_, most_statistics(task_->parameters()));
  comm::agree(world_, "taking memory for the model", [&] {
    micro_batches_ = std::make_unique<MicroBatches>(*backend_, *task_, largest_share, true);
    if (whole_shares_ && micro_batches_->largest() < largest_share) try_share();
  });
  saver_ = std::make_unique<Saver>(options_, world_, *backend_, *task_, optimizer_.get());
  stepper_ = std::make_unique<Stepper>(options_, world_, *backend_, *task_, *optimizer_, *micro_batches_,
                                       loss_scale_, bad_steps_, std::move(reducer), std::move(statistics));
  if (options_.guard.verify_every > 0) drift_ = std::make_unique<DriftCheck>(*backend_, world_);
}

// Where no rank has a GPU the option plays no part, and config.ini leaves it out.
void Trainer::settle_cuda_graph() {
  double gpus[] = {backend_->device().kind == "cuda" ? 1.0 : 0.0};
  world_.all_reduce_max(gpus, "which ranks have GPUs");
  if (gpus[0] > 0) return;
  if (options_.cuda_graph && options_.cuda_graph_given && world_.rank() == 0)
    log::warn("--cuda-graph plays no part: it is for GPUs, and no rank of this run has one");
  for (auto& [name, value] : options_.as_used)
    if (name == "cuda-graph") value.clear();
}

void Trainer::warn_of_slow_precision() const {
  if (options_.model.precision != "bf16") return;
  double ranks[] = {backend_->device().bf16_native ? 0.0 : 1.0};
  world_.all_reduce_sum(ranks, "which ranks multiply bfloat16");
  if (world_.rank() != 0 || ranks[0] == 0) return;
  log::warn("--precision bf16 saves memory on {} of {} rank(s), but no time: they multiply float32 faster",
            ranks[0], world_.size());
}

// A share that is run whole cannot be run again in halves: where memory limits it, a pass of rows that are all zero finds
// out what fits. Gradients, sums and running statistics are set before they are used.
void Trainer::try_share() {
  constexpr std::size_t left_for_other_things = 256 << 10;
  const Buffer spare(*backend_, left_for_other_things);
  const Buffer sums(*backend_, static_cast<std::size_t>(task_->sums()) * sizeof(double));
  backend_->fill_zero(task_->parameters().stored());
  micro_batches_->settle_whole([&](std::int64_t samples) {
    io::Window rows;
    for (const io::Field& field : train_data_.source.fields)
      rows.fields.emplace_back(static_cast<std::size_t>(samples) * field.row_bytes());
    NoStatistics statistics;
    const Pass pass{.backend = *backend_,
                    .training = true,
                    .seed = options_.seed,
                    .step = 1,
                    .statistics = &statistics,
                    .batch = NoStatistics::batch(samples)};
    task_->train(pass, {train_data_.source, rows, 0, samples}, {},
                 sums.view(DType::f64, Shape{task_->sums()}), {});
    backend_->synchronize();
  });
  task_->reserve(*backend_, 1, true);  // more when a share needs it
}

void Trainer::start_or_continue() {
  planner_options_.samples = train_data_.source.rows;
  planner_options_.seed = options_.seed;
  planner_options_.shards = shard_sizes(train_data_.source);
  planner_options_.pool_rows = static_cast<std::uint64_t>(options_.data.shuffle_pool);
  planner_options_.global_batch = [batch = options_.batch, ranks = world_.size()](int epoch) {
    return global_batch(batch, epoch, ranks);
  };
  planner_options_.window = options_.batch.window;
  planner_options_.ramp = balance::parse_policy(options_.batch.policy) == balance::PolicyKind::automatic;
  planner_options_.unshuffled_epochs = static_cast<int>(options_.data.curriculum);
  planner_options_.max_epoch = static_cast<int>(options_.max_epoch);
  planner_options_.max_step = options_.max_update;
  const auto restored = saver_->restore(planner_options_, judge_->best());
  if (restored) position_ = restored->position;
  balance_ =
      std::make_unique<LoadBalance>(options_.batch, world_, planner_options_.global_batch, position_.epoch);
  saver_->keep(*balance_, loss_scale_, bad_steps_);
  if (whole_shares_) limit_shares();
  if (restored) {
    judge_->restore(restored->best);
    started_step_ = reported_step_ = verified_step_ = position_.step;
    saved_.step = position_.step;
    saved_.why = restored->why;
    validation_due_ = restored->why.validation_due;
    saved_.best_step = restored->best.step;
    log::info("continuing from {} (epoch {}, step {})", restored->path.string(), position_.epoch,
              position_.step);
    if (!options_.save.init_from.empty()) log::info("--init-from plays no part: the run has begun already");
  } else {
    task_->parameters().initialize(options_.seed);
    if (!options_.save.init_from.empty()) saver_->begin_from_source();
  }
}

// Where shares are run whole: no rank gets more than it holds.
void Trainer::limit_shares() {
  const double largest[] = {static_cast<double>(micro_batches_->largest())};
  std::vector<std::int64_t> caps;
  for (const double cap : world_.all_gather(largest, "how many samples each rank holds"))
    caps.push_back(static_cast<std::int64_t>(cap));
  const std::vector<double> weights = share_weights(options_.batch, world_.size());
  const bool fixed = balance::parse_policy(options_.batch.policy) == balance::PolicyKind::fixed;
  std::int64_t together = 0, least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t r = 0; r < caps.size(); ++r) {
    if (fixed && weights[r] == 0) continue;
    together += caps[r];
    least = std::min(least, caps[r]);
  }
  const std::int64_t batch = largest_batch();
  if (together >= batch) return balance_->limit(caps, batch);
  const bool as_told = options_.batch.max_sentences_given && least == options_.batch.max_sentences;
  throw AgreedError(as_told ? ExitCode::usage : ExitCode::device,
                    fmt::format("batch norm takes a rank's share of a global batch at once, and {} {} of its "
                                "{} samples fit ({} by rank); "
                                "expected {}a --global-batch of at most {}, or --no-sync-bn, which "
                                "normalises micro-batches by themselves",
                                as_told ? fmt::format("with --max-sentences {} only", least)
                                        : "in the memory of the ranks only",
                                together, batch, fmt::join(caps, ", "),
                                as_told ? "a larger --max-sentences, " : "more memory or ranks, ", together));
}

void Trainer::open_outputs() {
  comm::agree_on_root(world_, "opening the output", [&] {
    const std::filesystem::path directory = options_.save.save_dir;
    if (options_.save.no_save && !checkpoint::list(directory).empty()) {
      fail(ExitCode::usage,
           "--no-save, but {} holds the checkpoints of a run, whose metrics.jsonl would be overwritten; "
           "expected "
           "another --save-dir",
           directory.string());
    }
    make_directories(directory, ExitCode::checkpoint);
    checkpoint::remove_leftovers(directory);
    if (!options_.save.no_save) {
      saver_->set_bad_aside();
      checkpoint::supersede_after(directory, position_.step);
      saver_->repair_best(judge_->best());
    }
    metrics_file_ = std::make_unique<report::MetricsFile>(directory / "metrics.jsonl", position_.step);
    if (std::filesystem::exists(directory / skipped_name)) open_skipped_file();
    std::string config =
        "# The options of this run, as they were used. motley train --config FILE reads it back.\n";
    for (const auto& [name, value] : options_.as_used) {
      // A # starts a comment wherever it stands, so a value that has one cannot be read back.
      const bool readable = !value.empty() && value.find('#') == std::string::npos;
      config += fmt::format("{}{} = {}\n", readable ? "" : "# ", name, value);
    }
    write_file_atomically(directory / "config.ini", config, ExitCode::checkpoint);
    report::RunLength length;
    length.total_epochs = static_cast<int>(options_.max_epoch);
    length.total_steps = total_steps(planner_options_);
    const bool terminal = report::stdout_is_terminal() && !options_.report.no_progress_bar;
    progress_ = std::make_unique<report::Progress>(report::parse_log_format(options_.report.log_format),
                                                   terminal, length);
  });
  log::info("task {}: {} parameters, {} training samples, {}, global batch {}", task_->name(),
            task_->parameters().count(), train_data_.source.rows, devices_text_,
            planner_options_.global_batch(position_.epoch));
}

void Trainer::run() {
  if (judge_ == nullptr) prepare();
  comm::note_step(position_.step);
  comm::note_phase("planning");
  heartbeat_.reset();
  heartbeat_ = std::make_unique<comm::Heartbeat>(world_, backend_->device().name);
  Planner planner(world_, planner_options_, position_);
  if (validation_due_ && !begin_with_validation()) return finish(false);
  bool complete = true;
  step_started_s_ = now_s();
  const ShareRule shares = balance_->rule();
  std::optional<WindowPlan> window = planner.next(shares);
  planner.take_drawing_s();  // before the first step nobody waits
  if (!window) log::info("nothing is left to do: the run is complete at step {}", position_.step);
  if (window) train_data_.reader->request(window->rows, slot_runs(*window));
  while (window && !stop_) {
    const double started_s = now_s();
    std::optional<WindowPlan> ahead = planner.next(shares);
    double waited_s = now_s() - started_s - planner.take_drawing_s();
    if (ahead) train_data_.reader->request(ahead->rows, slot_runs(*ahead));
    io::Window rows;
    double read_s = 0;
    const double asked_s = now_s();
    comm::note_phase("reading the training data");
    comm::agree(world_, "reading the training data", [&] {
      rows = train_data_.reader->take(world_.timeout_s());
      read_s = now_s() - asked_s;
    });
    waited_s += now_s() - asked_s - read_s;
    waited_s += stepper_->begin_window(*window, train_data_.source, rows);
    run_window(*window, read_s, waited_s);
    complete = !ahead && position_.step == window->steps.back().step;
    window = std::move(ahead);
  }
  finish(complete);
}

void Trainer::run_window(const WindowPlan& window, double read_s, double waited_s) {
  std::span<const std::uint64_t> samples(window.rows);
  for (const StepPlan& step : window.steps) {
    run_step(step, samples.first(static_cast<std::size_t>(step.n)), read_s, waited_s,
             &step == &window.steps.back());
    samples = samples.subspan(static_cast<std::size_t>(step.n));
    read_s = waited_s = 0;
    if (stop_) return;
  }
}

void Trainer::run_step(const StepPlan& plan, std::span<const std::uint64_t> samples, double read_s,
                       double waited_s, bool window_ends) {
  const double lr = learning_rate(options_.schedule, plan.step, plan.epoch);
  if (plan.step > options_.schedule.warmup_updates + 1 && lr <= options_.schedule.min_lr) {
    log::info("the learning rate has reached --min-lr at step {}", plan.step);
    stop_ = true;
    return;
  }
  const auto limit = memory_limits_.bytes(plan.step);
  if (limit && limit != memory_limit_) micro_batches_->set_limit(*limit);
  memory_limit_ = limit;
  comm::note_step(plan.step);
  comm::note_phase("computing");
  StepOutcome outcome = stepper_->run(lr, wants_to_stop());
  asked_to_stop_ = asked_to_stop_ || outcome.stop;
  grad_norm_ = outcome.grad_norm;
  if (!outcome.finite) note_bad_step(plan, samples, outcome);
  // The loss of an interval is that of its steps that have one.
  if (!stepper_->local() && std::isfinite(task_->metrics(outcome.sums).loss)) meter_.add_sums(outcome.sums);
  position_ = {plan.epoch, position_.epoch == plan.epoch ? position_.samples + plan.batch : plan.batch,
               plan.step};
  if (observer_) {
    observer_({plan.step, task_->metrics(outcome.sums).loss, outcome.divisor, grad_norm_,
               task_->parameters().gradients(), plan.n, outcome.times.region.micro_batches_s.size()});
  }
  const bool round_ends =
      plan.step % options_.batch.local_steps == 0 || plan.ends_epoch || due_after(plan).any();
  outcome.times.wait_s += waited_s;
  balance_->add(plan.n, outcome.times.region.compute_s);
  if (stepper_->local() && round_ends) bring_together();
  stop_clock_.stepped_in(now_s() - step_started_s_);
  meter_.add(plan.n, outcome.times, read_s, now_s() - step_started_s_, plan.batch);
  step_started_s_ = now_s();
  after_step(plan, window_ends);
  stop_ = stop_ || asked_to_stop_;
  if (window_ends) {
    const double started_s = now_s();
    balance_->end_window();
    if (whole_shares_ && !options_.memory_limit.empty()) limit_shares();
    meter_.add_wait(now_s() - started_s);
  }
}

// The end of a round of local steps: from here on all ranks have the same parameters again.
void Trainer::bring_together() {
  const StepOutcome together = stepper_->average(wants_to_stop());
  asked_to_stop_ = asked_to_stop_ || together.stop;
  meter_.add_wait(together.times.wait_s);
  meter_.add_sums(together.sums);
  if (together.finite) return;
  BadStep own = std::exchange(local_bad_steps_, {});
  own.step = position_.step;
  own.epoch = position_.epoch;
  tell_of_bad_step(
      own, together,
      fmt::format("in the local steps up to step {} there were losses or gradients", position_.step));
}

void Trainer::note_bad_step(const StepPlan& plan, std::span<const std::uint64_t> samples,
                            const StepOutcome& outcome) {
  if (stepper_->local()) {  // the others learn of it at the next average
    local_bad_steps_.own_finite = false;
    local_bad_steps_.samples.insert(local_bad_steps_.samples.end(), samples.begin(), samples.end());
    return;
  }
  const double loss = task_->metrics(outcome.sums).loss;
  if (loss_scale_.moves() && !outcome.hopeless) {
    log::info("step {}: the gradient was not finite, so it was skipped; the loss scale is now {:g}",
              plan.step, loss_scale_.factor());
    return;
  }
  tell_of_bad_step({plan.step, plan.epoch, outcome.own_loss_finite, {samples.begin(), samples.end()}},
                   outcome,
                   fmt::format("step {} has a loss ({}) or a norm of its gradient ({})", plan.step, loss,
                               outcome.grad_norm));
}

// Says on rank 0 what was skipped, and ends the run when that happened too often.
void Trainer::tell_of_bad_step(const BadStep& own, const StepOutcome& outcome, const std::string& what) {
  const std::vector<BadStep> ranks = gather(own, world_);
  if (world_.rank() == 0) {
    if (!skipped_file_) open_skipped_file();
    skipped_file_->add_line(to_json_line(ranks, task_->metrics(outcome.sums).loss, outcome.grad_norm));
    log::warn("{} not finite, so the parameters were left as they were ({} in a row); {}", what,
              std::max<std::int64_t>(bad_steps_.in_a_row(), 1), suspects_text(ranks));
  }
  if (!outcome.hopeless) return;
  flush_interval();
  throw AgreedError(
      ExitCode::internal,
      loss_scale_.moves()
          ? fmt::format("step {}: the loss or the gradient is not a finite number with any loss scale; "
                        "--precision bf16 or fp32, or a lower --lr or --clip-norm may help",
                        own.step)
          : fmt::format("step {}: {} step(s) in a row (--max-skips) had a loss or a gradient that is not a "
                        "finite number; {} lists their samples; a lower --lr or --clip-norm may help",
                        own.step, bad_steps_.in_a_row(),
                        (std::filesystem::path(options_.save.save_dir) / skipped_name).string()));
}

void Trainer::open_skipped_file() {
  const std::filesystem::path directory = options_.save.save_dir;
  skipped_file_ = std::make_unique<report::MetricsFile>(directory / skipped_name, started_step_);
}

// Where the ranks are together.
void Trainer::verify_parameters() {
  if (!drift_ || stepper_->apart() || verified_step_ == position_.step) return;
  verified_step_ = position_.step;
  const double started_s = now_s();
  drift_->verify(task_->parameters().values(), position_.step);
  meter_.add_wait(now_s() - started_s);
}

Trainer::Due Trainer::due_after(const StepPlan& plan) const {
  const SaveOptions& saving = options_.save;
  Due due;
  due.interval = saving.save_interval_updates > 0 && plan.step % saving.save_interval_updates == 0;
  due.epoch_save = plan.ends_epoch && saving.save_interval > 0 && plan.epoch % saving.save_interval == 0;
  due.validation = plan.ends_epoch && options_.data.validate_interval > 0 &&
                   plan.epoch % options_.data.validate_interval == 0;
  return due;
}

void Trainer::after_step(const StepPlan& plan, bool window_ends) {
  // A checkpoint knows of the steps before it only what has been written by then.
  report(window_ends || due_after(plan).any(), plan, learning_rate(options_.schedule, plan.step, plan.epoch));
  const double reported_s = now_s();
  const std::int64_t verify_every = options_.guard.verify_every;
  if (verify_every > 0 && plan.step / verify_every != verified_step_ / verify_every) verify_parameters();
  if (bad_steps_.in_a_row() > 0) {
    // The parameters may be what is bad, and the checkpoints before them good.
    if (due_after(plan).any())
      log::warn("step {}: nothing is judged or saved while steps are being skipped", plan.step);
    return;
  }
  const auto [interval, epoch_save, validation_due] = due_after(plan);
  if (interval || validation_due) {
    try {
      validate();
    } catch (const AgreedError&) {
      // The steps of this epoch are worth keeping, whatever is wrong with the data.
      save({epoch_save, interval});
      throw;
    }
  }
  const bool new_best = judge_->best().step == position_.step;
  if (interval || epoch_save || new_best || validation_due_) save({epoch_save, interval});
  // What a step takes includes the reports between steps, but not validation and checkpoints.
  if (interval || validation_due || epoch_save || new_best) step_started_s_ += now_s() - reported_s;
}

void Trainer::report(bool collect, const StepPlan& plan, double lr) {
  // Between the ends of rounds of local steps nothing is known of the other ranks.
  if (stepper_->apart()) return;
  const std::int64_t interval = options_.report.log_interval;
  const bool line_due = plan.step / interval != reported_step_ / interval;
  if (!line_due && !collect) return;
  if (line_due) reported_step_ = plan.step;
  const double started_s = now_s();
  report::StepRecord record = meter_.collect(world_, *task_);
  meter_.add_wait(now_s() - started_s);
  record.step = plan.step;
  record.epoch = plan.epoch;
  record.lr = lr;
  record.grad_norm = grad_norm_;
  if (loss_scale_.active()) record.loss_scale = loss_scale_.factor();
  if (world_.rank() != 0) return;
  summary_.add(record);
  append(interval_, record, *task_);
  if (progress_->redraws()) progress_->step(record);
  if (line_due) flush_interval();
}

// Writes the line of metrics.jsonl for the steps since the last one. Also before each checkpoint: a run that
// continues from it knows nothing of the steps before.
void Trainer::flush_interval() {
  if (world_.rank() != 0 || interval_.samples == 0) return;
  if (!progress_->redraws()) progress_->step(interval_);
  metrics_file_->add(interval_);
  interval_ = {};
}

// Where each rank has running statistics of its own: before they are used or saved.
void Trainer::combine_statistics() {
  meter_.add_wait(stepper_->combine_statistics());
}

void Trainer::validate() {
  if (!judge_->has_data() || validated_step_ == position_.step) return;
  validation_due_ = true;
  if (asked_to_stop_) return;  // the continuation does it
  combine_statistics();
  comm::note_phase("judging");
  const EvaluateOptions how{.global_batch = planner_options_.global_batch(position_.epoch),
                            .window = options_.batch.window,
                            .weights = balance_->weights(),
                            .step = position_.step,
                            .micro_batches = micro_batches_.get(),
                            .wants_to_stop = [this] { return wants_to_stop(); }};
  const auto records = judge_->judge(*backend_, position_, how);
  if (!records) {
    asked_to_stop_ = true;
    return;
  }
  validated_step_ = position_.step;
  validation_due_ = false;
  if (world_.rank() != 0) return;
  flush_interval();
  for (const report::ValidRecord& record : *records) {
    progress_->valid(record);
    metrics_file_->add(record);
  }
}

void Trainer::save(const Saver::Reasons& reasons) {
  if (options_.save.no_save) return;
  complete_save(true);
  combine_statistics();
  verify_parameters();
  flush_interval();
  Saver::Reasons why = reasons;
  why.validation_due = validation_due_;
  saver_->begin(position_, judge_->best(), planner_options_, why);
  saving_ = SavedStep{position_.step, judge_->best().step, why};
}

// Waits for the checkpoint that is being written, if there is one.
void Trainer::complete_save(bool next_is_due) {
  if (!saving_) return;
  comm::note_phase("writing a checkpoint");
  const Saver::Written written = saver_->finish();
  constexpr double worth_saying_s = 0.5;
  if (next_is_due && written.waited_s > worth_saying_s)
    log::info("step {}: the checkpoint of step {} was still being written: waited {} for it", position_.step,
              saving_->step, seconds_text(written.waited_s));
  save_failure_ = written.failure;
  if (save_failure_.empty()) {
    saved_ = *saving_;
    stop_clock_.saved_in(written.seconds);
    warn_of_slow_checkpoints(saving_->step);
  }
  saving_.reset();
}

void Trainer::finish(bool complete) {
  const bool trained = position_.step > started_step_;
  if (stepper_->apart()) bring_together();
  if (!meter_.empty()) {
    StepPlan last;
    last.step = position_.step;
    last.epoch = position_.epoch;
    report(true, last, learning_rate(options_.schedule, last.step, last.epoch));
  }
  flush_interval();
  if (trained) combine_statistics();
  // A run that stops before its end judges nothing that a run to the end would not have.
  if (trained && options_.data.validate_interval > 0 && (complete || !asked_to_stop_)) validate();
  complete_save();
  const bool saved_here = saved_.step == position_.step;
  const bool unsaved = trained && !options_.save.no_save &&
                       (!saved_here || saved_.best_step != judge_->best().step ||
                        saved_.why.validation_due != validation_due_);
  if (unsaved) save(saved_here ? saved_.why : Saver::Reasons());
  complete_save();
  progress_.reset();
  if (world_.rank() == 0 && summary_.samples_per_s() > 0)
    log::info("{}", summary_.text(crowded_, balance_->policy() == balance::PolicyKind::automatic));
  if (unsaved && saved_.step != position_.step) {
    throw AgreedError(ExitCode::checkpoint,
                      fmt::format("the last checkpoint (step {}) could not be written to {}: {}",
                                  position_.step, options_.save.save_dir, save_failure_));
  }
  if (asked_to_stop_ && (!complete || validation_due_)) end_stopped();
}

// Of this rank; time is rank 0's.
bool Trainer::wants_to_stop() {
  return signals_() != 0 || (world_.rank() == 0 && stop_clock_.time_is_up(now_s() - started_s_));
}

void Trainer::warn_of_slow_checkpoints(std::int64_t step) {
  if (world_.rank() != 0 || warned_of_slow_checkpoints_ || !stop_clock_.is_too_slow()) return;
  warned_of_slow_checkpoints_ = true;
  log::warn(
      "the checkpoint of step {} took {}, so that one that begins at a signal would not be done within "
      "--checkpoint-deadline {}: {}",
      step, seconds_text(stop_clock_.save_s()), options_.guard.checkpoint_deadline,
      stop_clock_.ends_s() > 0 ? "the last one before the end is taken as much earlier"
                               : "expected --stop-after, or --save-interval-updates that loses little");
}

// Collective.
std::string Trainer::why_stopped() const {
  const double mine[] = {static_cast<double>(signals_())};
  const std::vector<double> signals = world_.all_gather(mine, "who wanted to stop");
  for (std::size_t rank = 0; rank < signals.size(); ++rank)
    if (signals[rank] != 0)
      return fmt::format("{} on rank {}", signal_name(static_cast<int>(signals[rank])), rank);
  return "the time being up";
}

void Trainer::end_stopped() {
  const std::string why = why_stopped();
  throw AgreedError(
      ExitCode::stopped,
      options_.save.no_save
          ? fmt::format("stopped after step {}, {}; nothing was saved (--no-save)", position_.step, why)
          : fmt::format("stopped after step {}, {}; the checkpoint is in {}: the same command goes on",
                        position_.step, why, options_.save.save_dir));
}

// The validation that a run which was stopped still owed. False: this one was stopped, too.
bool Trainer::begin_with_validation() {
  validate();
  if (asked_to_stop_) return false;
  if (judge_->best().step == position_.step) save(saved_.why);
  return true;
}

}  // namespace motley::train
