// Law 5 on simulated GPUs: ranks that are killed or stopped, calls that fail, memory that ends.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <regex>

#include "support/background_job.h"
#include "system/program/gpu_program.h"

namespace motley::test {
namespace {

namespace fs = std::filesystem;

// --- Ranks that are gone ----------------------------------------------------------------------------------

struct Gone {
  const char* name;
  const char* devices;  // a letter per rank, g before c
  int victim;
  int signal;
};

void PrintTo(const Gone& gone, std::ostream* out) {
  *out << gone.name;
}

class GpuRanksGone : public GpuProgram, public testing::WithParamInterface<Gone> {};

// Whoever is gone, the others wait no longer than the deadline, say so, and end.
TEST_P(GpuRanksGone, the_others_end_within_the_deadline) {
  const Gone& gone = GetParam();
  const std::string devices = gone.devices;
  const auto gpus = static_cast<int>(std::count(devices.begin(), devices.end(), 'g'));
  const auto ranks = static_cast<int>(devices.size());
  const fs::path notes = directory_.path() / "notes";
  std::vector<std::string> words;
  const auto add = [&](int count, const char* device) {
    std::vector<std::string> program =
        train({"--device", device, "--max-update", "100000", "--timeout", "3", "--no-save"});
    program.insert(program.begin(), motley_program());
    program = BackgroundJob::noting(notes, program);
    if (!words.empty()) program.insert(program.begin(), {":", "-n", std::to_string(count)});
    words.insert(words.end(), program.begin(), program.end());
  };
  add(gpus, "cuda");
  if (gpus < ranks) add(ranks - gpus, "cpu");
  words = mpirun_command(gpus, words);
  // mpirun ends a job of which a process was killed, as not every launcher does; told not to, it says 0 at the end.
  if (gone.signal == SIGKILL)
    words.insert(std::find(words.begin(), words.end(), "--oversubscribe"), "--enable-recovery");

  BackgroundJob job(notes, words, {{"MOTLEY_SIM_GPUS", "2"}});
  ASSERT_TRUE(wait_until([&] { return job.all_run(ranks) && lines_of(data("run") + "/metrics.jsonl") > 3; }))
      << job.log();
  const auto began = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(job.rank(gone.victim), gone.signal), 0);
  const int code = job.exit_code(30);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  ::kill(job.rank(gone.victim), SIGKILL);
  if (gone.signal == SIGKILL) {
    // mpirun repeats the code, or (Open MPI 4.1.4, now and then) fails to read or show the message that says it.
    EXPECT_EQ(code, 0) << job.log();
    EXPECT_TRUE(std::regex_search(job.log(), std::regex("with errorcode 5\\.|ORTE_ERROR_LOG: ")))
        << job.log();
  } else {
    EXPECT_EQ(code, 5) << job.log();
  }
  EXPECT_LT(seconds, 3 + 10) << job.log();
  EXPECT_TRUE(std::regex_search(
      job.log(),
      std::regex(
          R"(rank [0-9] \(host [^ ()]+\) waited 3 s for (gradient bucket [0-9]+|the [a-z]+)|nothing has moved for 3)")))
      << job.log();
  for (int rank = 0; rank < ranks; ++rank)
    EXPECT_TRUE(wait_until([&] { return ::kill(job.rank(rank), 0) != 0; }))
        << "rank " << rank << " still runs";
}

INSTANTIATE_TEST_SUITE_P(, GpuRanksGone,
                         testing::Values(Gone{"a_gpu_killed", "gg", 1, SIGKILL},
                                         Gone{"a_gpu_stopped", "gg", 1, SIGSTOP},
                                         Gone{"the_first_gpu_stopped", "gg", 0, SIGSTOP},
                                         Gone{"the_leader_of_a_mixed_run_killed", "ggc", 0, SIGKILL},
                                         Gone{"the_leader_of_a_mixed_run_stopped", "ggc", 0, SIGSTOP},
                                         Gone{"a_gpu_of_a_mixed_run_stopped", "ggc", 1, SIGSTOP},
                                         Gone{"a_cpu_killed", "ggc", 2, SIGKILL},
                                         Gone{"a_cpu_stopped", "ggc", 2, SIGSTOP}),
                         [](const auto& gone) { return gone.param.name; });

// --- Calls that fail --------------------------------------------------------------------------------------

class GpuCalls : public GpuProgram {
 protected:
  GpuCalls() {
    fs::create_directory(directory_.path() / "images");
    write_learnable_images(directory_.path() / "images" / "train.h5", 64, 1);
    write_learnable_images(directory_.path() / "images" / "test.h5", 16, 2);
  }

