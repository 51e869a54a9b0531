// The laws on GPUs, among GPUs and CPUs in one run, and against CPUs alone: tasks mnist and bert, dropout on.
// Runs under mpirun with 4 ranks on the simulated device (tests/sim), or on the GPUs of the machine (tests/gpu/run),
// with as many of them and as many ranks as there are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "io/synthetic_images.h"
#include "support/gpus.h"
#include "system/laws/bert_worlds.h"
#include "system/laws/image_worlds.h"

namespace motley::train {
namespace {

// A letter per rank: g for a GPU, c for the CPU.
using Devices = std::string;
constexpr std::size_t most_gpus = 4;  // of a case

template <class Base>
class OnDevices : public Base {
 protected:
  void SetUp() override {
    ASSERT_GT(test::gpus_of_host(), 0) << "this machine has no GPU";
    const auto gpus = static_cast<std::size_t>(test::gpus_of_host());
    const auto ranks = static_cast<std::size_t>(this->world_.size());
    if (this->world_.rank() == 0 && (gpus < most_gpus || ranks < most_gpus))
      std::printf("%zu GPU(s) and %zu rank(s): GPUs beyond them are CPUs, ranks beyond them left out\n", gpus,
                  ranks);
  }

  // What there is of them here. Where there are fewer ranks, those of CPUs go first; GPUs that are not there become
  // CPUs.
  Devices here(Devices devices) const {
    while (devices.size() > static_cast<std::size_t>(this->world_.size())) {
      const std::size_t cpu = devices.rfind('c');
      devices.erase(cpu == Devices::npos ? devices.size() - 1 : cpu, 1);
    }
    int free = test::gpus_of_host();
    for (char& device : devices)
      if (device == 'g' && --free < 0) device = 'c';
    return devices;
  }

  // Float16 is for GPUs alone: up to `most` of them.
  static Devices gpus_only(int most) {
    return Devices(static_cast<std::size_t>(std::min(most, test::gpus_of_host())), 'g');
  }

  bool takes_part(const Devices& devices) const {
    return static_cast<std::size_t>(this->world_.rank()) < here(devices).size();
  }

  Trace train_on(const Devices& wanted, TrainOptions options) const {
    const Devices devices = here(wanted);
    if (takes_part(devices))
      options.device = devices[static_cast<std::size_t>(this->world_.rank())] == 'g' ? "cuda" : "cpu";
    const std::string& weights = options.batch.weights;
    const auto weighted = static_cast<std::size_t>(std::count(weights.begin(), weights.end(), ',')) + 1;
    if (options.batch.policy == "static" && weighted != devices.size()) {
      options.batch.policy = "sync";
      options.batch.weights.clear();
    }
    if (devices.size() == 1) options.slow.clear();
    return this->train(static_cast<int>(devices.size()), options);
  }

  // float16's is summed with a loss scale, which the count has too.
  static std::vector<float> mean(std::vector<float> gradient, double count) {
    for (float& value : gradient) value = static_cast<float>(static_cast<double>(value) / count);
    return gradient;
  }

  // Whether the network has ReLU and max pooling.
  virtual bool has_thresholds() const { return false; }

