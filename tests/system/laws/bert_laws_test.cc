// Laws 1, 2 and 4 of the design on task bert, dropout on: gzip shards of unequal length, static and dynamic
// masks, recomputation, float32 and bfloat16. Runs under mpirun with 4 ranks, which are split into worlds
// of 1, 3 and 4.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "io/bert_set.h"
#include "models/bert_batch.h"
#include "support/bert_shards.h"
#include "system/laws/bert_worlds.h"
#include "train/sample_order.h"

namespace motley::train {
namespace {

constexpr std::int64_t batch = bert_batch;
constexpr unsigned data_seed = bert_data_seed;

class BertLaws : public BertWorlds {
 protected:
  TrainOptions options(const std::string& run, std::int64_t steps) const { return bert_options(run, steps); }
};

TEST_F(BertLaws, law1_losses_do_not_depend_on_ranks_or_shares) {
  constexpr std::int64_t steps = 50;  // more than 3 epochs
  const Trace one = train(1, options("one", steps));
  const Trace four = train(4, options("four", steps));
  const Trace three = train(3, with_weights(options("three", steps), "1,2,5"));
  const Trace zero = train(4, with_weights(options("zero", steps), "0,3,1,0"));
  TrainOptions measured = options("moving", steps);
  measured.batch.policy = "auto";
  measured.slow = "1:4x,2:+20ms@12-30";
  const Trace moving = train(4, measured);
  if (world_.rank() == 0) {
    EXPECT_LT(one.losses.back(), 0.9 * one.losses.front()) << "it must have learned something";
  }
  expect_same(one, four, 1e-4, 1e-5, "4 equal ranks");
  expect_same(one, three, 1e-4, 1e-5, "shares 1:2:5");
  expect_same(one, zero, 1e-4, 1e-5, "shares 0:3:1:0");
  expect_same(one, moving, 1e-4, 1e-5, "moving shares");
  const auto [least, most] = std::minmax_element(moving.shares.begin(), moving.shares.end());
  double moved[] = {moving.shares.empty() ? 0.0 : static_cast<double>(*most - *least)};
  world_.all_reduce_max(moved, "how far shares moved");
  EXPECT_GE(moved[0], 2);
}

TEST_F(BertLaws, law1_holds_for_dynamic_masks_and_recomputation) {
  constexpr std::int64_t steps = 20;
  const auto dynamic = [&](const std::string& run, const char* data) {
    TrainOptions result = options(run, steps);
    result.data.data = path_ + "/" + data;
    result.model.masking = "dynamic";
    result.model.dict = path_ + "/vocab.txt";
    result.model.max_predictions = 4;
    return result;
  };
  const Trace one = train(1, dynamic("one", "unmasked"));
  TrainOptions recomputed = with_weights(dynamic("three", "unmasked"), "1,2,5");
  recomputed.model.recompute = true;
  const Trace three = train(3, recomputed);
  expect_same(one, three, 1e-4, 1e-5, "dynamic masks, recomputation, shares 1:2:5");
  // Masks that the data has are undone first, so that both kinds of shards give the same run.
  const Trace masked = train(1, dynamic("masked", "masked"));
  if (world_.rank() == 0) {
    EXPECT_EQ(masked.losses, one.losses);
    EXPECT_TRUE(same_bits(masked.parameters, one.parameters));
  }
}

TEST_F(BertLaws, law1_holds_in_bfloat16_to_its_precision) {
  constexpr std::int64_t steps = 50;
  const auto in_bfloat16 = [&](const std::string& run) {
    TrainOptions result = options(run, steps);
    result.model.precision = "bf16";
    return result;
  };
  const Trace exact = train(1, options("exact", steps));
  const Trace one = train(1, in_bfloat16("one"));
  const Trace three = train(3, with_weights(in_bfloat16("three"), "1,2,5"));
  expect_same(one, three, 2e-2, 2e-2, "bfloat16, shares 1:2:5");
  expect_same(exact, one, 2e-2, 3e-2, "bfloat16 against float32");
  if (world_.rank() == 0) {
    EXPECT_NE(exact.losses, one.losses);
  }
}

TEST_F(BertLaws, law1_holds_where_a_loss_could_tell_the_difference) {
  TrainOptions other = options("other", 5);
  other.seed = 4;
  const Trace a = train(1, options("same", 5));
  const Trace b = train(1, other);
  if (world_.rank() != 0) return;
  ASSERT_EQ(a.losses.size(), 5u);
  ASSERT_EQ(b.losses.size(), 5u);
  EXPECT_GT(std::abs(a.losses[4] / b.losses[4] - 1), 1e-3);
}

// Some slots of the first batch in one piece, with their two counts taken from the data directly, through
// the network that agrees with Hugging Face's (tests/unit/models/bert_test.cc).
struct Piece {
  HostBertBatch host;
  std::uint32_t first_slot = 0;
  std::vector<float> gradient;  // of the sum of both mean losses
  double loss = 0;

