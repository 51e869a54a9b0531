#include "train/stepper.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "core/clock.h"
#include "core/error.h"

namespace motley::train {
namespace {

// Micro-batches that add to gradients, and those whose gradients leave on the way, have other operations.
StretchKey stretch_key(std::int64_t samples, bool accumulates, bool releases) {
  return {samples, (accumulates ? 1 : 0) + (releases ? 2 : 0)};
}

}  // namespace

Stepper::Stepper(const TrainOptions& options, const comm::Communicator& world, Backend& backend, Task& task,
                 Optimizer& optimizer, MicroBatches& micro_batches, LossScale& loss_scale,
                 BadSteps& bad_steps, std::unique_ptr<comm::GradientReducer> reducer,
                 std::unique_ptr<comm::SmallSum> statistics)
    : options_(options),
      world_(world),
      backend_(backend),
      task_(task),
      optimizer_(optimizer),
      micro_batches_(micro_batches),
      loss_scale_(loss_scale),
      bad_steps_(bad_steps),
      policy_(balance::parse_policy(options.batch.policy)),
      region_(backend, options.slow, world, options.seed),
      reducer_(std::move(reducer)),
      whole_shares_(normalizes_global_batches(options, task)),
      update_(backend, task.sums(), task.parameters(), optimizer, options.optimizer.clip_norm) {
  const auto sums = static_cast<std::size_t>(task.sums());
  host_sums_.resize(sums);
  local_sums_.assign(sums, 0.0);
  if (statistics) statistics_ = std::make_unique<BatchStatistics>(std::move(statistics), region_);
  statistics_before_ = Buffer(backend, task.parameters().statistics().bytes());
  const bool has_gpu = backend.device().kind == "cuda";
  double kinds[] = {has_gpu ? 1.0 : 0.0, has_gpu ? 0.0 : 1.0};
  world.all_reduce_max(kinds, "the kinds of devices");
  if (kinds[0] > 0 && kinds[1] > 0 && !local()) update_.follow_rank_0(world);
}

double Stepper::begin_window(const WindowPlan& window, const io::RowSource& source, const io::Window& rows) {
  window_ = &window;
  source_ = &source;
  rows_ = &rows;
  next_step_ = 0;
  first_row_ = 0;
  return count_totals();
}

// What the losses of each step are divided by, where a task needs it beforehand: once per window, since the
// rows of all its steps are there. Returns the seconds that it waited.
double Stepper::count_totals() {
  const auto totals = static_cast<std::size_t>(task_.totals());
  own_totals_.assign(totals * window_->steps.size(), 0.0);
  totals_.clear();
  count_s_ = 0;
  if (totals == 0) return 0;
  const double started_s = now_s();
  std::int64_t first_row = 0;
  for (std::size_t i = 0; i < window_->steps.size(); ++i) {
    const StepPlan& step = window_->steps[i];
    task_.count(
        {*source_, *rows_, first_row, step.n},
        {options_.seed, static_cast<std::uint32_t>(step.step), static_cast<std::uint32_t>(step.offset)},
        std::span(own_totals_).subspan(i * totals, totals));
    first_row += step.n;
  }
  const double counted_s = now_s();
  count_s_ = (counted_s - started_s) / static_cast<double>(window_->steps.size());
  totals_ = own_totals_;
  if (!local()) world_.all_reduce_sum(totals_, "the counts of a window");
  return now_s() - counted_s;
}

std::span<const double> Stepper::totals_of_step() const {
  const auto totals = static_cast<std::size_t>(task_.totals());
  const bool own = local() || balance::is_published(policy_);
  return std::span(own ? own_totals_ : totals_).subspan(next_step_ * totals, totals);
}

// What the loss of a step is multiplied by while its gradient is formed. The loss scale is that of a mean; a sum over the
// batch is divided by the batch first, rounded up to a power of two, which costs no digits.
double Stepper::loss_factor(const StepPlan& plan) const {
  if (!loss_scale_.active() || task_.totals() > 0) return loss_scale_.factor();
  return loss_scale_.factor() / static_cast<double>(std::bit_ceil(static_cast<std::uint64_t>(plan.batch)));
}

// The factor of the loss, and what makes the division by the count over the global batch, which comes later, that of the
// published policies. A task with totals has divided by this rank's already.
float Stepper::gradient_weight(const StepPlan& plan) const {
  const double scale = loss_factor(plan);
  if (local() || !balance::is_published(policy_) || plan.n == 0) return static_cast<float>(scale);
  const double weight = scale * balance::published_gradient_weight(policy_, plan.n, plan.batch, plan.active);
  if (task_.totals() > 0) return static_cast<float>(weight);
  return static_cast<float>(weight * static_cast<double>(plan.batch) / static_cast<double>(plan.n));
}

// A rank that runs out of memory does its share again in smaller micro-batches. That is possible as long as no gradient is
// on its way to the others, so they are held back until a size has proved itself.
void Stepper::run_share(const StepPlan& plan) {
  for (;;) {
    try {
      run_micro_batches(plan, micro_batches_.prepare(plan.n));
      break;
    } catch (const OutOfMemory& why) {
      if (!can_begin_again()) throw;
      micro_batches_.halve(why);
      begin_again();
    }
  }
  if (plan.n > 0) micro_batches_.mark_tried();
  own_samples_ += static_cast<double>(plan.n);
  uncombined_ = true;
}

void Stepper::run_micro_batches(const StepPlan& plan, const std::vector<std::int64_t>& sizes) {
  backend_.fill_zero(update_.sums());
  if (sizes.empty()) backend_.fill_zero(task_.parameters().gradients());
  std::int64_t done = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const bool last = i + 1 == sizes.size();
    run_micro_batch(plan, done, sizes[i], last && micro_batches_.tried() ? release() : nullptr);
    done += sizes[i];
  }
}