  // A short run of each network that has calls of its own, with checkpoints and validation.
  std::vector<std::string> words_of(const std::string& task, const std::string& run) const {
    if (task == "bert")
      return train(
          {"--max-update", "3", "--save-interval-updates", "2", "--clip-norm", "1", "--timeout", "5"}, run);
    return train_images({"--valid-subset", "test", "--global-batch", "8", "--max-update", "3",
                         "--save-interval-updates", "2", "--timeout", "5"},
                        run);
  }

  // How often rank 1 of such a run makes each call.
  std::map<std::string, std::uint64_t> calls_of(const std::string& task) const {
    const MpiRun run = run_motley(2, words_of(task, "counted-" + task), 120,
                                  with(two_gpus, "MOTLEY_SIM_CALLS", data("calls-" + task)));
    EXPECT_EQ(run.job.exit_code, 0) << run.job.err;
    std::ifstream file(data("calls-" + task) + ".1");
    std::map<std::string, std::uint64_t> calls;
    std::uint64_t count = 0;
    for (std::string call; file >> call >> count;) calls[call] = count;
    return calls;
  }

  // An error that no run survives: of CUDA "unspecified launch failure", as of a card that has fallen off the bus; of
  // the libraries their internal error.
  static const char* code_of(const std::string& call) {
    if (call.starts_with("cublas")) return "14";
    if (call.starts_with("cudnn")) return "4000";
    return call.starts_with("nccl") ? "3" : "719";
  }

  void expect_same_losses(const std::string& run, const std::string& other) const {
    const std::vector<double> mine = losses(run), expected = losses(other);
    ASSERT_EQ(mine.size(), expected.size());
    for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_NEAR(mine[i], expected[i], 1e-4 * expected[i]);
  }

  // What is left of a run holds no checkpoint that is not whole.
  void expect_whole_checkpoints(const std::string& run) const {
    if (!fs::exists(data(run))) return;
    for (const auto& entry : fs::directory_iterator(data(run))) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("step-") || name.find("tmp") != std::string::npos) continue;
      ASSERT_TRUE(fs::exists(entry.path() / "MANIFEST.json")) << entry.path();
      const Json manifest = Json::parse(read_file(entry.path() / "MANIFEST.json", ExitCode::input));
      for (const Json& file : manifest["files"])
        EXPECT_EQ(fs::file_size(entry.path() / file["name"].get<std::string>()),
                  file["size"].get<std::size_t>());
    }
  }
};

// Calls that only give back what a run had, or ask for what went wrong: a failure there ends no run, and what follows
// reports a device that is lost. Of CUDA's runtime it is said.
bool gives_back(const std::string& call) {
  return call.find("Destroy") != std::string::npos || call.find("Free") != std::string::npos ||
         call == "cudaGetLastError" || call == "ncclCommFinalize";
}

