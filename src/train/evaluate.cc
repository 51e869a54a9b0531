#include "train/evaluate.h"

#include "balance/shares.h"
#include "comm/agree.h"
#include "kernels/buffer.h"
#include "train/planner.h"

namespace motley::train {

Metrics evaluate(Task& task, Backend& backend, DataSet& data, const comm::Communicator& world,
                 const EvaluateOptions& options, ComputeRegion& region) {
  PlannerOptions plan;
  plan.purpose = "validation";
  plan.samples = data.source.rows;
  plan.global_batch = [&](int) { return options.global_batch; };
  plan.window = options.window;
  plan.shuffle = false;
  plan.max_epoch = 1;
  Planner planner(world, plan, {});
  Buffer device_sums(backend, static_cast<std::size_t>(task.sums()) * sizeof(double));
  const View sums = device_sums.view(DType::f64, Shape{task.sums()});

  std::optional<WindowPlan> window = planner.next(options.weights);
  if (window) data.reader->request(window->rows);
  while (window) {
    std::optional<WindowPlan> ahead = planner.next(options.weights);
    if (ahead) data.reader->request(ahead->rows);
    io::Window rows;
    comm::agree(world, "reading the validation data", [&] { rows = data.reader->take(world.timeout_s()); });
    region.open();
    std::int64_t first = 0;
    for (const StepPlan& step : window->steps) {
      for (const std::int64_t n : balance::micro_batches(step.n, options.max_micro_batch)) {
        task.evaluate(Pass{.backend = backend}, Rows{data.source, rows, first, n}, sums);
        first += n;
        region.lap();
      }
    }
    backend.synchronize();
    region.close();
    window = std::move(ahead);
  }
  std::vector<double> host_sums(static_cast<std::size_t>(task.sums()));
  backend.copy_to_host(host_sums.data(), sums.data, sums.bytes());
  world.all_reduce_sum(host_sums, "the sums of the validation");
  return task.metrics(host_sums);
}

}  // namespace motley::train