// Sums of batch norm's statistics are part of the pass, on all ranks: it can be neither cut nor begun again. Nor need
// gradients be held back, so that every rank has the same order of sums.
void Stepper::run_whole_share(const StepPlan& plan) {
  try {
    micro_batches_.prepare_whole(plan.n);
    backend_.fill_zero(update_.sums());
    if (plan.n == 0) backend_.fill_zero(task_.parameters().gradients());
    if (statistics_) statistics_->begin_step(plan.step);
    run_micro_batch(plan, 0, plan.n, release());
  } catch (const OutOfMemory& why) {
    fail_whole_share(plan, why);
  }
  if (statistics_) statistics_->end_step();
}

// Whether nothing of the step is with other ranks.
bool Stepper::can_begin_again() const {
  return local() || !reducer_->sent();
}

// What was done of the step counts no more.
void Stepper::begin_again() {
  if (!local()) reducer_->begin(task_.parameters().gradients());
  region_.forget_micro_batches();
  restore_statistics();
}

void Stepper::fail_whole_share(const StepPlan& plan, const OutOfMemory& why) const {
  fail(ExitCode::device,
       "step {}: {}; its share are {} samples, which batch norm takes at once: expected a smaller "
       "--global-batch, "
       "--max-sentences below that, or --no-sync-bn, which normalises micro-batches by themselves",
       plan.step, why.what(), plan.n);
}

// One rank alone keeps its gradients.
GradientsDone Stepper::release() {
  if (local() || world_.size() == 1) return nullptr;
  return [this](std::size_t elements) {
    region_.lap();
    reducer_->ready_up_to(elements);
  };
}

