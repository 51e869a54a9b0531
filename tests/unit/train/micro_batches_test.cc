#include "train/micro_batches.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "balance/shares.h"
#include "support/expect_warnings.h"
#include "train/tasks/bert_task.h"
#include "train/tasks/image_task.h"

namespace motley::train {
namespace {

constexpr std::int64_t share = 16;

// The network of task mnist on the first rows of a made-up window.
class Rank {
 public:
  explicit Rank(bool training = true) : training_(training) {
    task->allocate_parameters(*backend, training);
    task->parameters().initialize(3);
    sums_ = Buffer(*backend, 4 * sizeof(double));
    source_.rows = window_.rows = share;
    source_.fields = {{"images", DType::u8, Shape{28, 28, 1}}, {"labels", DType::u8, Shape{}}};
    window_.fields.resize(2);
    for (std::int64_t i = 0; i < share * 784; ++i)
      window_.fields[0].push_back(static_cast<std::byte>(i * 7919 >> 3));
    for (std::int64_t i = 0; i < share; ++i) window_.fields[1].push_back(static_cast<std::byte>(i % 10));
    others = backend->allocated_bytes();
  }

  // Summed loss and gradient.
  std::vector<float> pass(const std::vector<std::int64_t>& cut) {
    const View sums = sums_.view(DType::f64, Shape{4});
    backend->fill_zero(sums);
    Rows rows{source_, window_};
    for (const std::int64_t n : cut) {
      rows.n = n;
      const Pass pass{*backend, true, 1, 1, static_cast<std::uint32_t>(rows.first), rows.first > 0};
      if (training_) {
        task->train(pass, rows, {}, sums, {});
      } else {
        task->evaluate(Pass{.backend = *backend}, rows, sums);
      }
      rows.first += n;
    }
    std::vector<float> result{static_cast<float>(sums.as<double>()[0])};
    if (!training_) return result;
    const View gradients = task->parameters().gradients();
    result.insert(result.end(), gradients.as<float>(), gradients.as<float>() + gradients.elements());
    return result;
  }

  // A share as the trainer runs it: from the beginning again whenever memory runs out.
  std::vector<float> run(MicroBatches& micro_batches, std::int64_t n = share) {
    for (;;) {
      try {
        sizes = micro_batches.prepare(n);
        const std::vector<float> result = pass(sizes);
        micro_batches.mark_tried();
        return result;
      } catch (const OutOfMemory& error) {
        micro_batches.halve(error);
      }
    }
  }

  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  std::unique_ptr<Task> task = make_task({});
  std::size_t others = 0;           // bytes of parameters and the like
  std::vector<std::int64_t> sizes;  // of the last run

