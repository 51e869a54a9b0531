// The other commands and options on simulated GPUs, and on GPUs and CPUs in one job: validation, eval, probe and plan,
// memory limits, float16 across a stop, and the choice of cards.
#include "system/program/gpu_program.h"

#include <filesystem>

namespace motley::test {
namespace {

namespace fs = std::filesystem;

class GpuCommands : public GpuProgram {
 protected:
  GpuCommands() { write_learnable_bert_shards(data("train/held-out"), {{24}}, 6); }

  static const std::vector<Environment>& devices() {
    static const std::vector<Environment> all{two_gpus, {{"MOTLEY_SIM_GPUS", "0"}}};
    return all;
  }

  // Losses of the validations that metrics.jsonl holds.
  std::vector<double> validation_losses(const std::string& run) const {
    return values_of(data(run), "loss", "valid");
  }

  // mpirun's words for ranks with a GPU and, after them, ranks without, that run one command.
  std::vector<std::string> mixed(int gpus, int cpus, const std::vector<std::string>& arguments) const {
    std::vector<std::string> words;
    const auto add = [&](int ranks, const char* device) {
      if (!words.empty()) words.insert(words.end(), {":", "-n", std::to_string(ranks)});
      words.push_back(motley_program());
      words.insert(words.end(), arguments.begin(), arguments.end());
      words.insert(words.end(), {"--device", device});
    };
    add(gpus, "cuda");
    add(cpus, "cpu");
    return mpirun_command(gpus, words);
  }