void Stepper::run_micro_batch(const StepPlan& plan, std::int64_t first, std::int64_t n,
                              const GradientsDone& done) {
  const Pass pass{.backend = backend_,
                  .training = true,
                  .seed = options_.seed,
                  .step = static_cast<std::uint32_t>(plan.step),
                  .first_slot = static_cast<std::uint32_t>(plan.offset + first),
                  .accumulate = first > 0,
                  .gradient_weight = gradient_weight(plan),
                  .statistics = statistics_.get(),
                  .batch = plan.batch};
  const auto train = [&](const GradientsDone& gradients_done) {
    task_.train(pass, Rows{*source_, *rows_, first_row_ + first, n}, totals_of_step(), update_.sums(),
                gradients_done);
  };
  if (n > 0) region_.begin_micro_batch();
  task_.parameters().refresh_copy();  // in a rehearsal it would count as done
  if (n == 0 || statistics_ != nullptr) {
    train(done);  // ranks add up in the middle of the pass, which can be neither rehearsed nor begun again
  } else {
    backend_.run_stretch(
        stretch_key(n, pass.accumulate, done != nullptr), [&] { train(done); }, [&] { train({}); });
  }
  if (n > 0) region_.end_micro_batch();
  region_.lap();
}

void Stepper::copy_statistics(ConstView from, View to) {
  const Shape one_pixel{1, 1, 1, to.elements()};
  from.shape = to.shape = one_pixel;
  backend_.copy_channels(from, 0, to, 0, one_pixel[3]);
}

void Stepper::keep_statistics() {
  if (statistics_before_.bytes() == 0) return;
  const View statistics = task_.parameters().statistics();
  copy_statistics(statistics, statistics_before_.view(DType::f32, statistics.shape));
}

// The passes that were done have moved them.
void Stepper::restore_statistics() {
  if (statistics_before_.bytes() == 0) return;
  const View statistics = task_.parameters().statistics();
  copy_statistics(statistics_before_.view(DType::f32, statistics.shape), statistics);
}

double Stepper::combine_statistics() {
  if (!has_own_statistics() || !uncombined_ || world_.size() == 1) return 0;
  const View statistics = task_.parameters().statistics();
  std::vector<float> values(static_cast<std::size_t>(statistics.elements()));
  backend_.copy_to_host(values.data(), statistics.data, statistics.bytes());
  std::vector<double> sums(values.begin(), values.end());
  for (double& sum : sums) sum *= own_samples_;
  sums.push_back(own_samples_);
  const double started_s = now_s();
  world_.all_reduce_sum(sums, "the running statistics of batch norm");
  const double waited_s = now_s() - started_s;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(sums[i] / sums.back());
  backend_.copy_to_device(statistics.data, values.data(), statistics.bytes());
  backend_.synchronize();
  own_samples_ = 0;
  uncombined_ = false;
  return waited_s;
}

StepOutcome Stepper::run(double lr, bool stop) {
  const StepPlan& plan = window_->steps.at(next_step_);
  StepOutcome outcome;
  region_.begin_step(plan.step, plan.n);
  if (!local()) reducer_->begin(task_.parameters().gradients());
  region_.open();
  keep_statistics();
  for (bool done = false; !done;) {
    try {
      whole_shares_ ? run_whole_share(plan) : run_share(plan);
      done = true;
    } catch (const StretchLost& why) {
      if (!can_begin_again())
        fail(ExitCode::device,
             "{}; the step cannot be done again, since gradients of it may be with other ranks: start the "
             "run again, with --no-cuda-graph should this come back",
             why.what());
      begin_again();
    }
  }
  region_.close();
  if (!local()) outcome.times.wait_s += reducer_->finish();

  backend_.copy_to_host(host_sums_.data(), update_.sums().data, update_.sums().bytes());
  outcome.own_loss_finite =
      std::all_of(host_sums_.begin(), host_sums_.end(), [](double sum) { return std::isfinite(sum); });
  const double started_s = now_s();
  if (!local()) {
    host_sums_.push_back(stop ? 1.0 : 0.0);
    world_.all_reduce_sum(host_sums_, "the loss of a step");
    outcome.stop = host_sums_.back() > 0;
    host_sums_.pop_back();
  }
  outcome.times.wait_s += now_s() - started_s;
  if (!local() || plan.n > 0) update(plan, lr, outcome);
  if (!outcome.finite) {
    restore_statistics();  // what was not finite would stay in them
    own_samples_ -= static_cast<double>(plan.n);
  }
  outcome.sums = host_sums_;
  outcome.times.region = region_.take();
  outcome.times.wait_s += outcome.times.region.waited_s;
  outcome.times.region.compute_s += count_s_;
  if (local()) note_local_step(plan, outcome);
  ++next_step_;
  first_row_ += plan.n;
  return outcome;
}