 private:
  bool training_;
  Buffer sums_;
  io::RowSource source_;
  io::Window window_;
};

// As a backend of its own gives it, that has all the memory it may want.
std::vector<float> expected(const std::vector<std::int64_t>& sizes) {
  Rank rank;
  rank.task->reserve(*rank.backend, sizes.front(), true);
  return rank.pass(sizes);
}

// Working memory of a pass over the share in micro-batches of `size`.
std::size_t scratch_bytes(std::int64_t size) {
  Rank rank;
  rank.task->reserve(*rank.backend, size, true);
  const std::size_t before = rank.backend->allocated_bytes();
  rank.pass(balance::micro_batches(share, size));
  return rank.backend->allocated_bytes() - before;
}

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

TEST(Task, memory_of_another_size_changes_no_bit) {
  Rank rank;
  rank.task->reserve(*rank.backend, 3, true);
  const std::vector<std::int64_t> cut{3, 2, 1};
  const std::vector<float> first = rank.pass(cut);
  const std::size_t allocated = rank.backend->allocated_bytes();
  const View values = rank.task->parameters().values();
  const std::vector<float> parameters(values.as<float>(), values.as<float>() + values.elements());
  for (const std::int64_t size : {5, 3, 16, 4, 3}) {
    rank.task->reserve(*rank.backend, size, true);
    EXPECT_EQ(rank.task->reserved(), size);
    EXPECT_EQ(rank.pass(cut), first) << size;
  }
  EXPECT_EQ(rank.backend->allocated_bytes(), allocated);
  EXPECT_EQ(rank.task->parameters().values().data, values.data);
  EXPECT_EQ(std::memcmp(values.data, parameters.data(), values.bytes()), 0);
}

TEST(Task, former_memory_is_given_back_before_other_is_taken) {
  Rank rank;
  rank.backend->set_memory_limit(rank.others + rank.task->memory_bytes(6, true));
  for (const std::int64_t size : {5, 6, 1, 6}) rank.task->reserve(*rank.backend, size, true);
}

TEST(Task, what_does_not_fit_leaves_nothing_and_less_may_be_reserved) {
  Rank rank;
  for (const std::int64_t first : {0, 1, 6}) {
    rank.backend->set_memory_limit(std::numeric_limits<std::size_t>::max());
    if (first > 0) rank.task->reserve(*rank.backend, first, true);
    // Every allocation of the larger size is once the first that fails.
    for (std::size_t room = 0; room < rank.task->memory_bytes(6, true); room += 50'000) {
      rank.backend->set_memory_limit(rank.others + room);
      EXPECT_THROW(rank.task->reserve(*rank.backend, 6, true), OutOfMemory);
      EXPECT_EQ(rank.backend->allocated_bytes(), rank.others);
      EXPECT_EQ(rank.task->reserved(), 0);
      EXPECT_EQ(rank.task->reserved_bytes(), 0u);
    }
  }
  rank.task->reserve(*rank.backend, 5, true);
  rank.backend->set_memory_limit(std::numeric_limits<std::size_t>::max());
  EXPECT_EQ(rank.pass({5, 4}), expected({5, 4}));
}

void expect_exact(Task& task, Backend& backend, bool training, const std::string& what) {
  const std::size_t before = backend.allocated_bytes() - task.reserved_bytes();
  for (const std::int64_t size : {1, 2, 3, 7, 25, 26, 60}) {
    task.reserve(backend, size, training);
    EXPECT_EQ(backend.allocated_bytes() - before, task.memory_bytes(size, training)) << what << ", " << size;
    EXPECT_EQ(task.reserved_bytes(), task.memory_bytes(size, training)) << what << ", " << size;
  }
}

BertConfig small_bert() {
  BertConfig config;
  config.vocab_size = 300;
  config.hidden_size = 32;
  config.layers = 2;
  config.heads = 2;
  config.intermediate_size = 64;
  config.max_positions = 64;
  return config;
}

TEST(Task, says_beforehand_what_it_takes) {
  for (const bool training : {true, false}) {
    Rank rank(training);
    expect_exact(*rank.task, *rank.backend, training, "mnist");
    for (const std::string precision : {"fp32", "bf16"}) {
      TrainOptions of_images;
      of_images.data.task = "cifar10";
      of_images.image.arch = "shufflenetv2_0.5";
      of_images.model.precision = precision;
      const std::unique_ptr<Task> images = make_image_task(of_images);
      images->allocate_parameters(*rank.backend, training);
      expect_exact(*images, *rank.backend, training, "images " + precision);
      ModelOptions options;
      options.precision = precision;
      options.recompute = precision == "bf16";
      BertTask bert(small_bert(), options, std::nullopt, {}, {});
      io::RowSource source;
      source.bert = io::BertLayout{.seq_length = 64, .predictions = 20};
      bert.expect(source);
      bert.allocate_parameters(*rank.backend, training);
      expect_exact(bert, *rank.backend, training, "bert " + precision);
    }
  }
}

TEST(MicroBatches, are_as_large_as_the_limit_allows) {
  Rank rank;
  const auto largest = [&](std::size_t room, std::int64_t cap) {
    rank.backend->set_memory_limit(rank.others + room);
    return MicroBatches(*rank.backend, *rank.task, cap, true).largest();
  };
  for (const std::int64_t size : {1, 2, 3, 8, 31, 32, 33, 1000}) {
    const std::size_t room = rank.task->memory_bytes(size, true);
    EXPECT_EQ(largest(room, 1000), size);
    EXPECT_EQ(largest(rank.task->memory_bytes(size + 1, true) - 1, 1000), size);
    EXPECT_EQ(largest(room, 20), std::min<std::int64_t>(size, 20));
    EXPECT_EQ(largest(room, std::numeric_limits<std::int64_t>::max()), size);
  }
}

TEST(MicroBatches, say_so_when_there_is_no_room_for_one_sample) {
  Rank rank;
  rank.backend->set_memory_limit(rank.others + rank.task->memory_bytes(1, true) - 1);
  try {
    const MicroBatches micro_batches(*rank.backend, *rank.task, 8, true);
    FAIL() << "nothing was thrown";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.code(), ExitCode::device);
    EXPECT_EQ(std::string(error.what()),
              "out of memory: one sample at a time needs 460.9 KiB beside the 9.2 MiB that this rank holds "
              "already, "
              "and the limit is 9.6 MiB");
  }
  rank.backend->set_memory_limit(10);
  EXPECT_THROW(MicroBatches(*rank.backend, *rank.task, 8, true), OutOfMemory);
}

TEST(MicroBatches, take_memory_when_a_share_needs_it) {
  Rank rank;
  MicroBatches micro_batches(*rank.backend, *rank.task, 6, true);
  const auto bytes = [&] { return rank.backend->allocated_bytes() - rank.others; };
  EXPECT_EQ(bytes(), 0u);
  EXPECT_TRUE(micro_batches.prepare(0).empty());
  EXPECT_EQ(bytes(), 0u);
  EXPECT_EQ(micro_batches.prepare(3), (std::vector<std::int64_t>{3}));
  EXPECT_EQ(bytes(), micro_batches.bytes_for(3));
  EXPECT_EQ(micro_batches.prepare(2), (std::vector<std::int64_t>{2}));
  EXPECT_EQ(bytes(), micro_batches.bytes_for(3));
  EXPECT_EQ(micro_batches.prepare(16), (std::vector<std::int64_t>{6, 5, 5}));
  EXPECT_EQ(bytes(), micro_batches.bytes_for(6));
  EXPECT_TRUE(micro_batches.prepare(0).empty());
  EXPECT_EQ(bytes(), micro_batches.bytes_for(6));
}

TEST(MicroBatches, are_tried_once_they_have_run) {
  Rank rank;
  MicroBatches micro_batches(*rank.backend, *rank.task, 6, true);
  micro_batches.prepare(4);
  EXPECT_FALSE(micro_batches.tried());
  micro_batches.mark_tried();
  EXPECT_TRUE(micro_batches.tried());
  micro_batches.prepare(3);
  EXPECT_TRUE(micro_batches.tried()) << "what the larger one needed is there";
  micro_batches.prepare(5);
  EXPECT_FALSE(micro_batches.tried()) << "more memory was taken";
  micro_batches.prepare(3);
  EXPECT_FALSE(micro_batches.tried()) << "nothing was run since then";
  micro_batches.mark_tried();
  EXPECT_TRUE(micro_batches.tried());
  micro_batches.prepare(5);
  EXPECT_FALSE(micro_batches.tried()) << "there is memory for it, but working memory was seen for less";
  micro_batches.mark_tried();
  test::expect_warnings(1, [&] { micro_batches.halve(OutOfMemory("no more")); });
  micro_batches.prepare(2);
  EXPECT_FALSE(micro_batches.tried());
  micro_batches.prepare(0);
  EXPECT_TRUE(micro_batches.tried());
}

TEST(MicroBatches, a_pass_that_runs_out_of_memory_is_run_in_halves_with_the_same_result) {
  const std::size_t scratch = scratch_bytes(8);
  ASSERT_GT(scratch, 0u);
  Rank rank;
  rank.backend->set_memory_limit(rank.others + rank.task->memory_bytes(8, true) + scratch - 1);
  MicroBatches micro_batches(*rank.backend, *rank.task, 8, true);
  EXPECT_EQ(micro_batches.largest(), 8) << "the model alone would fit";
  std::vector<float> result;
  const std::string warning = test::expect_warnings(1, [&] { result = rank.run(micro_batches); });
  EXPECT_NE(warning.find("going on with 4 sample(s) at a time"), std::string::npos) << warning;
  EXPECT_NE(warning.find("instead of 8"), std::string::npos) << warning;
  EXPECT_EQ(micro_batches.largest(), 4);
  EXPECT_EQ(rank.sizes, (std::vector<std::int64_t>{4, 4, 4, 4}));
  EXPECT_EQ(result, expected({4, 4, 4, 4})) << "what was begun in vain left nothing behind";
  EXPECT_LT(relative_distance(result, expected({8, 8})), 1e-5);
  EXPECT_TRUE(micro_batches.tried());
  test::expect_warnings(0, [&] { EXPECT_EQ(rank.run(micro_batches), result); });
}

TEST(MicroBatches, halve_until_it_fits) {
  Rank rank;
  // Something that the estimate knows nothing of takes what was there for all but one sample.
  MicroBatches micro_batches(*rank.backend, *rank.task, 8, true);
  const std::size_t room = rank.task->memory_bytes(1, true) + scratch_bytes(1);
  rank.backend->set_memory_limit(rank.others + room);
  const std::string warnings = test::expect_warnings(3, [&] { rank.run(micro_batches); });
  EXPECT_NE(warnings.find("1 sample(s) at a time"), std::string::npos) << warnings;
  EXPECT_EQ(rank.sizes, std::vector<std::int64_t>(share, 1));

  rank.backend->set_memory_limit(rank.others + room - 1);
  rank.backend->release_scratch();
  try {
    rank.run(micro_batches);
    FAIL() << "nothing was thrown";
  } catch (const OutOfMemory& error) {
    EXPECT_TRUE(std::string(error.what()).ends_with("that was for one sample at a time")) << error.what();
  }
}

TEST(MicroBatches, growth_that_fails_falls_back_to_what_was_held) {
  Rank rank;
  MicroBatches micro_batches(*rank.backend, *rank.task, 16, true);
  rank.run(micro_batches, 6);
  rank.backend->set_memory_limit(rank.backend->allocated_bytes());
  test::expect_warnings(1, [&] { rank.run(micro_batches, 8); });
  EXPECT_EQ(rank.sizes, (std::vector<std::int64_t>{4, 4}));
  EXPECT_EQ(micro_batches.largest(), 6);
  EXPECT_EQ(rank.task->reserved(), 6);
}

TEST(MicroBatches, a_limit_that_falls_in_mid_run_shrinks_them_at_once) {
  Rank rank;
  MicroBatches micro_batches(*rank.backend, *rank.task, 8, true);
  rank.run(micro_batches);
  const std::size_t scratch = rank.backend->allocated_bytes() - rank.others - rank.task->reserved_bytes();
  const std::size_t limit = rank.others + scratch + micro_batches.bytes_for(3);
  test::expect_warnings(1, [&] { micro_batches.set_limit(limit); });
  EXPECT_LE(rank.backend->allocated_bytes(), limit);
  EXPECT_EQ(micro_batches.largest(), 3);
  EXPECT_FALSE(micro_batches.tried());
  test::expect_warnings(0, [&] { EXPECT_EQ(rank.run(micro_batches), expected({3, 3, 3, 3, 2, 2})); });

  // The working memory of larger micro-batches is given back before one sample is refused.
  const std::size_t tight = rank.others + micro_batches.bytes_for(1) + scratch_bytes(1);
  test::expect_warnings(1, [&] { micro_batches.set_limit(tight); });
  EXPECT_LE(rank.backend->allocated_bytes(), tight);
  rank.run(micro_batches);
  EXPECT_EQ(micro_batches.largest(), 1);
  EXPECT_THROW(micro_batches.set_limit(rank.others + micro_batches.bytes_for(1) - 1), OutOfMemory);
}

TEST(MicroBatches, a_limit_that_does_not_touch_them_changes_nothing) {
  Rank rank;
  MicroBatches micro_batches(*rank.backend, *rank.task, 8, true);
  rank.run(micro_batches, 4);
  const std::size_t allocated = rank.backend->allocated_bytes();
  test::expect_warnings(0, [&] { micro_batches.set_limit(allocated); });
  EXPECT_EQ(rank.backend->allocated_bytes(), allocated);
  EXPECT_TRUE(micro_batches.tried());
  EXPECT_EQ(micro_batches.largest(), 4);
  test::expect_warnings(0, [&] { micro_batches.set_limit(allocated * 100); });
  EXPECT_EQ(micro_batches.largest(), 8) << "a higher limit is used";
}

TEST(MicroBatches, serve_evaluation_with_less_memory) {
  Rank training, judging(false);
  const MicroBatches more(*training.backend, *training.task, 8, true);
  MicroBatches less(*judging.backend, *judging.task, 8, false);
  EXPECT_LT(less.bytes_for(8), more.bytes_for(8));
  const std::vector<float> loss = judging.run(less);
  less.set_limit(judging.backend->allocated_bytes());
  EXPECT_EQ(judging.run(less), loss);
}

}  // namespace
}  // namespace motley::train