// One call of each kind fails, its first, a middle or the last one; with MOTLEY_TEST_EVERY_CALL all three of them.
TEST_F(GpuCalls, any_call_that_fails_ends_the_run_with_a_sentence) {
  const bool every = std::getenv("MOTLEY_TEST_EVERY_CALL") != nullptr;
  std::size_t turn = 0, runs = 0;
  for (const std::string task : {"bert", "mnist"}) {
    const std::map<std::string, std::uint64_t> calls = calls_of(task);
    ASSERT_GT(calls.size(), 20u);
    for (const auto& [call, count] : calls) {
      // The libraries' own calls are those of one network; the runtime's are the same in both.
      if (task == "mnist" && !call.starts_with("cudnn") && !every) continue;
      const std::uint64_t occurrences[] = {1, (count + 1) / 2, count};
      std::uint64_t before = 0;
      for (std::size_t i = 0; i < 3; ++i) {
        if (occurrences[i] == before || (!every && (turn % 3 != i || turn % 4 != 0))) continue;
        before = occurrences[i];
        ++runs;
        const std::string fault = "1:" + call + ":" + std::to_string(occurrences[i]) + ":" + code_of(call);
        SCOPED_TRACE(task + ", " + fault);
        const std::string name = "run" + std::to_string(runs);
        const MpiRun run = run_motley(2, words_of(task, name), 40, with(two_gpus, "MOTLEY_SIM_FAULT", fault));
        const int code = run.job.exit_code;
        const std::string& err = run.job.err;
        expect_whole_checkpoints(name);
        if (gives_back(call) && code == 0) {
          const bool silent = !call.starts_with("cuda") || call == "cudaGetLastError";
          EXPECT_TRUE(silent || err.find(call + " failed on") != std::string::npos) << err;
          continue;
        }
        // The backend waits once more before it goes.
        const bool last_wait = call == "cudaStreamSynchronize" && occurrences[i] == count;
        // A way of convolving that cuDNN refuses is not taken.
        // How often is polled depends on the machine: the poll that is to fail may not come.
        const bool late_poll =
            (call == "cudaEventQuery" || call == "ncclCommGetAsyncError") && occurrences[i] > 1;
        if ((call.starts_with("cudnn") || last_wait || late_poll) && code == 0) {
          expect_same_losses(name, "counted-" + task);
          continue;
        }
        EXPECT_TRUE(code == 5 || code == 6) << code << "\n" << err;
        EXPECT_TRUE(std::regex_search(err, std::regex("rank 1 \\(host [^ ()]+\\)"))) << err;
        // Before a device is open it has no name.
        EXPECT_TRUE(std::regex_search(err, std::regex("on (a GPU|GPU [0-9]+)"))) << err;
        // A kernel is known by its operation, and what NCCL finds by itself by what was waited for.
        if (!gives_back(call) && call != "cudaLaunchKernel" && call != "ncclCommGetAsyncError") {
          EXPECT_NE(err.find(call), std::string::npos) << err;
        }
      }
      ++turn;
    }
  }
  std::printf("%zu runs\n", runs);
  EXPECT_GT(runs, 10u);
}

// The device has no more memory at some allocation: the run ends with a sentence, or goes on with smaller
// micro-batches to the same losses.
TEST_F(GpuCalls, memory_that_ends_anywhere_is_survived_or_said) {
  const std::uint64_t count = calls_of("bert").at("cudaMalloc");
  ASSERT_EQ(losses("counted-bert").size(), 3u);
  int survived = 0;
  for (std::uint64_t at = 1; at <= count; at += std::max<std::uint64_t>(1, count / 5)) {
    SCOPED_TRACE("cudaMalloc " + std::to_string(at) + " of " + std::to_string(count));
    const std::string name = "out" + std::to_string(at);
    const MpiRun run =
        run_motley(2, words_of("bert", name), 60,
                   with(two_gpus, "MOTLEY_SIM_FAULT", "1:cudaMalloc:" + std::to_string(at) + ":2"));
    if (run.job.exit_code == 0) {
      ++survived;
      expect_same_losses(name, "counted-bert");
    } else {
      expect_ended(run, 6, {"rank 1", "memory", "Simulated GPU"});
    }
  }
  EXPECT_GT(survived, 0) << "none was of a micro-batch";
}

}  // namespace
}  // namespace motley::test