  // Losses, first and last gradient of `other` against those of `one`, on rank 0.
  void expect_same(const Trace& one, const Trace& other, double loss_tolerance, double gradient_tolerance,
                   const std::string& what) const {
    if (this->world_.rank() != 0) return;
    const double worst = expect_same_losses(one, other, loss_tolerance, what);
    const double first = relative_distance(mean(other.first_gradient, other.first_count),
                                           mean(one.first_gradient, one.first_count)),
                 last = relative_distance(mean(other.last_gradient, other.last_count),
                                          mean(one.last_gradient, one.last_count));
    if (has_thresholds()) {
      // Where rounding decides whether a value is above 0 or which of two is the larger, devices may go other ways, in one of
      // the two steps at most (docs/laws.md).
      EXPECT_LT(std::min(first, last), gradient_tolerance) << what;
      EXPECT_LT(first, std::max(2e-3, gradient_tolerance)) << what;
    } else {
      EXPECT_LT(first, gradient_tolerance) << what;
    }
    // By then the runs' parameters have parted by rounding, which relu and Adadelta amplify; a bucket that is not
    // summed, or summed twice, differs by far more.
    EXPECT_LT(last, std::max(1e-2, 2 * gradient_tolerance)) << what;
    std::printf(
        "%s: largest relative difference of a loss %.1e, of the first gradient %.1e, of the last %.1e\n",
        what.c_str(), worst, first, last);
  }
};

class GpuImageLaws : public OnDevices<ImageWorlds> {
 protected:
  bool has_thresholds() const override { return true; }
  TrainOptions options(const std::string& run, std::int64_t steps) const {
    TrainOptions result = image_options(run, 16, steps);
    result.batch.max_sentences = 4;
    result.schedule.warmup_updates = 1000;
    return result;
  }
};

class GpuBertLaws : public OnDevices<BertWorlds> {
 protected:
  TrainOptions options(const std::string& run, std::int64_t steps) const { return bert_options(run, steps); }
};

// Batch norm over the global batch, with a network that has no ReLU to amplify rounding. On images of 16 x 16 two
// instruction sets of one CPU give gradients that differ by 1.3e-5: 16 samples have one pixel each in the last layers.
class GpuBatchNormLaws : public OnDevices<Worlds> {
 protected:
  void write_images(std::int64_t side) const {
    if (world_.rank() == 0)
      io::write_synthetic_images({.samples = 48, .height = side, .width = side, .seed = 17},
                                 path_ + "/train.h5");
    world_.barrier("the data");
  }
  TrainOptions options(const std::string& run, std::int64_t steps) const {
    TrainOptions result;
    result.data.task = "images";
    result.data.data = path_;
    result.image.arch = "efficientnet_b0";
    result.image.crop_padding = 2;
    result.image.flip = true;
    result.save.save_dir = path_ + "/" + run;
    result.save.save_interval = 0;
    result.batch.global_batch = 16;
    result.batch.policy = "sync";
    result.optimizer.name = "sgd";
    result.schedule.lr = {5e-4};
    result.max_update = steps;
    result.report.log_format = "none";
    result.threads = 1;
    result.seed = 7;
    result.deterministic = true;  // other convolutions of the simulated device sum one by one in float32
    return result;
  }
  void expect_same_statistics(const Trace& one, const Trace& other, const std::string& what) const {
    if (world_.rank() != 0) return;
    EXPECT_LT(relative_distance(other.statistics, one.statistics), 1e-5) << what;
  }
};

TEST_F(GpuBatchNormLaws, law1_statistics_are_those_of_the_global_batch_on_gpus_and_cpus) {
  constexpr std::int64_t steps = 1;  // of a network that simulated GPUs take long for
  write_images(32);
  const Trace cpu = train_on("c", options("cpu", steps));
  const auto compare = [&](const Devices& devices, const std::string& weights, const std::string& what) {
    TrainOptions run = options("run" + devices, steps);
    const Trace trace = train_on(devices, weights.empty() ? run : with_weights(run, weights));
    expect_same(cpu, trace, 1e-4, 1e-5, what);
    expect_same_statistics(cpu, trace, what);
  };
  compare("gggg", "", "4 GPUs");
  compare("cggc", "1,3,0,2", "CPU, GPU, GPU, CPU with shares 1:3:0:2");
  compare("gc", "0,1", "a GPU without samples and a CPU");
}

TEST_F(GpuBatchNormLaws, law4_a_stopped_and_continued_run_is_the_run_that_was_never_stopped) {
  constexpr std::int64_t steps = 2, stop = 1;
  const Devices devices = "gc";
  write_images(16);
  const TrainOptions whole = with_weights(options("whole", steps), "3,1");
  TrainOptions first = whole;
  first.save.save_dir = path_ + "/parts";
  first.max_update = stop;
  TrainOptions second = first;
  second.max_update = steps;
  const Trace uninterrupted = train_on(devices, whole), before = train_on(devices, first),
              after = train_on(devices, second);
  if (takes_part(devices)) expect_continued(uninterrupted, before, after, steps, stop, devices);
}

TEST_F(GpuImageLaws, law1_gpus_cpus_and_both_together_give_the_same_losses) {
  constexpr std::int64_t steps = 5;
  const Trace cpu = train_on("c", options("cpu", steps));
  expect_same(cpu, train_on("g", options("one", steps)), 1e-4, 1e-5, "1 GPU");
  expect_same(cpu, train_on("gggg", options("four", steps)), 1e-4, 1e-5, "4 GPUs");
  expect_same(cpu, train_on("ggcc", options("mixed", steps)), 1e-4, 1e-5, "2 GPUs and 2 CPUs");
  expect_same(cpu, train_on("cgc", with_weights(options("uneven", steps), "1,5,2")), 1e-4, 1e-5,
              "CPU, GPU, CPU with shares 1:5:2");
  expect_same(cpu, train_on("ggcg", with_weights(options("zero", steps), "0,3,1,0")), 1e-4, 1e-5,
              "shares 0:3:1:0 on GPU, GPU, CPU, GPU");
}

TEST_F(GpuBertLaws, law1_gpus_cpus_and_both_together_give_the_same_losses) {
  constexpr std::int64_t steps = 5, until_shares_move = 12;
  const Trace cpu = train_on("c", options("cpu", steps));
  expect_same(cpu, train_on("gggg", options("four", steps)), 1e-4, 1e-5, "4 GPUs");
  expect_same(cpu, train_on("ggcc", options("mixed", steps)), 1e-4, 1e-5, "2 GPUs and 2 CPUs");
  expect_same(cpu, train_on("cggc", with_weights(options("uneven", steps), "1,5,0,2")), 1e-4, 1e-5,
              "CPU, GPU, GPU, CPU with shares 1:5:0:2");
  TrainOptions recomputed = options("recomputed", steps);
  recomputed.model.recompute = true;
  expect_same(cpu, train_on("gg", recomputed), 1e-4, 1e-5, "2 GPUs that recompute activations");
  TrainOptions measured = options("moving", until_shares_move);
  measured.batch.policy = "auto";
  measured.slow = "1:4x";
  const Trace longer = train_on("c", options("longer", until_shares_move));
  expect_same(longer, train_on("ggc", measured), 1e-4, 1e-5, "2 GPUs and a CPU with moving shares");
}

TEST_F(GpuBertLaws, law1_holds_in_half_precision_to_its_precision) {
  constexpr std::int64_t steps = 5;
  const auto with_precision = [&](const std::string& run, const char* precision) {
    TrainOptions result = options(run, steps);
    result.model.precision = precision;
    return result;
  };
  const Trace exact = train_on("c", options("exact", steps));
  const Trace bf16 = train_on("gggg", with_precision("bf16", "bf16"));
  expect_same(exact, bf16, 2e-2, 1e-1, "4 GPUs in bfloat16 against float32");
  expect_same(bf16, train_on("ggc", with_precision("mixed", "bf16")), 2e-2, 1e-1,
              "2 GPUs and a CPU in bfloat16 against 4 GPUs");
  const Trace fp16 = train_on(gpus_only(4), with_precision("fp16", "fp16"));
  expect_same(exact, fp16, 2e-2, 1e-1, "up to 4 GPUs in float16 against float32");
  expect_same(fp16, train_on("g", with_precision("one16", "fp16")), 2e-2, 1e-1,
              "1 GPU in float16 against up to 4");
}

TEST_F(GpuBertLaws, gradients_may_travel_in_bfloat16) {
  constexpr std::int64_t steps = 5;
  const Trace exact = train_on("c", options("exact", steps));
  for (const Devices devices : {"gggg", "ggcc", "cccc"}) {
    TrainOptions narrow = options("narrow" + devices, steps);
    narrow.allreduce_dtype = "bf16";
    const Trace trace = train_on(devices, narrow);
    expect_same(exact, trace, 1e-2, 1e-2, "gradients in bfloat16 on " + devices);
    // Half as many bits cannot give the same gradient: the option does something. One rank has nothing to send.
    if (world_.rank() == 0 && here(devices).size() > 1) {
      EXPECT_GT(relative_distance(trace.first_gradient, exact.first_gradient), 1e-4);
    }
  }
}

TEST_F(GpuImageLaws, law1_holds_in_half_precision_to_its_precision) {
  constexpr std::int64_t steps = 4, batch = 20;
  const auto in = [&](const char* precision, const std::string& run) {
    TrainOptions result = options(run, steps);
    result.batch.global_batch = batch;
    result.model.precision = precision;
    return result;
  };
  const Trace exact = train_on("c", in("fp32", "exact"));
  const Trace bf16 = train_on("gg", in("bf16", "bf16"));
  expect_same(exact, bf16, 2e-2, 1e-1, "2 GPUs in bfloat16 against float32");
  expect_same(bf16, train_on("gcg", with_weights(in("bf16", "mixed"), "1,5,2")), 2e-2, 1e-1,
              "GPU, CPU, GPU in bfloat16 with shares 1:5:2 against 2 GPUs");
  const Trace fp16 = train_on(gpus_only(4), in("fp16", "fp16"));
  expect_same(exact, fp16, 1e-2, 5e-2, "up to 4 GPUs in float16 against float32");
  expect_same(fp16, train_on("g", in("fp16", "one16")), 1e-2, 5e-2, "1 GPU in float16 against up to 4");
  TrainOptions fixed = in("fp16", "fixed");
  fixed.model.loss_scale = 1024;
  const Trace scaled = train_on("g", fixed);
  expect_same(exact, scaled, 1e-2, 5e-2, "1 GPU in float16 with a loss scale of 1024");
  if (world_.rank() != 0) return;
  // The scale is that of the mean loss: the gradient of the sum has it over 32, the power of two above the batch.
  EXPECT_EQ(exact.first_count, batch);
  EXPECT_EQ(fp16.first_count, 65536.0 / 32 * batch);
  EXPECT_EQ(scaled.first_count, 1024.0 / 32 * batch);
}

// Images of 16 x 16 pixels end as one each, of which a batch norm makes much: 0.25 of the gradient in bfloat16.
TEST_F(GpuBatchNormLaws, law1_holds_in_half_precision_to_its_precision) {
  constexpr std::int64_t steps = 1;
  write_images(16);
  const auto in = [&](const char* precision, const std::string& run) {
    TrainOptions result = options(run, steps);
    result.model.precision = precision;
    return result;
  };
  const Trace exact = train_on("c", in("fp32", "exact"));
  const auto compare = [&](const Trace& trace, double losses, double gradients, double statistics,
                           const std::string& what) {
    expect_same(exact, trace, losses, gradients, what);
    if (world_.rank() == 0) {
      EXPECT_LT(relative_distance(trace.statistics, exact.statistics), statistics) << what;
    }
  };
  compare(train_on("gcg", with_weights(in("bf16", "bf16"), "1,2,0")), 2e-2, 0.4, 1e-2,
          "GPU, CPU, GPU in bfloat16 with shares 1:2:0");
  TrainOptions fp16 = in("fp16", "fp16");
  fp16.model.loss_scale = 1024;
  compare(train_on(gpus_only(2), fp16), 5e-3, 0.1, 2e-3, "up to 2 GPUs in float16");
}

TEST_F(GpuImageLaws, law4_a_stopped_and_continued_run_is_the_run_that_was_never_stopped) {
  constexpr std::int64_t steps = 6, stop = 4;
  for (const char* precision : {"fp32", "fp16"}) {
    const Devices devices = precision == std::string("fp32") ? "gcg" : gpus_only(3);
    TrainOptions whole = with_weights(options(std::string("whole") + precision, steps), "3,1,2");
    whole.model.precision = precision;
    TrainOptions first = whole;
    first.save.save_dir = path_ + "/parts" + precision;
    first.max_update = stop;
    TrainOptions second = first;
    second.max_update = steps;
    const Trace uninterrupted = train_on(devices, whole), before = train_on(devices, first),
                after = train_on(devices, second);
    if (takes_part(devices)) expect_continued(uninterrupted, before, after, steps, stop, devices);
    if (!all_well()) return;
  }
}

TEST_F(GpuBertLaws, law4_a_stopped_and_continued_run_is_the_run_that_was_never_stopped) {
  constexpr std::int64_t steps = 17, stop = 15;  // 15 steps an epoch
  for (const char* precision : {"fp32", "fp16"}) {
    const Devices devices = precision == std::string("fp32") ? "ggc" : gpus_only(3);
    TrainOptions whole = with_weights(options(std::string("whole") + precision, steps), "3,1,2");
    whole.model.precision = precision;
    whole.optimizer.name = "lamb";
    TrainOptions first = whole;
    first.save.save_dir = path_ + "/parts" + precision;
    first.max_update = stop;
    TrainOptions second = first;
    second.max_update = steps;
    const Trace uninterrupted = train_on(devices, whole), before = train_on(devices, first),
                after = train_on(devices, second);
    if (takes_part(devices)) expect_continued(uninterrupted, before, after, steps, stop, precision);
    if (!all_well()) return;
  }
}

TEST_F(GpuBertLaws, runs_have_the_same_bits_in_every_order_of_threads_and_streams) {
  constexpr std::int64_t steps = 4;
  for (const Devices devices : {"gggg", "ggcc"}) {
    std::vector<Trace> traces;
    for (const std::uint64_t order : {1u, 2u, 3u}) {
      test::set_gpu_order(100 * order + static_cast<std::uint64_t>(world_.rank()));
      TrainOptions again = options("order" + devices + std::to_string(order), steps);
      again.deterministic = true;
      traces.push_back(train_on(devices, again));
    }
    for (const Trace& trace : traces) {
      EXPECT_EQ(trace.losses, traces[0].losses) << devices;
      EXPECT_TRUE(same_bits(trace.parameters, traces[0].parameters)) << devices;
    }
    if (!all_well()) return;
  }
}

TEST_F(GpuImageLaws, runs_have_the_same_bits_in_every_order_of_threads_and_streams) {
  constexpr std::int64_t steps = 4;
  std::vector<Trace> traces;
  for (const std::uint64_t order : {1u, 2u, 3u}) {
    test::set_gpu_order(100 * order + static_cast<std::uint64_t>(world_.rank()));
    TrainOptions again = options("order" + std::to_string(order), steps);
    again.deterministic = true;
    traces.push_back(train_on("ggc", again));
  }
  for (const Trace& trace : traces) {
    EXPECT_EQ(trace.losses, traces[0].losses);
    EXPECT_TRUE(same_bits(trace.parameters, traces[0].parameters));
  }
}

TEST_F(GpuBertLaws, local_steps_average_parameters_over_gpus_and_cpus) {
  TrainOptions local = options("local", 8);
  local.batch.local_steps = 4;
  const Trace cpu = train_on("ccc", local);
  local.save.save_dir = path_ + "/local_mixed";
  const Trace mixed = train_on("gcg", local);
  if (world_.rank() != 0) return;
  ASSERT_EQ(cpu.parameters.size(), mixed.parameters.size());
  EXPECT_LT(relative_distance(mixed.parameters, cpu.parameters), 1e-4);
}

}  // namespace
}  // namespace motley::train