void Stepper::note_local_step(const StepPlan& plan, const StepOutcome& outcome) {
  apart_ = true;
  if (!outcome.finite) {
    ++local_skips_;
    return;
  }
  local_samples_ += static_cast<double>(plan.n);
  for (std::size_t i = 0; i < host_sums_.size(); ++i) local_sums_[i] += host_sums_[i];
}

// Nothing is changed before all memory that it works in was had, so that it can be begun again.
void Stepper::update(const StepPlan& plan, double lr, StepOutcome& outcome) {
  region_.open();
  for (;;) {
    try {
      outcome.divisor = loss_factor(plan) * task_.divisor(host_sums_);
      outcome.grad_norm = update_.norm(outcome.divisor);
      // The same on every rank, since loss and gradient are (but for local steps).
      outcome.finite = std::isfinite(task_.metrics(host_sums_).loss) && std::isfinite(outcome.grad_norm);
      if (outcome.finite) update_.step(lr, optimizer_step(plan));
      break;
    } catch (const OutOfMemory& why) {
      if (whole_shares_) fail_whole_share(plan, why);
      micro_batches_.halve(why);
    }
  }
  if (!local()) outcome.hopeless = !note(outcome.finite);
  region_.close();
}

// Whether there is a point in going on.
bool Stepper::note(bool finite) {
  const bool a_smaller_scale_may_help = loss_scale_.note(finite);
  return loss_scale_.moves() ? a_smaller_scale_may_help : bad_steps_.note(finite);
}

// Steps that were skipped do not count for the optimizer's bias corrections. Of local steps they do: ranks skip each for
// itself, but have one optimizer state in the end.
std::int64_t Stepper::optimizer_step(const StepPlan& plan) const {
  if (local()) return plan.step;
  return plan.step - (loss_scale_.active() ? loss_scale_.skipped() : bad_steps_.skipped());
}

// The sum over ranks of weight * arena; the weights of all ranks sum to 1. Returns the seconds it waited.
double Stepper::average_arena(View arena, double weight) {
  backend_.scale(weight, arena);
  backend_.synchronize();
  reducer_->begin(arena);
  return reducer_->finish();
}

StepOutcome Stepper::average(bool stop) {
  StepOutcome outcome;
  const std::size_t sums = local_sums_.size();
  std::vector<double> shared = local_sums_;
  shared.push_back(local_samples_);
  shared.push_back(static_cast<double>(local_skips_));
  shared.push_back(stop ? 1.0 : 0.0);
  const double started_s = now_s();
  world_.all_reduce_sum(shared, "the sums of local steps");
  outcome.times.wait_s += now_s() - started_s;
  outcome.finite = shared[sums + 1] == 0;
  outcome.stop = shared[sums + 2] > 0;
  outcome.hopeless = !bad_steps_.note(outcome.finite);
  host_sums_.assign(shared.begin(), shared.begin() + static_cast<std::ptrdiff_t>(sums));
  outcome.sums = host_sums_;
  outcome.divisor = task_.divisor(host_sums_);
  // When each skipped all of its steps they have the same parameters still.
  if (shared[sums] > 0) {
    const double weight = local_samples_ / shared[sums];
    const View values = task_.parameters().values();
    outcome.times.wait_s += average_arena(values, weight);
    task_.parameters().changed();
    for (const Optimizer::State& state : optimizer_.states())
      outcome.times.wait_s += average_arena(state.arena.view(DType::f32, values.shape), weight);
  }
  apart_ = false;
  local_samples_ = 0;
  local_skips_ = 0;
  std::fill(local_sums_.begin(), local_sums_.end(), 0.0);
  return outcome;
}

}  // namespace motley::train
