#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "balance/shares.h"
#include "checkpoint/directory.h"
#include "comm/agree.h"
#include "core/files.h"
#include "core/log.h"
#include "report/terminal.h"
#include "train/schedule.h"

namespace motley::train {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// --bucket-cap-mb, but small enough that a small model has several buckets too: with one there is nothing to
// overlap.
std::size_t bucket_bytes(double cap_mb, std::size_t elements) {
  constexpr std::size_t buckets_wanted = 5, smallest_bytes = 256 << 10;
  const std::size_t even = elements * sizeof(float) / buckets_wanted;
  return std::min(static_cast<std::size_t>(cap_mb * (1 << 20)), std::max(even, smallest_bytes));
}

std::int64_t largest_global_batch(const BatchOptions& options, int ranks) {
  std::int64_t largest = 0;
  for (int epoch = 1; epoch <= static_cast<int>(options.update_freq.size()); ++epoch) {
    largest = std::max(largest, global_batch(options, epoch, ranks));
  }
  return largest;
}

}  // namespace

std::vector<double> share_weights(const BatchOptions& options, int ranks) {
  if (options.policy == "static") return balance::parse_weights(options.weights, ranks);
  return std::vector<double>(static_cast<std::size_t>(ranks), 1.0);
}

Trainer::Trainer(const TrainOptions& options, const comm::Communicator& world)
    : options_(options),
      world_(world),
      weights_(share_weights(options.batch, world.size())),
      region_(slow_factor(options.slow, world)) {}

Trainer::~Trainer() = default;

