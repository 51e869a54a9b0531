// The options of motley train together: defaults by task, what is refused, what config.ini gets, and HetSeq's.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "cli/train.h"
#include "core/error.h"
#include "core/files.h"
#include "support/paths.h"

namespace motley::cli {
namespace {

using Words = std::vector<std::string>;

Words split(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

train::TrainOptions read(Words arguments) {
  if (std::find(arguments.begin(), arguments.end(), "--config") == arguments.end()) {
    for (const char* word : {"--data", "somewhere", "--max-epoch", "3"}) arguments.emplace_back(word);
  }
  return read_train_options(arguments, 1, 2);
}

std::string sentence(const Words& arguments) {
  try {
    read(arguments);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "accepted";
}

std::string used(const train::TrainOptions& options, const std::string& name) {
  for (const auto& [known, value] : options.as_used) {
    if (known == name) return value;
  }
  return "there is no option " + name;
}

TEST(ReadTrainOptions, the_optimizer_follows_from_the_task_unless_it_is_given) {
  EXPECT_EQ(used(read({}), "optimizer"), "adadelta");
  const train::TrainOptions bert = read({"--task", "bert"});
  EXPECT_EQ(bert.optimizer.name, "adam");
  EXPECT_EQ(used(bert, "optimizer"), "adam");
  EXPECT_EQ(used(bert, "adam-betas"), "0.9,0.999");
  EXPECT_EQ(used(bert, "adam-eps"), "1e-08");
  EXPECT_EQ(used(read({"--task", "bert", "--optimizer", "lamb"}), "optimizer"), "lamb");
  EXPECT_NE(sentence({"--optimizer", ""}).find("--optimizer is \"\""), std::string::npos);
}

TEST(ReadTrainOptions, options_of_another_optimizer_are_refused) {
  const Words adamw = {"--optimizer", "adamw"};
  const auto with = [](Words words, const char* name, const char* value) {
    words.insert(words.end(), {name, value});
    return sentence(words);
  };
  EXPECT_EQ(with(adamw, "--momentum", "0.9"), "--momentum is for --optimizer sgd; this is adamw");
  EXPECT_EQ(with(adamw, "--dampening", "0"), "--dampening is for --optimizer sgd; this is adamw");
  EXPECT_EQ(with(adamw, "--adadelta_rho", "0.9"),
            "--adadelta-rho is for --optimizer adadelta; this is adamw");
  EXPECT_EQ(with(adamw, "--adam-eps", "1e-6"), "accepted");
  EXPECT_EQ(with({}, "--adam-betas", "0.9,0.98"),
            "--adam-betas is for --optimizer adam, adamw or lamb; this is adadelta");
  EXPECT_EQ(with({"--task", "bert"}, "--adadelta-eps", "1e-6"),
            "--adadelta-eps is for --optimizer adadelta; this is adam");
}

TEST(ReadTrainOptions, options_of_another_schedule_are_refused) {
  EXPECT_EQ(sentence({"--task", "cifar10", "--power", "2"}),
            "--power is for --lr-scheduler polynomial; this is cosine");
  EXPECT_EQ(sentence({"--lr-gamma", "0.1"}), "--lr-gamma is for --lr-scheduler step; this is polynomial");
  EXPECT_EQ(sentence({"--task", "cifar10", "--lr-unit", "epoch", "--total-num-update", "100"}),
            "--total-num-update says when a cosine ends by updates; this one goes by epochs (--lr-unit)");
  EXPECT_EQ(
      sentence({"--task", "cifar10", "--lr-unit", "update", "--total-num-update", "100", "--lr-epochs", "3"}),
      "--lr-epochs says when a cosine ends by epochs; this one goes by updates (--lr-unit)");
  EXPECT_EQ(sentence({"--lr-scheduler", "step", "--lr-step-size", "30", "--end-learning-rate", "0.1"}),
            "--end-learning-rate is for --lr-scheduler polynomial or cosine; this is step");
  EXPECT_EQ(sentence({"--lr-scheduler", "step", "--lr-step-size", "30"}), "accepted");
}

TEST(ReadTrainOptions, the_recipe_of_the_task_is_in_the_options_as_they_are_used) {
  const train::TrainOptions cifar = read({"--task", "cifar10"});
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, const char*>>{{"global-batch", "256"},
                                                                  {"lr", "0.1"},
                                                                  {"weight-decay", "0.0005"},
                                                                  {"momentum", "0.9"},
                                                                  {"lr-scheduler", "cosine"},
                                                                  {"lr-epochs", "3"},
                                                                  {"lr-unit", "epoch"},
                                                                  {"crop-padding", "4"},
                                                                  {"power", ""},
                                                                  {"total-num-update", ""}})
    EXPECT_EQ(used(cifar, name), value) << name;
  EXPECT_EQ(used(read({"--task", "bert"}), "arch"), "");
  EXPECT_EQ(used(read({"--lr-scheduler", "PolynomialDecayScheduler"}), "lr-scheduler"), "polynomial");
}

TEST(ReadTrainOptions, options_of_dynamic_masking_are_refused_without_it) {
  EXPECT_EQ(sentence({"--task", "bert", "--masked-lm-prob", "0.15"}),
            "--masked-lm-prob is for --masking dynamic; the data is masked already");
  EXPECT_EQ(sentence({"--task", "bert", "--masking", "dynamic", "--masked-lm-prob", "0.15"}), "accepted");
}

TEST(ReadTrainOptions, what_was_used_is_read_back_and_what_played_no_part_is_left_out) {
  const Words cases[] = {
      {},
      {"--global-batch", "50", "--valid-subset", "test"},
      {"--optimizer", "sgd", "--nesterov"},
      {"--task", "cifar10", "--arch", "lenet"},
      {"--task", "cifar10", "--no-sync-bn", "--max-sentences", "16"},
      {"--task", "cifar10", "--policy", "edp"},
      {"--task", "images", "--precision", "fp16", "--loss-scale", "1024"},
      {"--task", "images", "--optimizer", "adamw", "--lr-scheduler", "step", "--lr-milestones", "2,3",
       "--mean", "0.5,0.4", "--deviation", "0.2,0.2"},
      {"--task", "cifar100", "--nesterov=no", "--lr-unit", "update", "--total-num-update", "90"},
      {"--task", "bert"},
      {"--task", "bert", "--optimizer", "adamw", "--precision", "bf16", "--recompute"},
      {"--task", "bert", "--masking", "dynamic", "--whole-word", "--max-predictions-per-seq", "7"},
  };
  const test::TemporaryDirectory directory;
  const std::string path = (directory.path() / "config.ini").string();
  for (const Words& arguments : cases) {
    const train::TrainOptions options = read(arguments);
    std::string text;
    for (const auto& [name, value] : options.as_used) {
      if (!value.empty()) text += name + " = " + value + "\n";
    }
    write_file(path, text, ExitCode::input);
    EXPECT_EQ(read({"--config", path}).as_used, options.as_used) << text;
  }
  const train::TrainOptions mnist = read({});
  for (const char* name : {"momentum", "nesterov", "adam-betas", "adam-eps", "masking", "masked-lm-prob",
                           "recompute", "whole-word", "valid-subset", "loss-scale"}) {
    EXPECT_EQ(used(mnist, name), "") << name;
  }
  EXPECT_EQ(used(mnist, "precision"), "fp32");
  EXPECT_EQ(used(mnist, "adadelta-rho"), "0.9");
  EXPECT_EQ(used(read({"--task", "bert"}), "masked-lm-prob"), "");
}

TEST(ReadTrainOptions, batch_norm_is_over_the_global_batch_where_ranks_step_together) {
  const Words cifar = {"--task", "cifar10"};
  const auto with = [&](const Words& more) {
    Words words = cifar;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  EXPECT_TRUE(read(cifar).image.sync_bn);
  EXPECT_EQ(used(read(cifar), "sync-bn"), "true");
  EXPECT_FALSE(read(with({"--no-sync-bn"})).image.sync_bn);
  EXPECT_FALSE(read(with({"--sync-bn=no"})).image.sync_bn);
  for (const Words& apart :
       {Words{"--policy", "dp"}, Words{"--policy", "edp"}, Words{"--local-steps", "4"}}) {
    EXPECT_FALSE(read(with(apart)).image.sync_bn) << apart[1];
    EXPECT_EQ(used(read(with(apart)), "sync-bn"), "") << apart[1];
    Words both = with(apart);
    both.emplace_back("--no-sync-bn");
    EXPECT_EQ(sentence(both), "accepted") << apart[1];
    both.back() = "--sync-bn";
    EXPECT_NE(sentence(both).find("contradict each other"), std::string::npos) << sentence(both);
  }
  EXPECT_EQ(sentence({"--task", "bert", "--sync-bn"}), "--sync-bn is for images; this is task bert");
  EXPECT_EQ(used(read(cifar), "max-sentences"), "") << "it limits a share only when it is given";
  EXPECT_EQ(used(read(with({"--max-sentences", "64"})), "max-sentences"), "64");
}

TEST(ReadTrainOptions, the_commands_of_hetseq_are_understood) {
  Words arguments = split(
      "--task bert --config_file bert_config.json --dict vocab.txt --num_file 2 --batch-size 32 "
      "--fast-stat-sync --mu 450000 --update-freq 4 --valid-subset test --num-workers 4 "
      "--warmup-updates 10000 --total-num-update 1000000 --learning-rate 0.0001 --wd 0.01 --save-dir run "
      "--lr_scheduler PolynomialDecayScheduler --distributed-init-method=tcp://10.32.82.211:12345 "
      "--distributed-world-size 8 --distributed-gpus 4 --distributed-rank 0 --distributed-no-spawn "
      "--local_rank 0 --ddp-backend c10d");
  arguments.insert(arguments.end(), {"--adam-betas", "(0.9, 0.999)"});
  const train::TrainOptions bert = read(arguments);
  EXPECT_EQ(bert.batch.max_sentences, 32);
  EXPECT_EQ(bert.max_update, 450000);
  EXPECT_EQ(bert.schedule.lr, (std::vector<double>{0.0001}));
  EXPECT_EQ(bert.optimizer.weight_decay, 0.01);
  EXPECT_EQ(bert.data.num_file, 2);
  EXPECT_EQ(read_train_options({"--data", "somewhere", "--me", "7"}, 1, 2).max_epoch, 7);
  EXPECT_EQ(read({"--dadelta_weight_decay", "0.5"}).optimizer.weight_decay, 0.5);
}

TEST(ReadTrainOptions, cuda_graphs_are_on_unless_told) {
  EXPECT_TRUE(read({}).cuda_graph);
  EXPECT_FALSE(read({}).cuda_graph_given);
  EXPECT_EQ(used(read({}), "cuda-graph"), "true");
  EXPECT_TRUE(read({"--cuda-graph"}).cuda_graph_given);
  EXPECT_FALSE(read({"--cuda-graph=no"}).cuda_graph);
  EXPECT_EQ(used(read({"--cuda-graph=no"}), "cuda-graph"), "false");
}

TEST(ReadTrainOptions, rank_0_says_once_which_options_of_hetseq_do_nothing) {
  const Words arguments = {"--data", "somewhere", "--max-epoch", "3", "--device-id", "0", "--fast-stat-sync"};
  ::testing::internal::CaptureStderr();
  read_train_options(arguments, 0, 2);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  for (const char* word : {"warning", "--device-id: every rank finds its own device", "; --fast-stat-sync: "})
    EXPECT_NE(said.find(word), std::string::npos) << said;
  ::testing::internal::CaptureStderr();
  read_train_options(arguments, 1, 2);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(ReadTrainOptions, options_of_hetseq_that_would_change_the_run_name_what_does_the_same) {
  const std::pair<Words, const char*> cases[] = {
      {{"--max-tokens", "4000"}, "--max-sentences"},
      {{"--max_pred_length", "20"}, "--max-predictions-per-seq"},
      {{"--required-batch-size-multiple", "8"}, "--global-batch"},
      {{"--disable-validation"}, "--validate-interval 0"},
      {{"--reset-optimizer"}, "--init-from"},
      {{"--no-epoch-checkpoints"}, "--keep-last-epochs 1"},
      {{"--lr-scheduler", "Cosine"}, "polynomial, cosine, step"},
  };
  for (const auto& [arguments, words] : cases) {
    const std::string said = sentence(arguments);
    EXPECT_NE(said.find(words), std::string::npos) << said;
    EXPECT_EQ(said.find("there is no option"), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace motley::cli
