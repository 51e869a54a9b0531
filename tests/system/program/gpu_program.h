// What tests of the program on simulated GPUs share: a small BERT data set, the words of a run of it, and what
// the run left.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/files.h"
#include "core/json.h"
#include "support/bert_shards.h"
#include "support/expect_failure.h"
#include "support/metrics.h"
#include "support/paths.h"

namespace motley::test {

using Environment = std::map<std::string, std::string>;

class GpuProgram : public testing::Test {
 protected:
  GpuProgram() {
    write_learnable_bert_shards(data("train"), {{96}}, 5);
    write_bert_config(data("bert_config.json"));
  }

  std::string data(const std::string& name) const { return (directory_.path() / name).string(); }

  // `more` wins over what a run has otherwise.
  std::vector<std::string> train(const std::vector<std::string>& more = {},
                                 const std::string& run = "run") const {
    const std::vector<std::pair<std::string, std::string>> usual = {
        {"--task", "bert"},        {"--data", data("train")},   {"--config-file", data("bert_config.json")},
        {"--save-dir", data(run)}, {"--global-batch", "8"},     {"--max-sentences", "4"},
        {"--policy", "sync"},      {"--max-update", "4"},       {"--lr", "0.001"},
        {"--log-interval", "1"},   {"--validate-interval", "0"}};
    std::vector<std::string> arguments = {"train"};
    for (const auto& [name, value] : usual)
      if (std::find(more.begin(), more.end(), name) == more.end())
        arguments.insert(arguments.end(), {name, value});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // Task mnist on the set "images", with these options.
  std::vector<std::string> train_images(const std::vector<std::string>& options,
                                        const std::string& run) const {
    std::vector<std::string> arguments = {"train",      "--task",  "mnist",          "--data", data("images"),
                                          "--save-dir", data(run), "--log-interval", "1"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return arguments;
  }

  // Losses of metrics.jsonl.
  std::vector<double> losses(const std::string& run = "run") const {
    return values_of(data(run), "loss", "lr");
  }

  // The words of mpirun for a rank or several on each of `parts`, each with options and variables of its own.
  struct Part {
    int ranks;
    std::vector<std::string> options;
    std::vector<std::string> variables = {};  // "NAME=value"
  };
  std::vector<std::string> job(const std::vector<Part>& parts, const std::string& run = "run") const {
    std::vector<std::string> words;
    for (const Part& part : parts) {
      if (!words.empty()) words.insert(words.end(), {":", "-n", std::to_string(part.ranks)});
      words.emplace_back("env");
      words.insert(words.end(), part.variables.begin(), part.variables.end());
      words.push_back(motley_program());
      const std::vector<std::string> arguments = train(part.options, run);
      words.insert(words.end(), arguments.begin(), arguments.end());
    }
    return mpirun_command(parts.front().ranks, words);
  }

  // Ends of the job that only one rank knows the reason of: mpirun's own code, and the sentence.
  static void expect_ended(const MpiRun& run, int code, const std::vector<std::string>& words) {
    EXPECT_EQ(run.job.exit_code, code) << run.job.err;
    for (const std::string& word : words)
      EXPECT_NE(run.job.err.find(word), std::string::npos) << word << "\n" << run.job.err;
  }

  TemporaryDirectory directory_;
};

inline const Environment two_gpus{{"MOTLEY_SIM_GPUS", "2"}};

inline Environment with(Environment environment, const std::string& name, const std::string& value) {
  environment[name] = value;
  return environment;
}

}  // namespace motley::test
