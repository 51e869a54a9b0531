// Training on simulated GPUs, alone and with CPUs, while races are looked for (tests/sim/races.h).
#include <filesystem>

#include "system/program/gpu_program.h"

namespace motley::test {
namespace {

class GpuRaces : public GpuProgram, public testing::WithParamInterface<const char*> {
 protected:
  Environment in_order() const { return with(two_gpus, "MOTLEY_SIM_ORDER", GetParam()); }
};

TEST_P(GpuRaces, none_while_gpus_train) {
  const MpiRun run = run_motley(2, train({"--device", "cuda", "--clip-norm", "1"}), 300, in_order());
  EXPECT_EQ(run.job.exit_code, 0) << run.job.err;
  EXPECT_EQ(losses().size(), 4u);
}

TEST_P(GpuRaces, none_in_half_precision_with_recomputed_layers) {
  const MpiRun run = run_motley(2,
                                train({"--device", "cuda", "--precision", "fp16", "--recompute",
                                       "--allreduce-dtype", "bf16", "--optimizer", "lamb"}),
                                300, in_order());
  EXPECT_EQ(run.job.exit_code, 0) << run.job.err;
}

TEST_P(GpuRaces, none_while_gpus_and_cpus_train_together) {
  const Finished run =
      run_program(job({{2, {"--device", "cuda"}}, {1, {"--device", "cpu"}}}), 300, in_order());
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

TEST_P(GpuRaces, none_in_a_convolutional_network) {
  std::filesystem::create_directory(directory_.path() / "images");
  write_learnable_images(directory_.path() / "images" / "train.h5", 256, 1);
  for (const std::string precision : {"fp32", "fp16"}) {
    const MpiRun run = run_motley(2,
                                  train_images({"--precision", precision, "--global-batch", "16",
                                                "--max-update", "4", "--device", "cuda"},
                                               "run" + precision),
                                  300, in_order());
    EXPECT_EQ(run.job.exit_code, 0) << run.job.err;
  }
}

INSTANTIATE_TEST_SUITE_P(, GpuRaces, testing::Values("1", "2", "3"),
                         [](const auto& order) { return std::string("order_") + order.param; });

}  // namespace
}  // namespace motley::test
