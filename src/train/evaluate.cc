#include "train/evaluate.h"

#include "comm/agree.h"
#include "kernels/buffer.h"
#include "train/planner.h"

namespace motley::train {
namespace {

// Judges this rank's share of one step after another.
class ShareJudge {
 public:
  ShareJudge(Task& task, Backend& backend, const EvaluateOptions& options, ComputeRegion& region)
      : task_(task),
        backend_(backend),
        options_(options),
        region_(region),
        step_sums_(static_cast<std::size_t>(task.sums())),
        sums_(step_sums_.size()),
        device_sums_(backend, step_sums_.size() * sizeof(double)) {}

  // A share that runs out of memory half-way is judged again as a whole.
  void judge(const Rows& share) {
    for (;;) {
      try {
        return try_to_judge(share);
      } catch (const OutOfMemory& error) {
        options_.micro_batches->halve(error);
      }
    }
  }

  std::vector<double>& sums() { return sums_; }

 private:
  void try_to_judge(const Rows& share) {
    const View device = device_sums_.view(DType::f64, Shape{task_.sums()});
    backend_.fill_zero(device);
    Rows rows = share;
    for (const std::int64_t n : options_.micro_batches->prepare(share.n)) {
      rows.n = n;
      task_.evaluate(Pass{.backend = backend_}, rows, device);
      rows.first += n;
      region_.lap();
    }
    backend_.copy_to_host(step_sums_.data(), device.data, device.bytes());
    for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += step_sums_[i];
  }

  Task& task_;
  Backend& backend_;
  const EvaluateOptions& options_;
  ComputeRegion& region_;
  std::vector<double> step_sums_, sums_;
  Buffer device_sums_;
};

bool some_rank(const comm::Communicator& world, bool wants) {
  double wishes[] = {wants ? 1.0 : 0.0};
  world.all_reduce_max(wishes, "whether to stop");
  return wishes[0] > 0;
}

}  // namespace

std::optional<Metrics> evaluate(Task& task, Backend& backend, DataSet& data, const comm::Communicator& world,
                                const EvaluateOptions& options, ComputeRegion& region) {
  PlannerOptions plan;
  plan.purpose = "validation";
  plan.samples = data.source.rows;
  plan.global_batch = [&](int) { return options.global_batch; };
  plan.window = options.window;
  plan.shuffle = false;
  plan.max_epoch = 1;
  Planner planner(world, plan, {});
  ShareJudge judge(task, backend, options, region);

  std::optional<WindowPlan> window = planner.next(options.weights);
  if (window) data.reader->request(window->rows);
  while (window) {
    std::optional<WindowPlan> ahead = planner.next(options.weights);
    if (ahead) data.reader->request(ahead->rows);
    io::Window rows;
    comm::agree(world, "reading the validation data", [&] { rows = data.reader->take(world.timeout_s()); });
    if (options.wants_to_stop && some_rank(world, options.wants_to_stop())) return std::nullopt;
    std::int64_t first = 0;
    for (const StepPlan& step : window->steps) {
      region.begin_step(options.step, step.n);
      region.open();
      judge.judge({data.source, rows, first, step.n});
      region.close();
      first += step.n;
    }
    window = std::move(ahead);
  }
  world.all_reduce_sum(judge.sums(), "the sums of the validation");
  return task.metrics(judge.sums());
}

}  // namespace motley::train
