#include "train/evaluate.h"

#include <gtest/gtest.h>

#include "io/image_set.h"
#include "support/expect_warnings.h"
#include "support/paths.h"

namespace motley::train {
namespace {

constexpr std::int64_t samples = 50, batch = 24;

void write_images(const std::string& path) {
  std::vector<std::uint8_t> images, labels;
  for (std::int64_t i = 0; i < samples * 784; ++i) images.push_back(static_cast<std::uint8_t>(i * 7919 >> 3));
  for (std::int64_t i = 0; i < samples; ++i) labels.push_back(static_cast<std::uint8_t>(i % 10));
  io::ImageSetWriter writer(path, samples, 28, 28, 1);
  writer.append(images.data(), labels.data(), samples);
  writer.finish();
}

class Evaluate : public testing::Test {
 protected:
  Evaluate() : world_(MPI_COMM_WORLD, 60) {
    std::string path;
    if (world_.rank() == 0) {
      directory_ = std::make_unique<test::TemporaryDirectory>();
      path = directory_->path().string();
      write_images(path + "/valid.h5");
    }
    options_.data.data = world_.broadcast(path, 0, "the directory");
    data_ = std::move(*open_subset(*task_, options_.data, "valid", true, world_));
    task_->allocate_parameters(*backend_, false);
    task_->parameters().initialize(1);
  }
  ~Evaluate() override { world_.barrier("the end of the test"); }

  Metrics evaluate(std::int64_t cap) {
    MicroBatches micro_batches(*backend_, *task_, cap, false);
    const EvaluateOptions how{.global_batch = batch,
                              .window = 2,
                              .weights = std::vector<double>(static_cast<std::size_t>(world_.size()), 1.0),
                              .micro_batches = &micro_batches};
    ComputeRegion region(*backend_, balance::SlowSpec(), world_.rank(), 1);
    return train::evaluate(*task_, *backend_, data_, world_, how, region).value();
  }

  comm::Communicator world_;
  std::unique_ptr<test::TemporaryDirectory> directory_;  // rank 0
  TrainOptions options_;
  std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
  std::unique_ptr<Task> task_ = make_task(options_);
  DataSet data_;
};

TEST_F(Evaluate, is_the_same_where_memory_runs_out) {
  const Metrics all = evaluate(batch);
  EXPECT_EQ(all.count, samples);
  const std::int64_t before = task_->reserved();
  EXPECT_EQ(before, batch / world_.size()) << "memory for the largest share of this rank, and no more";

  // Without any for working memory: what is halved is judged again from its beginning, and nothing twice.
  backend_->release_scratch();
  const std::size_t others = backend_->allocated_bytes() - task_->reserved_bytes();
  backend_->set_memory_limit(others + task_->memory_bytes(4, false));
  task_->reserve(*backend_, 1, false);
  Metrics halved;
  const std::string warnings = test::expect_warnings(1, [&] { halved = evaluate(batch); });
  EXPECT_NE(warnings.find("2 sample(s) at a time"), std::string::npos) << warnings;
  EXPECT_EQ(task_->reserved(), 2);
  EXPECT_EQ(halved.count, samples);
  EXPECT_EQ(halved.values, all.values);
  EXPECT_NEAR(halved.loss, all.loss, 1e-6 * all.loss);
}

}  // namespace
}  // namespace motley::train
