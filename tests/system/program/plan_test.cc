// motley probe and motley plan, as a person uses them.
#include <gtest/gtest.h>

#include <filesystem>

#include "core/files.h"
#include "core/json.h"
#include "support/expect_failure.h"
#include "support/paths.h"
#include "support/subprocess.h"

namespace motley {
namespace {

namespace fs = std::filesystem;

class PlanProgram : public ::testing::Test {
 protected:
  test::MpiRun plan(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "plan");
    return test::run_motley(1, arguments);
  }
  Json plan_json(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--log-format", "json"});
    const test::MpiRun run = plan(arguments);
    EXPECT_EQ(run.job.exit_code, 0) << run.job.err;
    return Json::parse(run.job.out);
  }
  fs::path write(const std::string& name, const std::string& text) {
    write_file(directory.path() / name, text, ExitCode::input);
    return directory.path() / name;
  }

  test::TemporaryDirectory directory;
};

TEST_F(PlanProgram, a_probe_finds_the_slow_rank_and_the_plan_gives_it_less) {
  const fs::path data = directory.path() / "data", out = directory.path() / "cluster.json";
  fs::create_directory(data);
  test::write_learnable_images(data / "train.h5", 20, 1);  // fewer than the largest micro-batch
  const test::MpiRun run = test::run_motley(
      3, {"probe", "--task", "mnist", "--data", data.string(), "--max-sentences", "24", "--slow", "1:3x",
          "--memory-limit", "2:26M", "--seconds", "0.1", "--out", out.string()});
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  EXPECT_NE(run.job.out.find("samples/s"), std::string::npos) << run.job.out;

  const Json cluster = Json::parse(read_file(out, ExitCode::input));
  ASSERT_EQ(cluster["ranks"].size(), 3u);
  for (const Json& rank : cluster["ranks"]) {
    EXPECT_GT(rank["sample_s"].get<double>(), 0);
    EXPECT_GT(rank["fixed_s"].get<double>(), 0);
    EXPECT_GT(rank["sample_bytes"].get<double>(), 28 * 28 * 4) << "the input alone takes that";
    EXPECT_GT(rank["memory_limit_bytes"].get<double>(), rank["model_bytes"].get<double>());
    const Json& points = rank["measured"]["micro_batches"];
    ASSERT_GE(points.size(), 2u);
    EXPECT_GT(points[1]["bytes"].get<double>(), points[0]["bytes"].get<double>());
  }
  EXPECT_EQ(cluster["ranks"][0]["measured"]["micro_batches"].size(), 6u) << "1, 2, 4, 8, 16, 24";
  EXPECT_EQ(cluster["ranks"][0]["measured"]["micro_batches"][5]["n"], 24);
  EXPECT_EQ(cluster["ranks"][2]["memory_limit_bytes"], 26 << 20);
  EXPECT_LT(cluster["ranks"][2]["measured"]["micro_batches"].size(), 6u) << "there is no memory for 24";
  EXPECT_GT(cluster["network"]["bytes_per_s"].get<double>(), 0);
  EXPECT_GE(cluster["network"]["measured"]["all_reduces"].size(), 6u);

  const Json plan = plan_json({out.string(), "--global-batch", "300"});
  const auto shares = plan["shares"].get<std::vector<int>>();
  EXPECT_EQ(shares[0] + shares[1] + shares[2], 300);
  EXPECT_LT(shares[1], shares[0]) << "three times slower, on a busy machine";
  EXPECT_LT(shares[1], shares[2]);
  EXPECT_GT(plan["step_s"].get<double>(), 0);
  EXPECT_EQ(plan["nodes"].size(), 3u) << "a rank that plays another device counts as a machine of its own";
  EXPECT_EQ(plan["policies"].size(), 5u);
  EXPECT_EQ(plan_json({out.string()})["global_batch"], 3 * 24);
}

TEST_F(PlanProgram, a_random_delay_counts_at_its_mean_and_is_part_of_a_step_alone) {
  const fs::path data = directory.path() / "data", out = directory.path() / "cluster.json";
  fs::create_directory(data);
  test::write_learnable_images(data / "train.h5", 8, 1);
  const test::MpiRun run = test::run_motley(
      2, {"probe", "--task", "mnist", "--data", data.string(), "--max-sentences", "2", "--slow",
          "1:gamma(2,500ms),1:exp(3s)", "--seconds", "0.02", "--out", out.string()});
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  const Json ranks = Json::parse(read_file(out, ExitCode::input))["ranks"];
  EXPECT_LT(ranks[0]["fixed_s"].get<double>(), 1);
  EXPECT_GE(ranks[1]["fixed_s"].get<double>(), 2 * 0.5 + 3);
  EXPECT_LT(ranks[1]["fixed_s"].get<double>(), 2 * 0.5 + 3 + 1);
  for (const Json& point : ranks[1]["measured"]["micro_batches"])
    EXPECT_LT(point["seconds"].get<double>(), 1);
}

TEST_F(PlanProgram, says_for_a_made_up_cluster_whether_the_old_machine_is_worth_it) {
  const std::vector<std::string> arguments = {"--nodes",          "A100x4:1.0/40G, P100x2:0.21/16G",
                                              "--sample-ms",      "2",
                                              "--gradient-bytes", "440M",
                                              "--network",        "10G/20us",
                                              "--global-batch",   "512"};
  const test::MpiRun text = plan(arguments);
  ASSERT_EQ(text.job.exit_code, 0) << text.job.err;
  for (const char* word : {"P100", "faster with it", "efficiency", "limited by", "edp", "left out"})
    EXPECT_NE(text.job.out.find(word), std::string::npos) << word << "\n" << text.job.out;

  const Json json = plan_json(arguments);
  EXPECT_EQ(json["shares"].size(), 6u);
  EXPECT_EQ(json["ranks"].size(), 2u);
  EXPECT_EQ(json["nodes"][1]["verdict"], "faster with it");
  EXPECT_GT(json["nodes"][1]["step_without_s"].get<double>(), json["step_s"].get<double>());
  EXPECT_NEAR(json["ideal_s"].get<double>(), 512 * 2e-3 / 4.42, 1e-9);
  EXPECT_NEAR(json["network_s"].get<double>(), 10 * 20e-6 + 10.0 / 6 * (440 << 20) / 10e9, 1e-9);
}

TEST_F(PlanProgram, needs_no_more_than_nodes_and_says_what_it_took) {
  const test::MpiRun run = plan({"--nodes", "a:1,b:0.5", "--policy", "none"});
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  EXPECT_NE(run.job.out.find("128 (64 x 2 ranks"), std::string::npos) << run.job.out;
  EXPECT_NE(run.job.out.find("--sample-ms was not given"), std::string::npos) << run.job.out;
  EXPECT_EQ(run.job.out.find("policies"), std::string::npos) << run.job.out;
}

TEST_F(PlanProgram, files_that_are_not_right_are_named) {
  using test::expect_failure;
  expect_failure(plan({(directory.path() / "none.json").string()}), 3, {"none.json"});
  expect_failure(plan({write("a.json", "{").string()}), 3, {"a.json", "JSON"});
  expect_failure(plan({write("d.json", R"({"ranks": [{"sample_s": 1e400}]})").string()}), 3, {"d.json", "1e400"});
  expect_failure(plan({write("b.json", R"({"ranks": [{"node": "x"}]})").string()}), 3,
                 {"b.json", "ranks[0]", "sample_s"});
  expect_failure(
      plan({write("c.json", R"({"ranks": [{"sample_s": 1}], "max_sentences": 9007199254740992})").string()}),
      3, {"c.json", "\"max_sentences\"", "1 to 2147483648"});
}

TEST_F(PlanProgram, options_that_are_not_right_are_named) {
  using test::expect_failure;
  const std::string file = write("c.json", R"({"ranks": [{"sample_s": 1}]})").string();
  expect_failure(plan({}), 2, {"FILE", "--nodes"});
  expect_failure(plan({"--nodes", "a"}), 2, {"--nodes", "speed"});
  expect_failure(plan({file, "--nodes", "a:1"}), 2, {"--nodes", "c.json"});
  expect_failure(plan({"--nodes", "a:1", "--network", "fast"}), 2, {"--network", "fast"});
  expect_failure(plan({"--nodes", "a:1", "--gradient-bytes", "4X"}), 2, {"--gradient-bytes", "4X"});
  expect_failure(plan({"--nodes", "a:1", "--policy", "best"}), 2, {"--policy", "best"});
  expect_failure(plan({"--nodes", "a:1", "--steps", "0"}), 2, {"--steps is 0"});
  expect_failure(plan({"--nodes", "a:1", "--noise", "1e9"}), 2, {"--noise", "at most 10"});
  expect_failure(plan({"--nodes", "a:1", "--steps", "4294967296"}), 2, {"--steps", "1 to 10000000"});
  expect_failure(plan({"--nodes", "a:1", "--steps-per-epoch", "4294967296"}), 2,
                 {"--steps-per-epoch", "1 to 10000000"});
  expect_failure(plan({"--nodes", "a:1", "--window", "4097"}), 2, {"--window", "1 to 4096"});
  for (const char* option : {"--max-sentences", "--global-batch"}) {
    for (const char* value : {"2147483649", "9223372036854775807", "-1"}) {
      expect_failure(plan({"--nodes", "ax2:1", option, value}), 2, {option, value, "0 to 2147483648"});
      expect_failure(plan({file, option, value}), 2, {option, value, "0 to 2147483648"});
    }
  }
  expect_failure(plan({"--nodes", "ax2:1", "--max-sentences", "2147483648"}), 2,
                 {"max-sentences x ranks, is 4294967296", "at most 2147483648"});
  expect_failure(plan({"--nodes", "a:1", "--slow", "1:3x"}), 2, {"--slow", "1"});
  expect_failure(plan({"--nodes", "a:1", "--noise", "-1"}), 2, {"--noise"});
  expect_failure(plan({"--nodes", "a:1", "--log-format", "xml"}), 2, {"--log-format", "xml"});
}

TEST_F(PlanProgram, a_probe_that_cannot_be_made_leaves_no_file) {
  using test::expect_failure;
  const fs::path data = directory.path() / "data", out = directory.path() / "cluster.json";
  fs::create_directory(data);
  const auto probe = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"probe", "--task", "mnist", "--data", data.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::run_motley(2, arguments);
  };
  expect_failure(probe({"--out", out.string()}), 3, {"train.h5"});
  test::write_learnable_images(data / "train.h5", 8, 1);
  expect_failure(probe({}), 2, {"--out"});
  expect_failure(probe({"--out", out.string(), "--seconds", "0"}), 2, {"--seconds"});
  expect_failure(probe({"--out", out.string(), "--slow", "1:3x@200-400"}), 2,
                 {"--slow 1:3x@200-400", "motley train", "RANK:3x"});
  expect_failure(probe({"--out", out.string(), "--memory-limit", "1:600M@100"}), 2,
                 {"--memory-limit 1:600M@100", "motley train", "RANK:BYTES"});
  expect_failure(probe({"--out", directory.path().string()}), 3, {"directory"});
  expect_failure(probe({"--out", (directory.path() / "no" / "c.json").string()}), 3, {"c.json"});
  EXPECT_FALSE(fs::exists(out));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), fs::directory_iterator()), 1)
      << "only the data";
}

}  // namespace
}  // namespace motley