void Trainer::prepare() {
  comm::agree(world_, "making the model", [&] {
    task_ = make_task(options_);
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
  train_data_ = std::move(*open_subset(*task_, data, data.train_subset, true, world_));
}

// Device, model, optimizer and what a step needs besides.
void Trainer::build() {
  backend_ = make_backend(options_.device, options_.threads, world_);
  const comm::ProcessorShare share = comm::processor_share(world_);
  double crowding[] = {static_cast<double>(share.ranks * backend_->device().threads) / share.processors};
  world_.all_reduce_max(crowding, "how crowded the hosts are");
  crowded_ = crowding[0] > 1;
  warn_of_slow_precision();
  const std::int64_t batch = largest_global_batch(options_.batch, world_.size());
  max_micro_batch_ =
      std::min({options_.batch.max_sentences, batch, static_cast<std::int64_t>(train_data_.source.rows)});
  const auto sums = static_cast<std::size_t>(task_->sums());
  comm::agree(world_, "taking memory for the model", [&] {
    task_->allocate(*backend_, max_micro_batch_, true);
    optimizer_ = make_optimizer(options_.optimizer, *backend_, task_->parameters());
    small_ = Buffer(*backend_, (sums + 4) * sizeof(double));
  });
  sums_ = small_.view(DType::f64, Shape{task_->sums()});
  sum_squares_ = small_.view(DType::f64, Shape{1}, sums * sizeof(double));
  count_ = small_.view(DType::f64, Shape{1}, (sums + 1) * sizeof(double));
  scale_ = small_.view(DType::f32, Shape{2}, (sums + 2) * sizeof(double));
  host_sums_.resize(sums);
  saver_ = std::make_unique<Saver>(options_, world_, *backend_, *task_, optimizer_.get());
  const std::size_t elements = task_->parameters().arena_elements();
  reducer_ = std::make_unique<comm::GradientReducer>(world_, elements,
                                                     bucket_bytes(options_.bucket_cap_mb, elements));
}

void Trainer::warn_of_slow_precision() const {
  if (options_.model.precision != "bf16") return;
  double ranks[] = {backend_->device().bf16_native ? 0.0 : 1.0};
  world_.all_reduce_sum(ranks, "which ranks multiply bfloat16");
  if (world_.rank() != 0 || ranks[0] == 0) return;
  log::warn("--precision bf16 saves memory on {} of {} rank(s), but no time: they multiply float32 faster",
            ranks[0], world_.size());
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
  planner_options_.unshuffled_epochs = static_cast<int>(options_.data.curriculum);
  planner_options_.max_epoch = static_cast<int>(options_.max_epoch);
  planner_options_.max_step = options_.max_update;
  if (const auto restored = saver_->restore(planner_options_, judge_->best())) {
    position_ = restored->position;
    judge_->restore(restored->best);
    started_step_ = position_.step;
    saved_.step = position_.step;
    saved_.best_step = restored->best.step;
    log::info("continuing from {} (epoch {}, step {})", restored->path.string(), position_.epoch,
              position_.step);
    if (!options_.save.init_from.empty()) log::info("--init-from plays no part: the run has begun already");
  } else {
    task_->parameters().initialize(options_.seed);
    if (!options_.save.init_from.empty()) saver_->begin_from_source();
  }
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
      checkpoint::supersede_after(directory, position_.step);
      saver_->repair_best(judge_->best());
    }
    metrics_file_ = std::make_unique<report::MetricsFile>(directory / "metrics.jsonl", position_.step);
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
  log::info(
      "task {}: {} parameters, {} training samples, {} rank(s) on {} with {} thread(s) each, global batch {}",
      task_->name(), task_->parameters().count(), train_data_.source.rows, world_.size(),
      backend_->device().name, backend_->device().threads, planner_options_.global_batch(position_.epoch));
}

void Trainer::run() {
  if (judge_ == nullptr) prepare();
  Planner planner(world_, planner_options_, position_);
  step_started_s_ = now_s();
  std::optional<WindowPlan> window = planner.next(weights_);
  if (!window) log::info("nothing is left to do: the run is complete at step {}", position_.step);
  if (window) train_data_.reader->request(window->rows);
  while (window && !stop_) {
    const double started_s = now_s();
    std::optional<WindowPlan> ahead = planner.next(weights_);
    if (ahead) train_data_.reader->request(ahead->rows);
    io::Window rows;
    comm::agree(world_, "reading the training data",
                [&] { rows = train_data_.reader->take(world_.timeout_s()); });
    count_totals(*window, rows);
    double waited_s = now_s() - started_s;
    std::int64_t first_row = 0;
    for (const StepPlan& step : window->steps) {
      const auto index = static_cast<std::size_t>(&step - window->steps.data());
      const auto totals = static_cast<std::size_t>(task_->totals());
      step_totals_ = std::span(totals_).subspan(index * totals, totals);
      run_step(step, rows, first_row, waited_s, &step == &window->steps.back());
      waited_s = 0;
      first_row += step.n;
      if (stop_) break;
    }
    window = std::move(ahead);
  }
  finish();
}

void Trainer::run_step(const StepPlan& plan, const io::Window& rows, std::int64_t first_row, double waited_s,
                       bool window_ends) {
  const double lr = learning_rate(options_.schedule, plan.step, plan.epoch);
  if (plan.step > options_.schedule.warmup_updates + 1 && lr <= options_.schedule.min_lr) {
    log::info("the learning rate has reached --min-lr at step {}", plan.step);
    stop_ = true;
    return;
  }
  double wait_s = waited_s + run_micro_batches(plan, rows, first_row);
  wait_s += reduce_sums();
  update(plan, lr);
  position_ = {plan.epoch, position_.epoch == plan.epoch ? position_.samples + plan.batch : plan.batch,
               plan.step};
  meter_.add(plan.n, region_.take_seconds(), wait_s, now_s() - step_started_s_, plan.batch, host_sums_);
  step_started_s_ = now_s();
  if (observer_) {
    observer_({plan.step, task_->metrics(host_sums_).loss, task_->divisor(host_sums_), grad_norm_,
               task_->parameters().gradients()});
  }
  after_step(plan, window_ends);
}

// What the losses of each step are divided by, where a task needs it beforehand: once per window, since the rows
// of all its steps are there.
void Trainer::count_totals(const WindowPlan& window, const io::Window& rows) {
  const auto totals = static_cast<std::size_t>(task_->totals());
  totals_.assign(totals * window.steps.size(), 0.0);
  if (totals == 0) return;
  std::int64_t first_row = 0;
  for (std::size_t i = 0; i < window.steps.size(); ++i) {
    const StepPlan& step = window.steps[i];
    task_->count({train_data_.source, rows, first_row, step.n},
                 {options_.seed, static_cast<std::uint32_t>(step.step), static_cast<std::uint32_t>(step.offset)},
                 std::span(totals_).subspan(i * totals, totals));
    first_row += step.n;
  }
  world_.all_reduce_sum(totals_, "the counts of a window");
}

// Forward and backward passes over this rank's share, and the sum of the gradients over ranks. Returns the
// seconds spent waiting for other ranks.
double Trainer::run_micro_batches(const StepPlan& plan, const io::Window& rows, std::int64_t first_row) {
  region_.open();
  const View gradients = task_->parameters().gradients();
  reducer_->begin({gradients.as<float>(), static_cast<std::size_t>(gradients.elements())});
  backend_->fill_zero(sums_);
  const std::vector<std::int64_t> sizes = balance::micro_batches(plan.n, max_micro_batch_);
  if (sizes.empty()) backend_->fill_zero(gradients);
  std::int64_t done = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Pass pass{.backend = *backend_,
                    .training = true,
                    .seed = options_.seed,
                    .step = static_cast<std::uint32_t>(plan.step),
                    .first_slot = static_cast<std::uint32_t>(plan.offset + done),
                    .accumulate = i > 0};
    GradientsDone release;
    if (i + 1 == sizes.size()) {
      release = [this](std::size_t elements) {
        region_.lap();
        reducer_->ready_up_to(elements);
      };
    }
    task_->train(pass, Rows{train_data_.source, rows, first_row + done, sizes[i]}, step_totals_, sums_,
                 release);
    done += sizes[i];
    region_.lap();
  }
  backend_->synchronize();
  region_.close();
  return reducer_->finish();
}

