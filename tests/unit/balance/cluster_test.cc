#include "balance/cluster.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "core/error.h"

namespace motley::balance {
namespace {

std::string sentence_of(ExitCode code, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

std::string nodes_error(const std::string& text) {
  return sentence_of(ExitCode::usage, [&] { parse_nodes(text, {}); });
}

std::string file_error(const std::string& text) {
  return sentence_of(ExitCode::input,
                     [&] { cluster_from_json(parse_json(text, "c.json", ExitCode::input), "c.json"); });
}

TEST(ParseNodes, reads_counts_speeds_memory_and_time) {
  const NodeScale scale{.sample_s = 2e-3, .micro_s = 1e-3, .model_bytes = 100, .sample_bytes = 10};
  const auto ranks = parse_nodes("A100x4:1.0/40G, P100x2:0.25/16G+5ms,old:0.5", scale);
  ASSERT_EQ(ranks.size(), 7u);
  EXPECT_EQ(ranks[0].node, "A100");
  EXPECT_EQ(ranks[3], ranks[0]);
  EXPECT_EQ(ranks[0].sample_s, 2e-3);
  EXPECT_EQ(ranks[0].memory_limit_bytes, std::int64_t{40} << 30);
  EXPECT_EQ(ranks[0].model_bytes, 100);
  EXPECT_EQ(ranks[0].sample_bytes, 10);
  EXPECT_EQ(ranks[4].node, "P100");
  EXPECT_EQ(ranks[4].sample_s, 8e-3);
  EXPECT_EQ(ranks[4].micro_s, 4e-3);
  EXPECT_DOUBLE_EQ(ranks[4].fixed_s, 5e-3);
  EXPECT_EQ(ranks[6].node, "old");
  EXPECT_EQ(ranks[6].memory_limit_bytes, 0);
}

TEST(ParseNodes, keeps_the_x_of_card_names) {
  EXPECT_EQ(parse_nodes("rtx3090:0.5", {}).size(), 1u);
  EXPECT_EQ(parse_nodes("rtx3090:0.5", {})[0].node, "rtx3090");
  EXPECT_EQ(parse_nodes("gtx1080x2:0.1", {}).size(), 2u);
  EXPECT_EQ(parse_nodes("gtx1080x2:0.1", {})[0].node, "gtx1080");
  EXPECT_EQ(parse_nodes("GTX1080:0.1", {})[0].node, "GTX1080");
}

TEST(ParseNodes, says_what_is_wrong) {
  EXPECT_EQ(
      nodes_error("A100x4"),
      "--nodes: \"A100x4\" has no speed; expected NAMExCOUNT:SPEED/MEMORY+TIME, such as A100x4:1.0/40G or "
      "old:0.2+5ms (count, memory and time may be left out)");
  for (const char* text : {"a:0", "a:-1", "a:fast", "a:", "a:inf", "a:1e-320"})
    EXPECT_NE(nodes_error(text).find("speed"), std::string::npos) << text << ": " << nodes_error(text);
  for (const char* text : {"a:1/", "a:1/40GB", "a:1/0", "a:1/-3G"})
    EXPECT_NE(nodes_error(text).find("memory"), std::string::npos) << text << ": " << nodes_error(text);
  for (const char* text : {"a:1+", "a:1+5", "a:1/4G+x"})
    EXPECT_NE(nodes_error(text).find("time"), std::string::npos) << text << ": " << nodes_error(text);
  EXPECT_NE(nodes_error("ax0:1").find("count"), std::string::npos);
  EXPECT_NE(nodes_error("ax99999999999:1").find("count"), std::string::npos);
  EXPECT_NE(nodes_error(":1").find("no name"), std::string::npos);
  EXPECT_NE(nodes_error("a:1,,b:1").find("no speed"), std::string::npos);
  EXPECT_NE(nodes_error("ax600000:1,bx600000:1").find("1000000 ranks"), std::string::npos);
}

TEST(Cluster, survives_being_written_and_read) {
  Cluster cluster;
  cluster.ranks = parse_nodes("a:1/8G+1ms, bx2:0.3", {.model_bytes = 7, .sample_bytes = 3});
  cluster.network = {20e-6, 1.25e9};
  cluster.gradient_bytes = 4000;
  cluster.max_sentences = 32;
  cluster.global_batch = 96;
  const Cluster read = cluster_from_json(to_json(cluster), "c.json");
  EXPECT_EQ(read.ranks, cluster.ranks);
  EXPECT_EQ(read.network->latency_s, 20e-6);
  EXPECT_EQ(read.network->bytes_per_s, 1.25e9);
  EXPECT_EQ(read.gradient_bytes, 4000);
  EXPECT_EQ(read.max_sentences, 32);
  EXPECT_EQ(read.global_batch, 96);
}

TEST(Cluster, needs_little_of_a_file_written_by_hand) {
  const Cluster cluster = cluster_from_json(
      Json::parse(R"({"ranks": [{"node": "a", "sample_s": 0.01, "count": 3}, {"sample_s": 1}]})"), "c.json");
  ASSERT_EQ(cluster.ranks.size(), 4u);
  EXPECT_EQ(cluster.ranks[2].node, "a");
  EXPECT_NE(cluster.ranks[3].node, "a");
  EXPECT_FALSE(cluster.network);
}

TEST(Cluster, names_file_and_key_of_what_is_wrong) {
  EXPECT_EQ(file_error("{"), "c.json is not valid JSON (at byte 2)");
  EXPECT_EQ(file_error("[]"), "c.json is []; expected an object");
  EXPECT_EQ(file_error("{}"), "c.json has no \"ranks\"; expected a list of them");
  EXPECT_EQ(file_error(R"({"ranks": []})"), "c.json: \"ranks\" is []; expected a list of at least one rank");
  EXPECT_EQ(file_error(R"({"ranks": [{"node": "a"}]})"),
            "c.json: ranks[0] has no \"sample_s\"; expected a number above 0");
  EXPECT_EQ(file_error(R"({"ranks": [{"sample_s": 1}, {"sample_s": "fast"}]})"),
            "c.json: ranks[1]: \"sample_s\" is \"fast\"; expected a number above 0");
  EXPECT_EQ(file_error(R"({"ranks": [{"sample_s": true}]})"),
            "c.json: ranks[0]: \"sample_s\" is true; expected a number above 0");
  EXPECT_EQ(file_error(R"({"ranks": [{"sample_s": 1, "fixed_s": -1}]})"),
            "c.json: ranks[0]: \"fixed_s\" is -1; expected a number of at least 0");
  EXPECT_EQ(file_error(R"({"ranks": [{"sample_s": 1, "count": 1.5}]})"),
            "c.json: ranks[0]: \"count\" is 1.5; expected a whole number of at least 1");
  EXPECT_EQ(file_error(R"({"ranks": [{"sample_s": 1}], "network": {"latency_s": 1}})"),
            "c.json: network has no \"bytes_per_s\"; expected a number above 0");
  EXPECT_EQ(file_error(R"({"ranks": [{"sample_s": 1}], "format": 2})"),
            "c.json: \"format\" is 2; expected 1");
  EXPECT_NE(file_error(R"({"ranks": [{"sample_s": 1, "fixed": 1}]})").find("ranks[0] has \"fixed\""),
            std::string::npos)
      << "a slip in a key that may be left out must not go unnoticed";
  EXPECT_NE(file_error(R"({"ranks": [{"sample_s": 1, "count": 2000000}]})").find("at most 1000000 ranks"),
            std::string::npos);
}

TEST(Cluster, numbers_that_no_run_has_are_named_with_their_range) {
  const std::string ranks = R"({"ranks": [{"sample_s": 1}], )";
  EXPECT_EQ(file_error(ranks + R"("max_sentences": 2147483649})"),
            "c.json: \"max_sentences\" is 2147483649; expected a whole number of 1 to 2147483648");
  EXPECT_EQ(file_error(ranks + R"("max_sentences": 0})"),
            "c.json: \"max_sentences\" is 0; expected a whole number of 1 to 2147483648");
  EXPECT_EQ(file_error(ranks + R"("global_batch": 9007199254740992})"),
            "c.json: \"global_batch\" is 9007199254740992; expected a whole number of 0 to 2147483648");
  EXPECT_EQ(file_error(ranks + R"("gradient_bytes": 18446744073709551615})"),
            "c.json: \"gradient_bytes\" is 18446744073709551615; expected a whole number of 0 to "
            "9007199254740992");
  EXPECT_EQ(file_error(ranks + R"("gradient_bytes": -1})"),
            "c.json: \"gradient_bytes\" is -1; expected a whole number of at least 0");
  const Cluster largest = cluster_from_json(
      Json::parse(ranks + R"("max_sentences": 2147483648, "global_batch": 2147483648})"), "c.json");
  EXPECT_EQ(largest.max_sentences, largest_batch);
  EXPECT_EQ(largest.global_batch, largest_batch);
}

TEST(Cluster, the_largest_micro_batch_is_what_memory_holds) {
  ClusterRank rank;
  rank.sample_s = 1;
  EXPECT_EQ(largest_micro_batch(rank, 64), 64) << "nothing is known about memory";
  rank.memory_limit_bytes = 1000;
  rank.model_bytes = 400;
  rank.sample_bytes = 100;
  EXPECT_EQ(largest_micro_batch(rank, 64), 6);
  EXPECT_EQ(largest_micro_batch(rank, 4), 4);
  rank.model_bytes = 901;
  EXPECT_EQ(largest_micro_batch(rank, 64), 0);
  rank.model_bytes = 2000;
  EXPECT_EQ(largest_micro_batch(rank, 64), 0);
}

TEST(Cluster, a_share_costs_its_samples_its_micro_batches_and_a_fixed_part) {
  const ClusterRank rank{.node = "a", .device = "", .fixed_s = 5, .micro_s = 2, .sample_s = 1};
  EXPECT_EQ(compute_seconds(rank, 4, 0), 5);
  EXPECT_EQ(compute_seconds(rank, 4, 1), 5 + 2 + 1);
  EXPECT_EQ(compute_seconds(rank, 4, 4), 5 + 2 + 4);
  EXPECT_EQ(compute_seconds(rank, 4, 9), 5 + 3 * 2 + 9);
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(compute_seconds(rank, most, 2), 5 + 2 + 2);
  EXPECT_EQ(affine_cost(rank, 4).fixed_s, 5);
  EXPECT_EQ(affine_cost(rank, 4).sample_s, 1.5);
  EXPECT_EQ(affine_cost(rank, 0).cap, 0);
}

TEST(Cluster, a_ring_needs_two_rounds_of_every_link) {
  const Network network{.latency_s = 1e-3, .bytes_per_s = 1e6};
  EXPECT_EQ(all_reduce_seconds(network, 4e6, 1), 0);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(network, 4e6, 2), 2e-3 + 4);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(network, 4e6, 5), 8e-3 + 1.6 * 4);
}

TEST(Cluster, a_measured_line_becomes_the_network_that_has_it) {
  const Network network = network_of_line(3e-3, 2e-9, 4);
  EXPECT_NEAR(all_reduce_seconds(network, 1e6, 4), 3e-3 + 2e-3, 1e-12);
}

}  // namespace
}  // namespace motley::balance