  std::int64_t masked() const { return static_cast<std::int64_t>(host.masked_rows.size()); }
};

Piece piece_of(const TrainOptions& options, std::size_t first, std::size_t count) {
  Piece piece;
  piece.first_slot = static_cast<std::uint32_t>(first);
  HostBertBatch& host = piece.host;
  host.clear(test::bert_seq);
  const io::RowSource source =
      io::describe_bert_set(io::bert_subset_paths(options.data.data, "train"), 0, {});
  const OrderOptions order{source.rows, options.seed, shard_sizes(source), 100};
  const std::vector<std::uint64_t> rows = SampleOrder(order).step(1, 0, batch);
  for (std::size_t slot = first; slot < first + count; ++slot) {
    const test::BertSample sample =
        test::learnable_bert_sample(data_seed, static_cast<std::uint32_t>(rows[slot]));
    const auto start = static_cast<std::int32_t>(host.n * host.seq);
    host.ids.insert(host.ids.end(), sample.ids.begin(), sample.ids.end());
    host.types.insert(host.types.end(), sample.types.begin(), sample.types.end());
    for (const std::int32_t real : sample.mask) host.key_mask.push_back(static_cast<std::uint8_t>(real));
    for (std::size_t i = 0; i < sample.positions.size() && sample.positions[i] > 0; ++i) {
      host.masked_rows.push_back(start + sample.positions[i]);
      host.masked_labels.push_back(sample.labels[i]);
    }
    host.next_sentence.push_back(sample.next_sentence);
    ++host.n;
  }
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Bert bert(read_bert_config(options.model.config_file));
  BertBatchMemory memory;
  const BertMemory sizes{host.n, test::bert_seq, piece.masked(), true, DType::f32, false};
  bert.allocate(*backend, sizes);
  memory.reserve(*backend, sizes);
  bert.parameters.initialize(options.seed);
  Buffer buffer(*backend, 8 * sizeof(double));
  const View sums = buffer.view(DType::f64, Shape{8});
  const auto masked = static_cast<double>(piece.masked()), samples = static_cast<double>(host.n);
  bert.train(Pass{*backend, true, options.seed, 1, piece.first_slot, false}, memory.load(host, true, 0),
             {1 / masked, 1 / samples}, sums, {});
  const auto* totals = sums.as<double>();
  EXPECT_EQ(totals[1], masked);
  piece.loss = totals[0] / masked + totals[4] / samples;
  const auto* gradient = bert.parameters.gradients().as<float>();
  piece.gradient.assign(gradient, gradient + bert.parameters.arena_elements());
  return piece;
}

TEST_F(BertLaws, law2_each_loss_is_divided_once_by_its_count_over_the_global_batch) {
  const TrainOptions uneven = with_weights(options("uneven", 1), "0,7,18");
  const Trace ours = train(3, uneven);
  if (world_.rank() != 0) return;
  const Piece whole = piece_of(uneven, 0, batch);
  const auto of_rank_1 = std::count_if(whole.host.masked_rows.begin(), whole.host.masked_rows.end(),
                                       [&](std::int32_t row) { return row < 8 * whole.host.seq; });
  ASSERT_NE(of_rank_1 * batch, whole.masked() * 8) << "a mean of the ranks' means must differ from the mean";
  EXPECT_NEAR(ours.losses.at(0), whole.loss, 1e-6 * whole.loss);
  const double distance = relative_distance(ours.first_gradient, whole.gradient);
  EXPECT_LT(distance, 1e-5);
  std::printf("distance to the gradient of the whole batch: %.1e of its norm\n", distance);
}

TEST_F(BertLaws, published_policies_average_the_mean_gradients_of_the_ranks) {
  for (const char* policy : {"dp", "edp"}) {
    TrainOptions published = with_weights(options(policy, 1), "0,1,2");
    published.batch.policy = policy;
    const Trace ours = train(3, published);
    if (world_.rank() == 0) {
      constexpr std::size_t first = batch / 3;
      const Piece one = piece_of(published, 0, first), two = piece_of(published, first, batch - first);
      const float weight = std::string(policy) == "dp" ? 0.5F : 1 / 3.F;
      std::vector<float> expected(one.gradient.size());
      for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] = weight * one.gradient[i] + (1 - weight) * two.gradient[i];
      EXPECT_LT(relative_distance(ours.first_gradient, expected), 1e-5) << policy;
      EXPECT_GT(relative_distance(ours.first_gradient, piece_of(published, 0, batch).gradient), 1e-3)
          << policy << " is not the gradient of the batch";
    }
    if (!all_well()) return;
  }
}

TEST_F(BertLaws, law4_holds_with_local_steps) {
  constexpr std::int64_t steps = 12, stop = 6;
  TrainOptions whole = with_weights(options("local-whole", steps), "3,1,2");
  whole.batch.local_steps = 4;
  whole.save.save_interval_updates = stop;
  TrainOptions first = whole;
  first.save.save_dir = path_ + "/local-parts";
  first.max_update = stop;
  TrainOptions second = first;
  second.max_update = steps;
  const Trace uninterrupted = train(3, whole), before = train(3, first), after = train(3, second);
  if (world_.rank() < 3) expect_continued(uninterrupted, before, after, steps, stop, "local steps");
}

TEST_F(BertLaws, law4_a_stopped_and_continued_run_is_the_run_that_was_never_stopped) {
  constexpr std::int64_t steps = 34;  // 15 steps an epoch
  struct Case {
    std::int64_t stop;
    const char* optimizer;
    const char* precision;
    bool dynamic;
  };
  for (const Case& tested : {Case{1, "adamw", "fp32", false}, Case{15, "lamb", "fp32", true},
                             Case{16, "adam", "bf16", false}, Case{22, "adamw", "bf16", true}}) {
    const std::string name = std::string(tested.optimizer) + std::to_string(tested.stop);
    TrainOptions whole = with_weights(options("whole" + name, steps), "3,1,2");
    whole.optimizer.name = tested.optimizer;
    whole.model.precision = tested.precision;
    if (tested.dynamic) {
      whole.model.masking = "dynamic";
      whole.model.dict = path_ + "/vocab.txt";
    }
    TrainOptions first = whole;
    first.save.save_dir = path_ + "/parts" + name;
    first.max_update = tested.stop;
    TrainOptions second = first;
    second.max_update = steps;
    const Trace uninterrupted = train(3, whole);
    const Trace before = train(3, first);
    const Trace after = train(3, second);
    if (world_.rank() < 3) expect_continued(uninterrupted, before, after, steps, tested.stop, name);
    if (!all_well()) return;
  }
}

}  // namespace
}  // namespace motley::train
