#include "train/memory_limit.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "support/usage_sentence.h"

namespace motley::train {
namespace {

std::string sentence_of(const std::string& text, int ranks) {
  return test::usage_sentence([&] { parse_memory_limit(text, ranks); });
}

TEST(ParseMemoryLimit, gives_limits_per_rank_and_step) {
  const auto limits = parse_memory_limit("2:2G@100,1:600M,2:1.5G@200,2:3G", 4);
  ASSERT_EQ(limits.size(), 4u);
  EXPECT_TRUE(limits[0].empty());
  EXPECT_EQ(limits[0].bytes(1), std::nullopt);
  EXPECT_EQ(limits[1].bytes(1), std::size_t{600} << 20);
  EXPECT_EQ(limits[1].bytes(1'000'000), std::size_t{600} << 20);
  EXPECT_EQ(limits[2].bytes(1), std::size_t{3} << 30);
  EXPECT_EQ(limits[2].bytes(99), std::size_t{3} << 30);
  EXPECT_EQ(limits[2].bytes(100), std::size_t{2} << 30);
  EXPECT_EQ(limits[2].bytes(199), std::size_t{2} << 30);
  EXPECT_EQ(limits[2].bytes(200), std::size_t{3} << 29);
  EXPECT_TRUE(limits[3].empty());
}

TEST(ParseMemoryLimit, of_nothing_limits_nobody) {
  for (const MemoryLimits& limits : parse_memory_limit("", 3)) EXPECT_TRUE(limits.empty());
}

TEST(ParseMemoryLimit, holds_from_a_step_on_and_not_before) {
  const auto limits = parse_memory_limit("0:1M@5", 1);
  EXPECT_EQ(limits[0].bytes(4), std::nullopt);
  EXPECT_EQ(limits[0].bytes(5), std::size_t{1} << 20);
}

TEST(ParseMemoryLimit, knows_bytes_and_powers_of_1024) {
  const auto bytes = [](const std::string& text) { return parse_memory_limit("0:" + text, 1)[0].bytes(1); };
  EXPECT_EQ(bytes("1"), 1u);
  EXPECT_EQ(bytes("1234567890123"), 1234567890123u);
  EXPECT_EQ(bytes("4K"), 4096u);
  EXPECT_EQ(bytes("0.5M"), 524288u);
  EXPECT_EQ(bytes("2T"), std::size_t{2} << 40);
  EXPECT_NE(sentence_of("0:0.0001K", 1), "no error");
}

TEST(ParseMemoryLimit, says_what_is_wrong) {
  EXPECT_EQ(
      sentence_of("4:2G", 4),
      "--memory-limit 4:2G: \"4:2G\" names a rank that does not exist; the ranks of this run are 0 to 3");
  EXPECT_EQ(sentence_of("1:2G,0:1G,1:3G", 2),
            "--memory-limit 1:2G,0:1G,1:3G: two limits begin for rank 1 at step 1");
  EXPECT_EQ(sentence_of("1:2G@7,1:3G@7", 2),
            "--memory-limit 1:2G@7,1:3G@7: two limits begin for rank 1 at step 7");
  EXPECT_EQ(sentence_of("0:1G,1:0M", 2), "--memory-limit 0:1G,1:0M: \"1:0M\" leaves no memory at all");
  EXPECT_EQ(sentence_of("0:9999999999T", 2),
            "--memory-limit 0:9999999999T: \"0:9999999999T\" is more memory than there is");
  EXPECT_EQ(sentence_of("0:1G@0", 2),
            "--memory-limit 0:1G@0: \"0:1G@0\" begins before the first step, which is 1");
  EXPECT_EQ(
      sentence_of("0:lots", 2),
      "--memory-limit 0:lots: \"0:lots\" is not of the form RANK:BYTES or RANK:BYTES@STEP, such as 1:600M or "
      "1:1.5G@100 (K, M, G and T are powers of 1024)");
}

TEST(ParseMemoryLimit, refuses_every_other_form) {
  for (const char* text : {"1",          "1:",
                           ":",          ":1G",
                           "1G",         "1:G",
                           "1:2G,",      ",1:2G",
                           "1:2G,,0:1G", "1:2GG",
                           "1:2GB",      "1:2g",
                           "1:2 G",      "1: 2G",
                           " 1:2G",      "1:2G ",
                           "1 :2G",      "-1:2G",
                           "1:-2G",      "1:nan",
                           "1:inf",      "1:infG",
                           "1:1e3G",     "1:0x10",
                           "1:1.5",      "1:2G@",
                           "1:2G@x",     "1:2G@-1",
                           "1:2G@1.5",   "1:2G@1 ",
                           "1:2G@1@2",   "1:2G@99999999999999999999",
                           "1:2G;0:1G",  "99999999999999:2G",
                           "1:1.2.3G",   "1:2G@1-5",
                           "1:+2G"}) {
    EXPECT_NE(sentence_of(text, 2), "no error") << text;
  }
}

TEST(RefuseLimitSteps, takes_limits_that_hold_from_the_start_alone) {
  EXPECT_NO_THROW(refuse_limit_steps(""));
  EXPECT_NO_THROW(refuse_limit_steps("1:600M,0:1G"));
  try {
    refuse_limit_steps("0:1G,1:600M@100");
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_STREQ(error.what(),
                 "--memory-limit 0:1G,1:600M@100: steps are those of motley train; expected RANK:BYTES");
  }
}

}  // namespace
}  // namespace motley::train