  static void expect_near(const std::vector<double>& values, const std::vector<double>& expected) {
    ASSERT_EQ(values.size(), expected.size());
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-4 * expected[i]);
  }
};

TEST_F(GpuCommands, validation_and_eval_give_what_cpus_give) {
  const std::vector<std::string> options = {"--valid-subset", "held-out", "--validate-interval", "1",
                                            "--max-update",   "6"};
  std::vector<std::vector<double>> losses_of;
  for (const std::string run : {"gpus", "cpus"}) {
    const MpiRun job = run_motley(2, train(options, run), 120, devices()[run == "gpus" ? 0 : 1]);
    ASSERT_EQ(job.job.exit_code, 0) << job.job.err;
    losses_of.push_back(validation_losses(run));
    ASSERT_FALSE(losses_of.back().empty());
  }
  expect_near(losses_of[0], losses_of[1]);

  // One checkpoint, evaluated by GPUs, by CPUs, and by both.
  const std::vector<std::string> words = {"eval",        "--task",          "bert",     "--data",
                                          data("train"), "--valid-subset",  "held-out", "--save-dir",
                                          data("gpus"),  "--max-sentences", "4",        "--log-format",
                                          "json"};
  std::vector<double> evaluated;
  for (const Environment& environment : devices()) {
    const MpiRun job = run_motley(2, words, 120, environment);
    ASSERT_EQ(job.job.exit_code, 0) << job.job.err;
    evaluated.push_back(Json::parse(job.job.out)["loss"].get<double>());
  }
  const Finished both = run_program(mixed(2, 1, words), 120, two_gpus);
  ASSERT_EQ(both.exit_code, 0) << both.err;
  evaluated.push_back(Json::parse(both.out)["loss"].get<double>());
  expect_near(evaluated, std::vector<double>(3, losses_of[1].back()));
}

TEST_F(GpuCommands, a_probe_measures_gpus_and_cpus_and_plan_divides_among_them) {
  const std::vector<std::string> words = {"probe",
                                          "--task",
                                          "bert",
                                          "--config-file",
                                          data("bert_config.json"),
                                          "--data",
                                          data("train"),
                                          "--max-sentences",
                                          "4",
                                          "--seconds",
                                          "0.05",
                                          "--out",
                                          data("cluster.json")};
  const Finished probe = run_program(mixed(2, 1, words), 120, two_gpus);
  ASSERT_EQ(probe.exit_code, 0) << probe.err;
  const Json cluster = Json::parse(read_file(data("cluster.json"), ExitCode::input));
  ASSERT_EQ(cluster["ranks"].size(), 3u);
  for (const Json& rank : cluster["ranks"]) {
    EXPECT_GT(rank["sample_s"].get<double>(), 0);
    EXPECT_GT(rank["memory_limit_bytes"].get<double>(), rank["model_bytes"].get<double>());
  }
  EXPECT_NE(cluster.dump().find("Simulated GPU"), std::string::npos);
  const MpiRun plan = run_motley(
      1, {"plan", data("cluster.json"), "--global-batch", "12", "--log-format", "json"}, 60, two_gpus);
  ASSERT_EQ(plan.job.exit_code, 0) << plan.job.err;
  const auto shares = Json::parse(plan.job.out)["shares"].get<std::vector<int>>();
  ASSERT_EQ(shares.size(), 3u);
  EXPECT_EQ(shares[0] + shares[1] + shares[2], 12);
}

TEST_F(GpuCommands, memory_that_becomes_less_in_mid_run_changes_micro_batches_only) {
  const MpiRun whole = run_motley(2, train({}, "whole"), 120, two_gpus);
  ASSERT_EQ(whole.job.exit_code, 0) << whole.job.err;
  // Beside the model and what the matrix products work in, two samples take less than that, four take more.
  const MpiRun limited = run_motley(2, train({"--memory-limit", "1:8900K@3"}, "limited"), 120, two_gpus);
  ASSERT_EQ(limited.job.exit_code, 0) << limited.job.err;
  EXPECT_NE(limited.job.err.find("the memory limit is now"), std::string::npos) << limited.job.err;
  expect_near(losses("limited"), losses("whole"));
  expect_failure(run_motley(2, train({"--memory-limit", "1:50K"}, "none"), 60, two_gpus), 6,
                 {"rank 1", "out of memory", "Simulated GPU"});
}

// Law 4 with a loss scale that is falling: one run stops while steps are skipped, right after one that was.
TEST_F(GpuCommands, float16_continues_after_a_step_that_was_skipped_to_the_same_bits) {
  const auto fp16 = [&](const std::string& run, const char* steps, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--precision", "fp16", "--max-update", steps, "--deterministic"});
    const MpiRun job = run_motley(2, train(more, run), 120, two_gpus);
    EXPECT_EQ(job.job.exit_code, 0) << job.job.err;
  };
  // Too large by far: every gradient overflows.
  for (const std::string run : {"whole", "stopped"}) fp16(run, "2", {"--loss-scale", "100000000"});
  fp16("whole", "16");
  fp16("stopped", "5");
  fp16("stopped", "16");
  const auto scales = [&](const std::string& run) {
    return values_of(data(run), "loss_scale", "loss_scale");
  };
  const std::vector<double> whole = scales("whole");
  ASSERT_EQ(whole.size(), 16u);
  EXPECT_LT(whole[5], whole[4]) << "the step after the stop must skip as well";
  EXPECT_LT(whole[4], whole[3]) << "the step before the stop must have been skipped";
  EXPECT_EQ(whole[15], whole[14]) << "the scale must have settled";
  EXPECT_EQ(scales("stopped"), whole);
  const auto model = [&](const std::string& run) {
    return read_file(fs::path(data(run)) / "latest" / "model.safetensors", ExitCode::input);
  };
  EXPECT_EQ(model("stopped"), model("whole"));
}

TEST_F(GpuCommands, ranks_that_see_overlapping_cards_take_one_each) {
  const auto seeing = [&](const std::string& first, const std::string& second, const std::string& run) {
    return run_program(job({{1, {"--device", "cuda"}, {"CUDA_VISIBLE_DEVICES=" + first}},
                            {1, {"--device", "cuda"}, {"CUDA_VISIBLE_DEVICES=" + second}}},
                           run),
                       120, two_gpus);
  };
  // The first may take either, and must leave the second the only one that it sees.
  const Finished overlap = seeing("0,1", "0", "overlap");
  ASSERT_EQ(overlap.exit_code, 0) << overlap.err;
  const Finished turned = seeing("1,0", "0,1", "turned");
  ASSERT_EQ(turned.exit_code, 0) << turned.err;
  expect_near(losses("turned"), losses("overlap"));
  const Finished same = seeing("1", "1", "same");
  EXPECT_EQ(same.exit_code, 6) << same.err;
  for (const char* words : {"1 GPU(s)", "2 of them"})
    EXPECT_NE(same.err.find(words), std::string::npos) << same.err;
}

TEST_F(GpuCommands, versions_of_nccl_are_compared_among_gpus_only) {
  const auto with_versions = [&](const std::string& second, const std::string& cpu, const std::string& run) {
    return run_program(job({{1, {"--device", "cuda"}, {"MOTLEY_SIM_NCCL_VERSION=22304"}},
                            {1, {"--device", "cpu"}, {"MOTLEY_SIM_NCCL_VERSION=" + cpu}},
                            {1, {"--device", "cuda"}, {"MOTLEY_SIM_NCCL_VERSION=" + second}}},
                           run),
                       120, two_gpus);
  };
  const Finished same = with_versions("22304", "21800", "same");
  EXPECT_EQ(same.exit_code, 0) << same.err;
  const Finished differ = with_versions("22100", "22304", "differ");
  EXPECT_EQ(differ.exit_code, 5) << differ.err;
  for (const char* words : {"NCCL", "2.23.4", "2.21.0", "rank"})
    EXPECT_NE(differ.err.find(words), std::string::npos) << differ.err;
}

}  // namespace
}  // namespace motley::test
