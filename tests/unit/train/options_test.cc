#include "train/options.h"

#include <gtest/gtest.h>

#include <functional>

#include "core/error.h"

namespace motley::train {
namespace {

TrainOptions good() {
  TrainOptions options;
  options.data.data = "somewhere";
  options.max_epoch = 1;
  return options;
}

void expect_usage(const std::function<void(TrainOptions&)>& change, const std::string& sentence) {
  TrainOptions options = good();
  change(options);
  try {
    check_options(options, 3);
    ADD_FAILURE() << "accepted; expected: " << sentence;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_EQ(std::string(error.what()), sentence);
  }
}

TEST(TrainOptions, defaults_with_data_and_an_end_are_accepted) {
  EXPECT_NO_THROW(check_options(good(), 3));
}

TEST(TrainOptions, mistakes_get_a_sentence) {
  expect_usage([](auto& o) { o.batch.global_batch = -5; }, "--global-batch is -5; expected 1 to 2147483648");
  expect_usage([](auto& o) { o.data.shuffle_pool = 0; },
               "--shuffle-pool is 0; expected 1 to 2147483648 samples");
  expect_usage([](auto& o) { o.data.num_file = -1; }, "--num-file is -1; expected at least 0 (0: all)");
  expect_usage([](auto& o) { o.batch.max_sentences = 0; }, "--max-sentences is 0; expected 1 to 2147483648");
  expect_usage(
      [](auto& o) {
        o.batch.update_freq = {1, 0};
      },
      "--update-freq is 0; expected numbers of at least 1");
  expect_usage([](auto& o) { o.batch.policy = "fair"; },
               "--policy is \"fair\"; expected one of: sync, static, dp, edp, auto");
  expect_usage([](auto& o) { o.batch.policy = "static"; },
               "--policy static needs --weights with 3 numbers, one per rank");
  expect_usage([](auto& o) { o.batch.local_steps = 0; },
               "--local-steps is 0; expected 1 (all ranks step together) to 1000000");
  expect_usage(
      [](auto& o) {
        o.batch.policy = "sync";
        o.batch.weights = "1,2,3";
      },
      "--weights and --policy sync, which gives equal shares, contradict each other");
  expect_usage([](auto& o) { o.optimizer.name = "adamax"; },
               "--optimizer is \"adamax\"; expected one of: sgd, adam, adamw, lamb, adadelta");
  expect_usage(
      [](auto& o) { o.max_epoch = 0; },
      "nothing says when to stop; expected --max-epoch, --max-update, or a --min-lr that the rate falls to");
  expect_usage([](auto& o) { o.schedule.warmup_updates = 2000000; },
               "--total-num-update is 1000000; expected more than --warmup-updates, which is 2000000");
  expect_usage([](auto& o) { o.optimizer.nesterov = true; },
               "--nesterov needs --optimizer sgd with a --momentum above 0 and no --dampening");
}

TEST(TrainOptions, a_rate_to_decay_to_is_not_negative) {
  expect_usage([](auto& o) { o.schedule.end_learning_rate = -0.1; },
               "--end-learning-rate is -0.1; expected at least 0");
}

TEST(TrainOptions, dynamic_masking_may_take_the_dictionary_beside_the_parameters) {
  TrainOptions options = good();
  options.data.task = "bert";
  options.model.masking = "dynamic";
  EXPECT_NO_THROW(check_options(options, 3));
}

TEST(TrainOptions, the_optimizer_follows_from_the_task_as_in_hetseq) {
  EXPECT_EQ(default_optimizer("bert"), "adam");
  EXPECT_EQ(default_optimizer("mnist"), "adadelta");
}

TEST(TrainOptions, an_optimizer_has_its_own_options_and_those_of_all) {
  EXPECT_TRUE(optimizer_uses("sgd", "momentum"));
  EXPECT_FALSE(optimizer_uses("adamw", "momentum"));
  EXPECT_TRUE(optimizer_uses("lamb", "adam-eps"));
  EXPECT_FALSE(optimizer_uses("adam", "adadelta-rho"));
  EXPECT_TRUE(optimizer_uses("adam", "weight-decay"));
  EXPECT_EQ(users_of("momentum"), "sgd");
  EXPECT_EQ(users_of("adam-eps"), "adam, adamw or lamb");
  EXPECT_EQ(users_of("weight-decay"), "");
}

TEST(TrainOptions, weights_are_counted_against_the_ranks) {
  TrainOptions options = good();
  options.batch.policy = "static";
  for (const char* wrong : {"1,2", "1,2,3,4", "0,0,0", "1,-1,2", "1,x,2", "1,,2"}) {
    options.batch.weights = wrong;
    EXPECT_THROW(check_options(options, 3), Error) << wrong;
  }
  options.batch.weights = "0,0,1.5";
  EXPECT_NO_THROW(check_options(options, 3));
}

TEST(TrainOptions, the_global_batch_is_hetseqs_product_unless_given) {
  BatchOptions batch;
  batch.max_sentences = 8;
  batch.update_freq = {4, 2};
  EXPECT_EQ(global_batch(batch, 1, 3), 96);
  EXPECT_EQ(global_batch(batch, 2, 3), 48);
  EXPECT_EQ(global_batch(batch, 7, 3), 48);
  batch.global_batch = 25;
  EXPECT_EQ(global_batch(batch, 1, 3), 25);
}

}  // namespace
}  // namespace motley::train
