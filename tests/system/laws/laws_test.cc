// Laws 1, 2, 3 and 4 of the design on the mnist task, dropout on. Runs under mpirun with 4 ranks, which are
// split into worlds of 1, 3 and 4.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "core/permutation.h"
#include "support/paths.h"
#include "support/reference_mnist.h"
#include "support/subprocess.h"
#include "train/trainer.h"

namespace motley::train {
namespace {

constexpr unsigned data_seed = 17;
constexpr int samples = 700;

struct Trace {
  std::vector<double> losses;
  std::vector<float> first_gradient;  // summed over the global batch, as the arena holds it
  double first_count = 0;
  std::vector<float> parameters;  // in the end
};

class Laws : public ::testing::Test {
 protected:
  Laws() : world_(MPI_COMM_WORLD) {
    std::string path;
    if (world_.rank() == 0) {
      directory_ = std::make_unique<test::TemporaryDirectory>();
      path = directory_->path().string();
      test::write_learnable_images(path + "/train.h5", samples, data_seed);
    }
    path_ = world_.broadcast(path, 0, "the directory");
  }
  ~Laws() override { world_.barrier("the end of the test"); }

  TrainOptions options(const std::string& run, std::int64_t batch, std::int64_t steps) const {
    TrainOptions options;
    options.data.data = path_;
    options.save.save_dir = path_ + "/" + run;
    options.save.save_interval = 0;
    options.batch.global_batch = batch;
    options.batch.max_sentences = 8;
    options.batch.window = 4;
    options.schedule.lr = {1.0};
    options.max_update = steps;
    options.report.log_format = "none";
    options.threads = 1;
    options.seed = 3;
    options.bucket_cap_mb = 0.25;  // several buckets
    return options;
  }

  // Trains on the first `ranks` ranks; the others wait and return an empty trace.
  Trace train(int ranks, const TrainOptions& options) const {
    MPI_Comm part = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, world_.rank() < ranks ? 0 : MPI_UNDEFINED, world_.rank(), &part);
    Trace trace;
    if (part != MPI_COMM_NULL) {
      const comm::Communicator world(part);
      Trainer trainer(options, world);
      trainer.observe([&](const StepResult& result) {
        trace.losses.push_back(result.loss);
        if (!trace.first_gradient.empty()) return;
        const float* values = result.gradients.as<float>();
        trace.first_gradient.assign(values, values + result.gradients.elements());
        trace.first_count = result.count;
      });
      trainer.run();
      const View parameters = trainer.parameters().values();
      trace.parameters.assign(parameters.as<float>(), parameters.as<float>() + parameters.elements());
      MPI_Comm_free(&part);
    }
    world_.barrier("the other ranks");
    return trace;
  }

  comm::Communicator world_;
  std::unique_ptr<test::TemporaryDirectory> directory_;  // rank 0
  std::string path_;
};

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

TEST_F(Laws, law1_losses_do_not_depend_on_ranks_or_shares) {
  constexpr std::int64_t steps = 50, batch = 40;
  const Trace one = train(1, options("one", batch, steps));
  const Trace four = train(4, options("four", batch, steps));
  TrainOptions unequal = options("unequal", batch, steps);
  unequal.batch.policy = "static";
  unequal.batch.weights = "1,2,5";
  const Trace three = train(3, unequal);
  if (world_.rank() != 0) return;
  ASSERT_EQ(one.losses.size(), static_cast<std::size_t>(steps));
  double worst = 0;
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(four.losses[i], one.losses[i], 1e-4 * one.losses[i]) << "4 ranks, step " << i + 1;
    EXPECT_NEAR(three.losses[i], one.losses[i], 1e-4 * one.losses[i]) << "shares 1:2:5, step " << i + 1;
    worst = std::max(
        {worst, std::abs(four.losses[i] / one.losses[i] - 1), std::abs(three.losses[i] / one.losses[i] - 1)});
  }
  EXPECT_LT(relative_distance(four.first_gradient, one.first_gradient), 1e-5);
  EXPECT_LT(relative_distance(three.first_gradient, one.first_gradient), 1e-5);
  std::printf("largest relative difference of a loss: %.1e; of the first gradient: %.1e, %.1e\n", worst,
              relative_distance(four.first_gradient, one.first_gradient),
              relative_distance(three.first_gradient, one.first_gradient));
}

TEST_F(Laws, law1_holds_where_a_loss_could_tell_the_difference) {
  // The same run with another dropout seed must differ by far more than law 1 allows: the test above can
  // fail.
  TrainOptions other = options("other", 40, 5);
  other.seed = 4;
  const Trace a = train(1, options("same", 40, 5));
  const Trace b = train(1, other);
  if (world_.rank() != 0) return;
  EXPECT_GT(std::abs(a.losses[4] / b.losses[4] - 1), 1e-3);
}

