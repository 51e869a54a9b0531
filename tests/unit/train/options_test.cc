#include "train/options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

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

TrainOptions filled(const std::string& task, const std::function<void(TrainOptions&)>& change = {},
                    const std::vector<std::string>& given = {}) {
  TrainOptions options = good();
  options.data.task = task;
  if (change) change(options);
  fill_in(options, [&](const std::string& name) {
    return std::find(given.begin(), given.end(), name) != given.end();
  });
  return options;
}

TEST(TrainOptions, the_optimizer_follows_from_the_task_as_in_hetseq) {
  EXPECT_EQ(filled("bert").optimizer.name, "adam");
  EXPECT_EQ(filled("mnist").optimizer.name, "adadelta");
  EXPECT_EQ(filled("mnist").schedule.scheduler, "polynomial");
  EXPECT_EQ(filled("mnist").image.crop_padding, 0);
  EXPECT_FALSE(filled("mnist").image.flip);
}

TEST(TrainOptions, cifar_has_the_recipe_of_the_dynamic_partition_experiments) {
  for (const char* task : {"cifar10", "cifar100"}) {
    const TrainOptions options = filled(task, [](auto& o) { o.max_epoch = 150; });
    EXPECT_EQ(options.batch.global_batch, 256);
    EXPECT_EQ(options.optimizer.name, "sgd");
    EXPECT_EQ(options.optimizer.momentum, 0.9);
    EXPECT_TRUE(options.optimizer.nesterov);
    EXPECT_EQ(options.optimizer.weight_decay, 5e-4);
    EXPECT_EQ(options.optimizer.clip_norm, 0);
    EXPECT_EQ(options.schedule.lr, std::vector<double>{0.1});
    EXPECT_EQ(options.schedule.scheduler, "cosine");
    EXPECT_EQ(options.schedule.unit, "epoch");
    EXPECT_EQ(options.schedule.epochs, 150);
    EXPECT_EQ(options.schedule.end_learning_rate, 0);
    EXPECT_EQ(options.image.crop_padding, 4);
    EXPECT_TRUE(options.image.flip);
    EXPECT_EQ(options.save.best_metric, "accuracy");
    EXPECT_TRUE(options.save.maximize_best_metric);
    EXPECT_NO_THROW(check_options(options, 3));
  }
  const TrainOptions images = filled("images");
  EXPECT_EQ(images.optimizer.name, "sgd");
  EXPECT_EQ(images.image.crop_padding, 0) << "digits may not be mirrored";
  EXPECT_FALSE(images.image.flip);
}

TEST(TrainOptions, what_is_given_stays_as_it_is_given) {
  const TrainOptions options = filled("cifar10",
                                      [](auto& o) {
                                        o.optimizer.name = "adamw";
                                        o.optimizer.clip_norm = 3;
                                        o.image.crop_padding = 2;
                                        o.batch.update_freq = {2};
                                        o.schedule.scheduler = "PolynomialDecayScheduler";
                                        o.schedule.lr = {0.5};
                                        o.save.best_metric = "loss";
                                      },
                                      {"optimizer", "clip-norm", "crop-padding", "flip", "update-freq",
                                       "lr-scheduler", "best-checkpoint-metric"});
  EXPECT_EQ(options.optimizer.name, "adamw");
  EXPECT_FALSE(options.optimizer.nesterov);
  EXPECT_EQ(options.optimizer.weight_decay, 0);
  EXPECT_EQ(options.optimizer.clip_norm, 3);
  EXPECT_EQ(options.image.crop_padding, 2);
  EXPECT_FALSE(options.image.flip);
  EXPECT_EQ(options.batch.global_batch, 0);
  EXPECT_EQ(options.schedule.scheduler, "polynomial");
  EXPECT_EQ(options.schedule.lr, std::vector<double>{0.5});
  EXPECT_FALSE(options.save.maximize_best_metric);
  EXPECT_FALSE(filled("cifar10", [](auto& o) { o.optimizer.momentum = 0; }, {"momentum"}).optimizer.nesterov);
}

