#include "train/probe.h"

#include <algorithm>

#include "balance/line_fit.h"
#include "balance/slow.h"
#include "comm/agree.h"
#include "core/clock.h"
#include "train/batch_statistics.h"
#include "train/device.h"
#include "train/memory_limit.h"
#include "train/reducers.h"

namespace motley::train {
namespace {

constexpr std::size_t fewest_times = 3;
// Sizes of sums over ranks, four times apart; that of the model's own gradient is measured besides.
constexpr std::int64_t least_reduced = 64 << 10, most_reduced = 64 << 20;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Repeats `work` for `seconds` and at least a few times, so that slow and fast ranks work side by side for as
// long as they can; the first time, which may have to set things up, does not count.
double median_of(double seconds, const std::function<double()>& work) {
  work();
  std::vector<double> times;
  const double until = now_s() + seconds;
  while (times.size() < fewest_times || now_s() < until) times.push_back(work());
  return median(std::move(times));
}

}  // namespace

std::vector<std::int64_t> probe_sizes(std::int64_t most) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t n = 1; n < most; n *= 2) sizes.push_back(n);
  sizes.push_back(most);
  return sizes;
}

Probe::Probe(const TrainOptions& options, double seconds, const comm::Communicator& world)
    : options_(options), seconds_(seconds), world_(world) {}

void Probe::prepare() {
  comm::agree(world_, "making the model", [&] { task_ = make_task(options_); });
  data_ = std::move(*open_subset(*task_, options_.data, options_.data.train_subset, true, world_));
  backend_ = make_backend({options_.device, options_.threads, options_.deterministic}, world_);
  check_precision(options_.model.precision, *backend_, world_);
  const auto rank = static_cast<std::size_t>(world_.rank());
  const MemoryLimits limits = begin_with_memory_limit(options_.memory_limit, world_, *backend_);
  const balance::SlowSpec slow = balance::parse_slow(options_.slow, world_.size())[rank];
  mean_delay_s_ = slow.mean_delay_s(1);
  // A rank that plays another device plays another machine.
  node_ = world_.host();
  if (!limits.empty() || !slow.empty()) node_ += fmt::format(" rank {}", rank);
  comm::agree(world_, "taking memory for the model", [&] {
    task_->allocate_parameters(*backend_, true);
    optimizer_ = make_optimizer(options_.optimizer, *backend_, task_->parameters());
    update_ = std::make_unique<Update>(*backend_, task_->sums(), task_->parameters(), *optimizer_,
                                       options_.optimizer.clip_norm);
    backend_->fill_zero(update_->sums());
  });
  totals_.resize(static_cast<std::size_t>(task_->totals()));
  region_ = std::make_unique<ComputeRegion>(*backend_, slow, world_.rank(), options_.seed);
  task_->parameters().initialize(options_.seed);
  backend_->fill_zero(task_->parameters().gradients());
  model_bytes_ = static_cast<std::int64_t>(backend_->allocated_bytes());
  read_rows();
}

// Real rows, each rank its own; those of a small set are repeated.
void Probe::read_rows() {
  std::vector<std::uint64_t> ids;
  const auto most = static_cast<std::uint64_t>(options_.batch.max_sentences);
  for (std::uint64_t i = 0; i < most; ++i)
    ids.push_back((static_cast<std::uint64_t>(world_.rank()) * most + i) % data_.source.rows);
  data_.reader->request(std::move(ids));
  comm::agree(world_, "reading the data", [&] { rows_ = data_.reader->take(world_.timeout_s()); });
}

bool Probe::reserve(std::int64_t n) {
  try {
    backend_->release_scratch();
    task_->reserve(*backend_, n, true);
    return true;
  } catch (const OutOfMemory&) {
    return false;
  }
}