double Trainer::reduce_sums() {
  backend_->copy_to_host(host_sums_.data(), sums_.data, sums_.bytes());
  const double started_s = now_s();
  world_.all_reduce_sum(host_sums_, "the loss of a step");
  return now_s() - started_s;
}

// Divides the summed gradient by the count over the global batch, clips it and steps the optimizer.
void Trainer::update(const StepPlan& plan, double lr) {
  region_.open();
  const View gradients = task_->parameters().gradients();
  const double divisor = task_->divisor(host_sums_);
  backend_->copy_to_device(count_.data, &divisor, sizeof(double));
  backend_->sum_squares(gradients, sum_squares_);
  backend_->gradient_scale(sum_squares_, count_, static_cast<float>(options_.optimizer.clip_norm), scale_);
  float scale_and_norm[2];
  backend_->copy_to_host(scale_and_norm, scale_.data, sizeof(scale_and_norm));
  grad_norm_ = scale_and_norm[1];
  // The same on every rank, since loss and gradient are: all end together.
  const double loss = task_->metrics(host_sums_).loss;
  if (!std::isfinite(loss) || !std::isfinite(grad_norm_)) {
    flush_interval();
    throw AgreedError(
        ExitCode::internal,
        fmt::format("step {}: the loss ({}) or the norm of its gradient ({}) is not a finite number, "
                    "so the parameters were left as they were; a lower --lr or --clip-norm may help",
                    plan.step, loss, grad_norm_));
  }
  optimizer_->step(lr, plan.step, scale_.reshaped(Shape{2}));
  backend_->synchronize();
  region_.close();
}

void Trainer::after_step(const StepPlan& plan, bool window_ends) {
  report(window_ends, plan, learning_rate(options_.schedule, plan.step, plan.epoch));
  const SaveOptions& saving = options_.save;
  const bool interval = saving.save_interval_updates > 0 && plan.step % saving.save_interval_updates == 0;
  const bool epoch_save =
      plan.ends_epoch && saving.save_interval > 0 && plan.epoch % saving.save_interval == 0;
  const bool validation_due = plan.ends_epoch && options_.data.validate_interval > 0 &&
                              plan.epoch % options_.data.validate_interval == 0;
  if (interval || validation_due) {
    try {
      validate();
    } catch (const AgreedError&) {
      save(epoch_save,
           interval);  // the steps of this epoch are worth keeping, whatever is wrong with the data
      throw;
    }
  }
  const bool new_best = judge_->best().step == position_.step;
  if (interval || epoch_save || new_best) save(epoch_save, interval);
  // What a step takes includes the reports between steps, but not validation and checkpoints.
  if (interval || validation_due || epoch_save || new_best) step_started_s_ = now_s();
}

void Trainer::report(bool window_ends, const StepPlan& plan, double lr) {
  const bool line_due = plan.step % options_.report.log_interval == 0;
  if (!line_due && !window_ends) return;
  report::StepRecord record = meter_.collect(world_, *task_);
  record.step = plan.step;
  record.epoch = plan.epoch;
  record.lr = lr;
  record.grad_norm = grad_norm_;
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

void Trainer::validate() {
  if (!judge_->has_data() || validated_step_ == position_.step) return;
  validated_step_ = position_.step;
  const EvaluateOptions how{planner_options_.global_batch(position_.epoch), max_micro_batch_,
                            options_.batch.window, weights_};
  const std::vector<report::ValidRecord> records = judge_->judge(*backend_, position_, how);
  if (world_.rank() != 0) return;
  flush_interval();
  for (const report::ValidRecord& record : records) {
    progress_->valid(record);
    metrics_file_->add(record);
  }
}

void Trainer::save(bool epoch_end, bool interval) {
  if (options_.save.no_save) return;
  flush_interval();
  save_failure_ = saver_->save(position_, judge_->best(), planner_options_, epoch_end, interval);
  if (!save_failure_.empty()) return;
  saved_ = {position_.step, judge_->best().step, epoch_end, interval};
}

void Trainer::finish() {
  const bool trained = position_.step > started_step_;
  if (!meter_.empty()) {
    StepPlan last;
    last.step = position_.step;
    last.epoch = position_.epoch;
    report(true, last, learning_rate(options_.schedule, last.step, last.epoch));
  }
  flush_interval();
  if (trained && options_.data.validate_interval > 0) validate();
  const bool saved_here = saved_.step == position_.step;
  const bool unsaved =
      trained && !options_.save.no_save && (!saved_here || saved_.best_step != judge_->best().step);
  if (unsaved) save(saved_here && saved_.epoch_end, saved_here && saved_.interval);
  progress_.reset();
  if (world_.rank() == 0 && summary_.samples_per_s() > 0) log::info("{}", summary_.text(crowded_));
  if (unsaved && saved_.step != position_.step) {
    throw AgreedError(ExitCode::checkpoint,
                      fmt::format("the last checkpoint (step {}) could not be written to {}: {}", position_.step,
                                  options_.save.save_dir, save_failure_));
  }
}

}  // namespace motley::train