TEST(TrainOptions, a_cosine_ends_with_the_run) {
  const TrainOptions updates = filled("cifar10", [](auto& o) {
    o.max_epoch = 0;
    o.max_update = 70;
  });
  EXPECT_EQ(updates.schedule.unit, "update");
  EXPECT_EQ(updates.schedule.total_num_update, 70);
  const TrainOptions told = filled("cifar10",
                                   [](auto& o) {
                                     o.max_update = 70;
                                     o.schedule.total_num_update = 900;
                                   },
                                   {"total-num-update"});
  EXPECT_EQ(told.schedule.unit, "update");
  EXPECT_EQ(told.schedule.total_num_update, 900);
  const TrainOptions epochs = filled("cifar10",
                                     [](auto& o) {
                                       o.max_epoch = 0;
                                       o.max_update = 70;
                                       o.schedule.epochs = 12;
                                     },
                                     {"lr-epochs"});
  EXPECT_EQ(epochs.schedule.unit, "epoch");
  EXPECT_EQ(epochs.schedule.epochs, 12);
  try {
    filled("cifar10", [](auto& o) { o.max_epoch = 0; });
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "--lr-scheduler cosine by epochs does not know where it ends; expected --lr-epochs or --max-epoch");
  }
}

TEST(TrainOptions, a_schedule_has_its_own_options) {
  ScheduleOptions schedule;
  EXPECT_TRUE(schedule_uses(schedule, "power"));
  EXPECT_FALSE(schedule_uses(schedule, "lr-gamma"));
  EXPECT_TRUE(schedule_uses(schedule, "warmup-updates"));
  schedule.scheduler = "cosine";
  EXPECT_FALSE(schedule_uses(schedule, "power"));
  EXPECT_TRUE(schedule_uses(schedule, "lr-epochs"));
  EXPECT_FALSE(schedule_uses(schedule, "total-num-update"));
  schedule.unit = "update";
  EXPECT_FALSE(schedule_uses(schedule, "lr-epochs"));
  EXPECT_TRUE(schedule_uses(schedule, "total-num-update"));
  EXPECT_EQ(schedulers_of("end-learning-rate"), "polynomial or cosine");
  EXPECT_EQ(schedulers_of("lr"), "");
}

TEST(TrainOptions, mistakes_in_schedules_and_images_get_a_sentence) {
  const auto steps = [](TrainOptions& o, std::vector<std::int64_t> milestones) {
    o.schedule.scheduler = "step";
    o.schedule.milestones = std::move(milestones);
  };
  expect_usage([](auto& o) { o.schedule.scheduler = "linear"; },
               "--lr-scheduler is \"linear\"; expected one of: polynomial, cosine, step");
  expect_usage([](auto& o) { o.schedule.unit = "sample"; },
               "--lr-unit is \"sample\"; expected one of: epoch, update");
  expect_usage([](auto& o) { o.schedule.scheduler = "cosine"; }, "--lr-epochs is 0; expected at least 1");
  expect_usage(
      [&](auto& o) { steps(o, {}); },
      "--lr-scheduler step needs either --lr-step-size, the epochs between two falls of the rate, or "
      "--lr-milestones, the epochs after which it falls");
  expect_usage(
      [&](auto& o) {
        steps(o, {3, 3});
      },
      "--lr-milestones has 3 as its number 2; expected ascending numbers of at least 1");
  expect_usage(
      [&](auto& o) {
        steps(o, {3});
        o.schedule.gamma = 0;
      },
      "--lr-gamma is 0; expected a number above 0 and at most 1");
  expect_usage(
      [&](auto& o) {
        steps(o, {3});
        o.max_epoch = 0;
        o.schedule.min_lr = 0.01;
      },
      "nothing says when to stop; expected --max-epoch, --max-update, or a --min-lr that the rate falls to");
  expect_usage([](auto& o) { o.image.arch = "lent"; },
               "there is no network \"lent\", did you mean \"lenet\"?; motley train --help-archs lists them");
  expect_usage([](auto& o) { o.image.mean = {0.5}; },
               "--mean has 1 number(s) and --deviation has 0; expected one per channel each");
  expect_usage([](auto& o) { o.image.crop_padding = -1; },
               "--crop-padding is -1; expected 0 (no cropping) to 1024 pixels");
  expect_usage(
      [](auto& o) {
        o.data.task = "bert";
        o.image.arch = "lenet";
      },
      "--arch is for images; this is task bert");
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