double Probe::pass_seconds(std::int64_t n) {
  NoStatistics statistics;
  const Pass pass{.backend = *backend_,
                  .training = true,
                  .seed = options_.seed,
                  .step = 1,
                  .statistics = &statistics,
                  .batch = NoStatistics::batch(n)};
  region_->begin_step(pass.step, 0);  // no delay per batch: that is part of what a step costs
  region_->open();
  task_->train(pass, Rows{data_.source, rows_, 0, n}, totals_, update_->sums(),
               [this](std::size_t) { region_->lap(); });
  region_->close();
  return region_->take().compute_s;
}

Probe::SizePoint Probe::measure_size(std::int64_t n) {
  std::fill(totals_.begin(), totals_.end(), 0.0);
  task_->count({data_.source, rows_, 0, n}, {options_.seed, 1, 0}, totals_);
  SizePoint point;
  point.n = n;
  point.seconds = median_of(seconds_, [&] { return pass_seconds(n); });
  point.bytes = static_cast<std::int64_t>(backend_->allocated_bytes()) - model_bytes_;
  return point;
}

// Sizes up to the largest that this rank's memory holds. A rank that stops early waits where the others still
// work.
std::vector<Probe::SizePoint> Probe::measure_sizes(const ProbeListener& listener) {
  std::vector<SizePoint> points;
  bool fits = true;
  for (const std::int64_t n : probe_sizes(options_.batch.max_sentences)) {
    listener(fmt::format("micro-batches of {}", n));
    world_.barrier("the next size of micro-batch");
    fits = fits && reserve(n);
    try {
      if (fits) points.push_back(measure_size(n));
    } catch (const OutOfMemory&) {
      fits = false;
    }
  }
  comm::agree(world_, "measuring micro-batches", [&] {
    if (points.empty()) fail(ExitCode::device, "there is no memory for a micro-batch of a single sample");
  });
  return points;
}

// What a step costs whatever the share, but for a delay: the optimizer, and what goes with it. The rate is 0,
// so that parameters stay what they are however often they are stepped.
double Probe::update_seconds() {
  const std::int64_t step = ++updates_;
  region_->begin_step(step, 0);
  region_->open();
  update_->norm(1);
  update_->step(0, step);
  task_->parameters().refresh_copy();
  region_->close();
  return region_->take().compute_s;
}

double Probe::reduce_seconds(std::int64_t bytes) {
  const auto elements = static_cast<std::size_t>(bytes) / sizeof(float);
  reducer_.reset();
  reduced_ = Buffer();
  // --memory-limit is of training; what is only measured with comes on top.
  const std::size_t limit = backend_->device().memory_limit_bytes;
  backend_->set_memory_limit(limit + elements * sizeof(float));
  reduced_ = Buffer(*backend_, elements * sizeof(float));
  const View gradients = reduced_.view(DType::f32, Shape{static_cast<std::int64_t>(elements)});
  reducer_ =
      make_reducer(world_, *backend_, elements, static_cast<std::size_t>(options_.bucket_cap_mb * (1 << 20)),
                   options_.allreduce_dtype);
  const auto once = [&] {
    world_.barrier("the next sum over ranks");
    const double started_s = now_s();
    reducer_->begin(gradients);
    reducer_->finish();
    return now_s() - started_s;
  };
  once();
  // As often on every rank.
  const double wanted = world_.broadcast(seconds_ / std::max(1e-6, once()), 0, "how often to sum");
  const auto times = static_cast<std::size_t>(std::clamp(wanted, static_cast<double>(fewest_times), 100.0));
  std::vector<double> seconds;
  for (std::size_t i = 0; i < times; ++i) seconds.push_back(once());
  // A sum is done when the last rank has it.
  world_.all_reduce_max(seconds, "the times of the sums");
  backend_->set_memory_limit(limit);
  return median(std::move(seconds));
}

std::vector<Probe::ReducePoint> Probe::measure_network(const ProbeListener& listener) {
  std::vector<ReducePoint> points;
  if (world_.size() == 1) return points;
  std::vector<std::int64_t> sizes;
  for (std::int64_t bytes = least_reduced; bytes <= most_reduced; bytes *= 4) sizes.push_back(bytes);
  const auto own = static_cast<std::int64_t>(task_->parameters().gradients().bytes());
  if (own > least_reduced && own < most_reduced) sizes.push_back(own);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  for (const std::int64_t bytes : sizes) {
    listener(fmt::format("sums of {} bytes over ranks", bytes));
    points.push_back({bytes, reduce_seconds(bytes)});
  }
  return points;
}

