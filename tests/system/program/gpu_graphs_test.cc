// Training with and without CUDA graphs on simulated GPUs: the same bits, few graphs, and runs that go on without them.
#include <filesystem>
#include <fstream>

#include "system/program/gpu_program.h"

namespace motley::test {
namespace {

namespace fs = std::filesystem;

class GpuGraphs : public GpuProgram {
 protected:
  GpuGraphs() {
    fs::create_directory(directory_.path() / "images");
    write_learnable_images(directory_.path() / "images" / "train.h5", 96, 1);  // 8 whole steps
  }

  // Steps of several micro-batches on each of two ranks, with dropout (resnet8: with batch norm).
  std::vector<std::string> words(const std::string& task, const std::string& run,
                                 std::vector<std::string> more = {},
                                 const std::string& device = "cuda") const {
    more.insert(more.end(), {"--device", device, "--deterministic", "--global-batch", "12"});
    if (std::find(more.begin(), more.end(), "--max-sentences") == more.end())
      more.insert(more.end(), {"--max-sentences", "2"});
    if (task == "bert") return train(more, run);
    more.insert(more.end(), {"--policy", "sync", "--lr", "0.1"});
    if (task == "mnist") return train_images(more, run);
    more.insert(more.end(), {"--arch", task, "--no-sync-bn"});
    std::vector<std::string> all = train_images(more, run);
    std::replace(all.begin(), all.end(), std::string("mnist"), std::string("images"));
    return all;
  }

  // Trains so many steps and gives what rank 0 called how often.
  std::map<std::string, std::uint64_t> calls(int ranks, const std::vector<std::string>& words) const {
    std::vector<std::string> command{motley_program()};
    command.insert(command.end(), words.begin(), words.end());
    return calls_of(mpirun_command(ranks, command));
  }
  std::map<std::string, std::uint64_t> calls_of(const std::vector<std::string>& command) const {
    const std::string notes = data("calls");
    const Finished run = run_program(command, 120, with(two_gpus, "MOTLEY_SIM_CALLS", notes));
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err.find("left out"), std::string::npos) << run.err;
    std::map<std::string, std::uint64_t> calls;
    std::ifstream file(notes + ".0");
    std::uint64_t count = 0;
    for (std::string call; file >> call >> count;) calls[call] = count;
    return calls;
  }

