// The program on simulated GPUs (tests/sim): which device a rank takes, ranks with and without GPUs in one run,
// and what happens when a device or NCCL fails.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "system/program/gpu_program.h"

namespace motley::test {
namespace {

TEST_F(GpuProgram, takes_gpus_where_there_are_some_and_trains_as_on_cpus) {
  const MpiRun gpus = run_motley(2, train(), 120, two_gpus);
  ASSERT_EQ(gpus.job.exit_code, 0) << gpus.job.err;
  EXPECT_NE(gpus.job.err.find("Simulated GPU"), std::string::npos) << gpus.job.err;
  const std::vector<double> on_gpus = losses();
  const MpiRun cpus = run_motley(2, train({"--device", "cpu"}, "cpu"), 120, two_gpus);
  ASSERT_EQ(cpus.job.exit_code, 0) << cpus.job.err;
  EXPECT_EQ(cpus.job.err.find("Simulated GPU"), std::string::npos) << cpus.job.err;
  const std::vector<double> on_cpus = losses("cpu");
  ASSERT_EQ(on_gpus.size(), 4u);
  ASSERT_EQ(on_cpus.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(on_gpus[i], on_cpus[i], 1e-4 * on_cpus[i]);
}

TEST_F(GpuProgram, without_gpus_auto_uses_the_cpu_and_cuda_is_refused) {
  const Environment none{{"MOTLEY_SIM_GPUS", "0"}};
  const MpiRun cpus = run_motley(2, train(), 120, none);
  EXPECT_EQ(cpus.job.exit_code, 0) << cpus.job.err;
  expect_failure(run_motley(2, train({"--device", "cuda"}), 120, none), 6, {"--device cuda", "no NVIDIA GPU that this process may use on host"});
}

TEST_F(GpuProgram, more_ranks_than_gpus_is_an_error_with_the_counts) {
  expect_failure(run_motley(3, train(), 120, two_gpus), 6, {"2 GPU(s)", "3 of them"});
}

TEST_F(GpuProgram, ranks_with_gpus_and_ranks_without_train_together) {
  // Slurm gives each rank a card of its own to see; here the two see one each.
  std::vector<std::string> words;
  const auto add = [&](const char* ranks, const std::string& visible, const std::string& device) {
    if (!words.empty()) words.insert(words.end(), {":", "-n", ranks});
    words.insert(words.end(), {"env", "CUDA_VISIBLE_DEVICES=" + visible, motley_program()});
    const std::vector<std::string> arguments = train({"--device", device});
    words.insert(words.end(), arguments.begin(), arguments.end());
  };
  add("1", "1", "cuda");
  add("1", "0", "cuda");
  add("2", "", "cpu");
  const Finished mixed = run_program(mpirun_command(1, words), 120, two_gpus);
  ASSERT_EQ(mixed.exit_code, 0) << mixed.err;
  const std::vector<double> together = losses();
  const MpiRun alone = run_motley(1, train({"--device", "cpu"}, "cpu"), 120, two_gpus);
  ASSERT_EQ(alone.job.exit_code, 0) << alone.job.err;
  const std::vector<double> expected = losses("cpu");
  ASSERT_EQ(together.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(together[i], expected[i], 1e-4 * expected[i]);
}

TEST_F(GpuProgram, a_driver_that_is_too_old_is_named) {
  const Environment old = with(with(two_gpus, "MOTLEY_SIM_FAULT", "1:cudaGetDeviceCount:1:35"),
                               "MOTLEY_SIM_DRIVER", "11040");
  expect_failure(run_motley(2, train(), 120, old), 6, {"rank 1", "driver", "CUDA 11.4", "--device cpu"});
}

TEST_F(GpuProgram, a_gpu_that_the_build_has_no_code_for_is_named) {
  const Environment unknown = with(with(two_gpus, "MOTLEY_SIM_FAULT", "1:cudaFuncGetAttributes:1:209"),
                                   "MOTLEY_SIM_CAPABILITY", "61");
  expect_failure(run_motley(2, train(), 120, unknown), 6, {"rank 1", "sm_61", "built for the simulated device", "MOTLEY_CUDA_ARCHITECTURES"});
}

TEST_F(GpuProgram, too_little_memory_is_an_error_that_names_the_device) {
  expect_failure(run_motley(2, train(), 120, with(two_gpus, "MOTLEY_SIM_MEMORY", "100000")), 6,
                 {"out of memory", "Simulated GPU"});
}

TEST_F(GpuProgram, a_failing_call_ends_the_run_with_rank_host_device_and_call) {
  const std::vector<std::pair<std::string, int>> calls = {
      {"cudaMemcpyAsync", 10}, {"cudaLaunchKernel", 200}, {"cudaStreamSynchronize", 8},
      {"cudaEventRecord", 20}, {"cudaEventQuery", 2},     {"cublasLtMatmul", 30},
      {"cudaMalloc", 2}};
  for (const auto& [call, count] : calls) {
    SCOPED_TRACE(call);
    // 719: unspecified launch failure; what a card that has fallen off the bus gives from then on. cuBLAS has
    // statuses of its own: 14 is an internal error.
    const std::string code = call.starts_with("cublas") ? "14" : "719";
    const MpiRun run =
        run_motley(2, train({"--no-save"}, call), 60,
                   with(two_gpus, "MOTLEY_SIM_FAULT", "1:" + call + ":" + std::to_string(count) + ":" + code));
    // Where all ranks come together anyway, they agree on the sentence.
    expect_ended(run, 6, {"rank 1", "host", "Simulated GPU", call == "cudaLaunchKernel" ? "failed" : call});
  }
}

TEST_F(GpuProgram, an_error_of_nccl_ends_the_run) {
  // 6: a remote error.
  expect_ended(run_motley(2, train({"--timeout", "20"}), 60,
                          with(two_gpus, "MOTLEY_SIM_FAULT", "1:ncclCommGetAsyncError:6:6")),
               5, {"rank 1", "host", "remote process"});
  expect_ended(run_motley(2, train({"--timeout", "20"}), 60,
                          with(two_gpus, "MOTLEY_SIM_FAULT", "1:ncclAllReduce:3:3")),
               5, {"rank 1", "ncclAllReduce", "internal error"});
}

TEST_F(GpuProgram, different_versions_of_nccl_are_an_error_before_training) {
  std::vector<std::string> words;
  for (const char* version : {"22304", "22100"}) {
    if (!words.empty()) words.insert(words.end(), {":", "-n", "1"});
    words.insert(words.end(), {"env", std::string("MOTLEY_SIM_NCCL_VERSION=") + version, motley_program()});
    const std::vector<std::string> arguments = train();
    words.insert(words.end(), arguments.begin(), arguments.end());
  }
  const Finished run = run_program(mpirun_command(1, words), 60, two_gpus);
  EXPECT_EQ(run.exit_code, 5) << run.err;
  for (const char* word : {"NCCL", "2.23.4", "2.21.0"})
    EXPECT_NE(run.err.find(word), std::string::npos) << run.err;
}

// One that does not move ends the run: GpuRanksGone (gpu_faults_test.cc).
TEST_F(GpuProgram, a_gpu_rank_that_computes_for_longer_than_the_deadline_is_waited_for) {
  // Rank 1 is slow in its second step, in the middle of which rank 0 waits for the sum of gradients.
  const MpiRun run = run_motley(2, train({"--timeout", "2", "--slow", "1:+7s@2-2"}), 60, two_gpus);
  EXPECT_EQ(run.job.exit_code, 0) << run.job.err;
}

TEST_F(GpuProgram, float16_needs_a_gpu_on_every_rank) {
  const MpiRun gpus = run_motley(2, train({"--precision", "fp16"}), 120, two_gpus);
  EXPECT_EQ(gpus.job.exit_code, 0) << gpus.job.err;
  EXPECT_NE(read_file(data("run") + "/metrics.jsonl", ExitCode::input).find("loss_scale"), std::string::npos);
  expect_failure(
      run_motley(2, train({"--precision", "fp16", "--device", "cpu"}, "cpu"), 120, two_gpus),
      2, {"--precision fp16", "GPU"});
}

}  // namespace
}  // namespace motley::test