Json Probe::describe_rank(const std::vector<SizePoint>& points, double fixed_s) const {
  std::vector<double> n, seconds, bytes;
  Json measured = Json::array();
  for (const SizePoint& point : points) {
    n.push_back(static_cast<double>(point.n));
    seconds.push_back(point.seconds);
    bytes.push_back(static_cast<double>(point.bytes));
    measured.push_back({{"n", point.n}, {"seconds", point.seconds}, {"bytes", point.bytes}});
  }
  const balance::Line time = balance::fit_line(n, seconds), memory = balance::fit_line(n, bytes);
  balance::ClusterRank rank;
  rank.node = node_;
  rank.device = backend_->device().name;
  rank.fixed_s = fixed_s;
  rank.micro_s = time.at_zero;
  // Times that do not grow with the size at all: one sample costs what it costs in the largest.
  rank.sample_s = time.slope > 0 ? time.slope : seconds.back() / n.back();
  rank.memory_limit_bytes = static_cast<std::int64_t>(backend_->device().memory_limit_bytes);
  rank.model_bytes = model_bytes_ + static_cast<std::int64_t>(memory.at_zero);
  rank.sample_bytes = static_cast<std::int64_t>(memory.slope);
  Json json = to_json(rank);
  json["measured"] = {{"threads", backend_->device().threads},
                      {"fit_error", time.residual},
                      {"memory_fit_error", memory.residual},
                      {"micro_batches", std::move(measured)}};
  return json;
}

Json Probe::measure(const ProbeListener& listener) {
  const std::vector<SizePoint> sizes = measure_sizes(listener);
  listener("the optimizer");
  world_.barrier("the measurement of the optimizer");
  // A random delay counts at its mean, which the median of a few draws is not: none is slept through here.
  const double fixed_s = median_of(seconds_, [this] { return update_seconds(); }) + mean_delay_s_;
  const std::vector<ReducePoint> reduces = measure_network(listener);

  Json ranks = Json::array();
  for (int rank = 0; rank < world_.size(); ++rank) {
    const bool mine = rank == world_.rank();
    const std::string text = world_.broadcast(mine ? describe_rank(sizes, fixed_s).dump() : std::string(),
                                              rank, "what a rank has measured");
    ranks.push_back(Json::parse(text));
  }
  return world_.rank() == 0 ? describe(std::move(ranks), reduces) : Json();
}

Json Probe::describe(Json ranks, const std::vector<ReducePoint>& reduces) const {
  balance::Cluster cluster;
  cluster.gradient_bytes = static_cast<std::int64_t>(task_->parameters().gradients().bytes());
  cluster.max_sentences = options_.batch.max_sentences;
  cluster.global_batch = global_batch(options_.batch, 1, world_.size());
  Json json = to_json(cluster);
  json["ranks"] = std::move(ranks);
  json["measured"] = {{"task", task_->name()},
                      {"parameters", task_->parameters().count()},
                      {"precision", options_.model.precision}};
  if (reduces.empty()) return json;

  std::vector<double> bytes, seconds;
  Json points = Json::array();
  for (const ReducePoint& point : reduces) {
    bytes.push_back(static_cast<double>(point.bytes));
    seconds.push_back(point.seconds);
    points.push_back({{"bytes", point.bytes}, {"seconds", point.seconds}});
  }
  balance::Line line = balance::fit_line(bytes, seconds);
  if (line.slope == 0) line.slope = seconds.back() / bytes.back();
  json["network"] = to_json(balance::network_of_line(line.at_zero, line.slope, world_.size()));
  json["network"]["measured"] = {{"fit_error", line.residual}, {"all_reduces", std::move(points)}};
  return json;
}

}  // namespace motley::train
