// What is noticed when a run of task bert goes on, or is judged, with something else than before; and what a
// limit on file sizes does.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/bert_shards.h"
#include "support/paths.h"
#include "support/subprocess.h"

namespace motley {
namespace {

namespace fs = std::filesystem;

class BertContinues : public ::testing::Test {
 protected:
  BertContinues() {
    test::write_learnable_bert_shards(at("data/train"), {{60, 40}}, 5);
    test::write_bert_config(at("bert_config.json"));
    test::write_bert_vocabulary(at("vocab.txt"));
  }

  std::string at(const std::string& name) const { return (directory_.path() / name).string(); }

  test::MpiRun run(const std::string& steps, const std::string& data = "data",
                   const std::string& config = "bert_config.json") const {
    return test::run_motley(2, {"train",
                                "--task",
                                "bert",
                                "--config_file",
                                at(config),
                                "--dict",
                                at("vocab.txt"),
                                "--data",
                                at(data),
                                "--save-dir",
                                at("run"),
                                "--optimizer",
                                "adamw",
                                "--lr",
                                "1e-3",
                                "--threads",
                                "1",
                                "--max-sentences",
                                "8",
                                "--max-update",
                                steps,
                                "--log-format",
                                "none",
                                "--allow-changed-options"});
  }

  test::TemporaryDirectory directory_;
};

TEST_F(BertContinues, another_network_of_the_same_shapes_is_warned_of) {
  ASSERT_EQ(run("2").job.exit_code, 0);
  test::write_bert_config(at("relu.json"), "relu");
  const test::MpiRun other = run("3", "data", "relu.json");
  EXPECT_EQ(other.job.exit_code, 0) << other.job.err;
  EXPECT_NE(other.job.err.find("hidden_act was \"gelu\", is \"relu\""), std::string::npos) << other.job.err;
  // The checkpoint of that run is one of relu.
  const test::MpiRun judged =
      test::run_motley(1, {"eval", "--task", "bert", "--config_file", at("bert_config.json"), "--data", at("data"),
                           "--valid-subset", "train", "--save-dir", at("run")});
  EXPECT_EQ(judged.job.exit_code, 0) << judged.job.err;
  EXPECT_NE(judged.job.err.find("hidden_act was \"relu\", is \"gelu\""), std::string::npos) << judged.job.err;
  const test::MpiRun same = run("4", "data", "relu.json");
  EXPECT_EQ(same.job.err.find("the network is not"), std::string::npos) << same.job.err;
}

TEST_F(BertContinues, another_vocabulary_and_another_layout_are_warned_of) {
  ASSERT_EQ(run("2").job.exit_code, 0);
  const test::MpiRun packed = test::run_motley(1, {"data", "pack", "--data", at("data"), "--out", at("train.h5")});
  ASSERT_EQ(packed.job.exit_code, 0) << packed.job.err;
  const test::MpiRun layout = run("3", "train.h5");
  EXPECT_EQ(layout.job.exit_code, 0) << layout.job.err;
  EXPECT_NE(layout.job.err.find("the layout of the training data was 2 shards"), std::string::npos)
      << layout.job.err;
  std::string text;
  {
    std::ifstream in(at("vocab.txt"));
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::ofstream(at("vocab.txt")) << text.substr(0, text.rfind("w59")) << "another\n";
  const test::MpiRun vocabulary = run("4", "train.h5");
  EXPECT_EQ(vocabulary.job.exit_code, 0) << vocabulary.job.err;
  EXPECT_NE(vocabulary.job.err.find("vocab.txt differs"), std::string::npos) << vocabulary.job.err;
}

// A limit on file sizes is a signal unless a program says otherwise; the reason is to be said instead.
TEST_F(BertContinues, a_limit_on_file_sizes_is_a_reason_and_not_a_death) {
  const std::string command = "ulimit -f 64; exec " + test::motley_program() + " train --task bert --config_file " +
                              at("bert_config.json") + " --data " + at("data") + " --save-dir " + at("run") +
                              " --max-update 2 --optimizer adamw --threads 1 --log-format none";
  // One rank, which needs no shared memory: that is files, too.
  const std::map<std::string, std::string> no_shared_memory{{"OMPI_MCA_btl", "self"}};
  const test::Finished finished =
      test::run_program(test::mpirun_command(1, {"sh", "-c", command}), 120, no_shared_memory);
  EXPECT_EQ(finished.exit_code, 4) << finished.err;
  EXPECT_NE(finished.err.find("File too large"), std::string::npos) << finished.err;
  for (const auto& entry : fs::directory_iterator(at("run")))
    EXPECT_EQ(entry.path().filename().string().find("step-"), std::string::npos) << entry.path();
}

}  // namespace
}  // namespace motley