  void expect_same_bits(const std::string& run, const std::string& other) const {
    for (const char* field : {"loss", "grad_norm"})
      EXPECT_EQ(values_of(data(run), field, "lr"), values_of(data(other), field, "lr")) << field;
    const auto model = [&](const std::string& of) {
      return read_file(fs::path(data(of)) / "latest" / "model.safetensors", ExitCode::input);
    };
    EXPECT_TRUE(model(run) == model(other));
  }
};

TEST_F(GpuGraphs, training_has_the_same_bits_with_and_without) {
  for (const std::string task : {"bert", "mnist", "resnet8"}) {
    for (const auto& [ranks, precision] : {std::pair{1, "bf16"}, {2, "fp32"}, {2, "fp16"}}) {
      SCOPED_TRACE(fmt::format("{} on {} in {}", task, ranks, precision));
      const std::string name = fmt::format("{}{}{}", task, ranks, precision);
      const std::vector<std::string> more = {"--max-update", "5", "--precision", precision};
      std::vector<std::string> without = more;
      without.emplace_back("--no-cuda-graph");
      const auto graphs = calls(ranks, words(task, name, more)),
                 none = calls(ranks, words(task, name + "-none", without));
      EXPECT_GT(graphs.at("cudaGraphLaunch"), 6u);
      EXPECT_FALSE(none.contains("cudaStreamBeginCapture"));
      ASSERT_EQ(losses(name).size(), 5u);
      expect_same_bits(name, name + "-none");
    }
  }
  const std::string config = read_file(data("bert1bf16") + "/config.ini", ExitCode::input);
  EXPECT_NE(config.find("\ncuda-graph = true\n"), std::string::npos) << config;
}

// NCCL has one rank here: the gradients leave the device in the middle of a stretch, for MPI.
TEST_F(GpuGraphs, a_gpu_beside_a_cpu_has_the_same_bits_with_and_without) {
  for (const std::string task : {"bert", "resnet8"}) {
    const auto train_mixed = [&](const std::string& run, const char* option) {
      std::vector<std::string> command;
      for (const char* device : {"cuda", "cpu"}) {
        if (!command.empty()) command.insert(command.end(), {":", "-n", "1"});
        command.push_back(motley_program());
        const auto rank = words(task, run, {"--max-update", "5", option}, device);
        command.insert(command.end(), rank.begin(), rank.end());
      }
      return calls_of(mpirun_command(1, command));
    };
    SCOPED_TRACE(task);
    EXPECT_GT(train_mixed(task, "--cuda-graph").at("cudaGraphLaunch"), 6u);
    EXPECT_FALSE(train_mixed(task + "-none", "--no-cuda-graph").contains("cudaStreamBeginCapture"));
    ASSERT_EQ(losses(task).size(), 5u);
    expect_same_bits(task, task + "-none");
  }
}

// Once each kind of micro-batch has been run, rehearsed and made into graphs, a step makes no graph any more.
TEST_F(GpuGraphs, a_micro_batch_is_one_launch_and_steps_make_no_new_graphs) {
  for (const std::string task : {"bert", "mnist"}) {
    SCOPED_TRACE(task);
    // Nothing cuts the stretches of local steps: their gradients go nowhere.
    const std::vector<std::string> local = {"--local-steps", "8", "--max-update"};
    const auto with_steps = [&](const char* steps, std::vector<std::string> more) {
      more.emplace_back(steps);
      return calls(1, words(task, task + steps + more.front(), more));
    };
    auto few = with_steps("4", local), many = with_steps("8", local);
    constexpr std::uint64_t steps = 4, micro_batches = 6;
    EXPECT_EQ(many["cudaGraphLaunch"] - few["cudaGraphLaunch"], steps * micro_batches);
    EXPECT_EQ(many["cudaStreamBeginCapture"] - few["cudaStreamBeginCapture"], steps * micro_batches);
    EXPECT_EQ(many["cudaGraphExecUpdate"] - few["cudaGraphExecUpdate"], steps * micro_batches);
    EXPECT_EQ(many["cudaGraphInstantiate"], few["cudaGraphInstantiate"]);
    // With sums over ranks the last one may be cut where buckets of gradients leave.
    few = with_steps("4", {"--max-update"}), many = with_steps("8", {"--max-update"});
    EXPECT_GE(many["cudaGraphLaunch"] - few["cudaGraphLaunch"], steps * micro_batches);
    EXPECT_LE(many["cudaGraphLaunch"] - few["cudaGraphLaunch"], steps * (micro_batches + 10));
    EXPECT_EQ(many["cudaGraphInstantiate"], few["cudaGraphInstantiate"]);
  }
}

// Captures that fail in the rehearsal, or in a pass none of whose gradients have left.
TEST_F(GpuGraphs, a_run_goes_on_without_graphs_where_they_are_refused) {
  const std::vector<std::string> more = {"--max-update", "4"};
  calls(2, words("mnist", "whole", more));
  for (const std::string fault :
       {"cudaStreamBeginCapture:1:801", "cudaStreamEndCapture:1:901", "cudaStreamEndCapture:2:901",
        "cudaGraphInstantiate:2:2", "cudaGraphLaunch:1:801"}) {
    SCOPED_TRACE(fault);
    const std::string name = "without" + std::to_string(fault.size()) + fault.substr(fault.find(':') + 1);
    const MpiRun run =
        run_motley(2, words("mnist", name, more), 120, with(two_gpus, "MOTLEY_SIM_FAULT", "1:" + fault));
    ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
    for (const std::string& word :
         {std::string("[rank 1] warning: CUDA graphs are left out"), std::string("on host "),
          fault.substr(0, fault.find(':')) + " failed on GPU", std::string("Simulated GPU")})
      EXPECT_NE(run.job.err.find(word), std::string::npos) << word << "\n" << run.job.err;
    expect_same_bits(name, "whole");
  }
}

// The share in one micro-batch, which is the ordinary case: nothing of it is with other ranks, whenever a graph fails. The
// running statistics of batch norm move once.
TEST_F(GpuGraphs, one_rank_goes_on_without_graphs_whenever_they_fail) {
  for (const std::string arch : {"mnist", "resnet8"}) {
    const auto run = [&](const std::string& name, const std::string& fault) {
      const MpiRun done =
          run_motley(1, {"train",        "--task",         "images",   "--arch",         arch, "--data",
                         data("images"), "--save-dir",     data(name), "--global-batch", "12", "--lr",
                         "0.05",         "--log-interval", "1",        "--max-update",   "5",  "--device",
                         "cuda",         "--deterministic"},
                     120, with(two_gpus, "MOTLEY_SIM_FAULT", fault));
      EXPECT_EQ(done.job.exit_code, 0) << done.job.err;
      return done.job.err;
    };
    const std::string whole = arch + "-whole";
    EXPECT_EQ(run(whole, "").find("left out"), std::string::npos);
    for (const std::string fault : {"cudaStreamEndCapture:2:901", "cudaStreamEndCapture:4:901",
                                    "cudaGraphLaunch:1:801", "cudaGraphExecUpdate:2:801"}) {
      SCOPED_TRACE(arch + " " + fault);
      const std::string name = fmt::format("{}-{}", arch, fault.substr(0, fault.rfind(':')));
      const std::string said = run(name, "0:" + fault);
      EXPECT_NE(said.find(fault.substr(0, fault.find(':')) + " failed on GPU"), std::string::npos) << said;
      expect_same_bits(name, whole);
    }
  }
}

// Shares of one micro-batch, whose gradients leave as they become ready: the first graphs of a pass, which the third step is
// the first to have, come before any of them.
TEST_F(GpuGraphs, several_ranks_go_on_as_long_as_no_gradients_have_left) {
  for (const std::string task : {"mnist", "resnet8"}) {
    std::vector<std::string> more = {"--max-update", "4", "--max-sentences", "6"};
    if (task == "mnist") more.insert(more.end(), {"--precision", "bf16"});
    calls(2, words(task, task, more));
    for (const std::string capture : {"1", "2"}) {
      SCOPED_TRACE(task + " " + capture);
      const std::string name = task + capture;
      const MpiRun run =
          run_motley(2, words(task, name, more), 60,
                     with(two_gpus, "MOTLEY_SIM_FAULT", "1:cudaStreamEndCapture:" + capture + ":901"));
      ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
      EXPECT_NE(run.job.err.find("[rank 1] warning: CUDA graphs are left out"), std::string::npos)
          << run.job.err;
      expect_same_bits(name, task);
    }
  }
}

// The last capture is of a micro-batch whose first gradients are with the other ranks: it cannot be done again.
TEST_F(GpuGraphs, a_capture_that_fails_too_late_ends_the_run_with_its_sentence) {
  const std::vector<std::string> more = {"--max-update", "5"};
  const auto made = calls(2, words("mnist", "whole", more));
  const std::string fault =
      "0:cudaStreamEndCapture:" + std::to_string(made.at("cudaStreamEndCapture")) + ":901";
  expect_ended(run_motley(2, words("mnist", "late", more), 60, with(two_gpus, "MOTLEY_SIM_FAULT", fault)), 6,
               {"rank 0", "host", "cudaStreamEndCapture failed on GPU", "--no-cuda-graph"});
}

TEST_F(GpuGraphs, memory_that_ends_while_graphs_are_in_use_halves_micro_batches) {
  const MpiRun whole = run_motley(2, train({"--max-update", "8"}, "whole"), 120, two_gpus);
  ASSERT_EQ(whole.job.exit_code, 0) << whole.job.err;
  const MpiRun limited =
      run_motley(2, train({"--max-update", "8", "--memory-limit", "1:8900K@5"}, "limited"), 120, two_gpus);
  ASSERT_EQ(limited.job.exit_code, 0) << limited.job.err;
  EXPECT_NE(limited.job.err.find("the memory limit is now"), std::string::npos) << limited.job.err;
  const std::vector<double> mine = losses("limited"), expected = losses("whole");
  ASSERT_EQ(mine.size(), 8u);
  for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_NEAR(mine[i], expected[i], 1e-4 * expected[i]);
}

TEST_F(GpuGraphs, without_gpus_the_option_plays_no_part_and_who_asks_for_it_is_told) {
  const auto on_cpus = [&](const std::string& run, std::vector<std::string> more) {
    more.insert(more.end(), {"--device", "cpu", "--max-update", "1"});
    const MpiRun job = run_motley(2, train(more, run), 120, two_gpus);
    EXPECT_EQ(job.job.exit_code, 0) << job.job.err;
    EXPECT_NE(read_file(data(run) + "/config.ini", ExitCode::input).find("\n# cuda-graph = \n"),
              std::string::npos);
    return job.job.err;
  };
  EXPECT_EQ(on_cpus("unasked", {}).find("--cuda-graph"), std::string::npos);
  EXPECT_EQ(on_cpus("no", {"--no-cuda-graph"}).find("--cuda-graph"), std::string::npos);
  const std::string told = on_cpus("asked", {"--cuda-graph"});
  EXPECT_NE(told.find("--cuda-graph plays no part"), std::string::npos) << told;
}

}  // namespace
}  // namespace motley::test