TEST_F(Laws, law2_the_gradient_is_that_of_the_whole_batch_in_float64) {
  constexpr std::int64_t batch = 25;
  TrainOptions uneven = options("uneven", batch, 1);
  uneven.batch.policy = "static";
  uneven.batch.weights = "0,7,18";
  const Trace ours = train(3, uneven);
  if (world_.rank() != 0) return;
  EXPECT_EQ(ours.first_count, 25.0);

  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const std::unique_ptr<Task> task = make_task("mnist");
  task->allocate(*backend, 1, false);
  ParameterStore& store = task->parameters();
  store.initialize(uneven.seed);
  test::ReferenceParameters parameters;
  for (std::size_t i = 0; i < store.all().size(); ++i) {
    const View view = store.value(static_cast<int>(i));
    parameters[store.all()[i].name] = {view.as<float>(), view.as<float>() + view.elements()};
  }
  test::ReferenceBatch reference_batch;
  reference_batch.seed = uneven.seed;
  reference_batch.step = 1;
  const KeyedPermutation order(samples, uneven.seed, 1);
  for (std::uint64_t slot = 0; slot < batch; ++slot) {
    std::uint8_t label = 0;
    const auto image = test::learnable_image(data_seed, static_cast<std::uint32_t>(order(slot)), &label);
    reference_batch.pixels.insert(reference_batch.pixels.end(), image.begin(), image.end());
    reference_batch.labels.push_back(label);
  }
  const test::ReferenceResult reference = test::reference_mnist(parameters, reference_batch);
  EXPECT_NEAR(ours.losses[0], reference.loss_sum / batch, 1e-6 * ours.losses[0]);
  double difference = 0, norm = 0;
  for (const Parameter& parameter : store.all()) {
    const std::vector<double>& expected = reference.gradients.at(parameter.name);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(static_cast<double>(ours.first_gradient[parameter.offset + i]) - expected[i], 2);
      norm += expected[i] * expected[i];
    }
  }
  EXPECT_LT(std::sqrt(difference / norm), 1e-5);
  std::printf("distance to the float64 gradient: %.1e of its norm\n", std::sqrt(difference / norm));
}

TEST_F(Laws, law4_a_stopped_and_continued_run_is_the_run_that_was_never_stopped) {
  constexpr std::int64_t batch = 40, steps = 40;  // 18 steps an epoch
  for (const std::int64_t stop : {1, 13, 18, 19, 30}) {
    for (const char* optimizer : {"adadelta", "sgd", "adamw"}) {
      if (stop != 13 && std::string(optimizer) != "adadelta") continue;
      const std::string name = std::string(optimizer) + std::to_string(stop);
      TrainOptions whole = options("whole" + name, batch, steps);
      whole.batch.policy = "static";
      whole.batch.weights = "3,1,2";
      whole.optimizer.name = optimizer;
      if (whole.optimizer.name != "adadelta") whole.schedule.lr = {0.01};
      whole.schedule.warmup_updates = 3;
      whole.schedule.total_num_update = 60;
      TrainOptions first = whole;
      first.save.save_dir = path_ + "/parts" + name;
      first.max_update = stop;
      TrainOptions second = first;
      second.max_update = steps;
      const Trace uninterrupted = train(3, whole);
      const Trace before = train(3, first);
      const Trace after = train(3, second);
      if (world_.rank() >= 3) continue;
      ASSERT_EQ(after.losses.size(), static_cast<std::size_t>(steps - stop));
      for (std::size_t i = 0; i < after.losses.size(); ++i) {
        ASSERT_EQ(after.losses[i], uninterrupted.losses[static_cast<std::size_t>(stop) + i])
            << optimizer << " stopped at " << stop << ", step " << stop + 1 + static_cast<std::int64_t>(i);
      }
      EXPECT_EQ(0, std::memcmp(after.parameters.data(), uninterrupted.parameters.data(),
                               after.parameters.size() * sizeof(float)));
      EXPECT_NE(0, std::memcmp(before.parameters.data(), uninterrupted.parameters.data(),
                               after.parameters.size() * sizeof(float)));
    }
  }
}

TEST_F(Laws, zero_shares_on_any_rank_change_nothing) {
  const Trace one = train(1, options("alone", 40, 3));
  for (const char* weights : {"0,1,0,0", "1,0,0,1", "0,0,0,1"}) {
    TrainOptions uneven = options(std::string("zero") + weights, 40, 3);
    uneven.batch.policy = "static";
    uneven.batch.weights = weights;
    const Trace four = train(4, uneven);
    if (world_.rank() != 0) continue;
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(four.losses[i], one.losses[i], 1e-5 * one.losses[i]) << weights;
  }
}

}  // namespace
}  // namespace motley::train
