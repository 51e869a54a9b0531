// Image classification: HDF5 image sets, an image network, negative log-likelihood, accuracy. Training images may be
// cropped and mirrored at random, by the thread that reads them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/buffer.h"
#include "models/image_network.h"
#include "train/task.h"

namespace motley::train {

// What is trained. What is left open follows from the training data.
struct ImageSpec {
  std::string task;                     // "cifar10"
  std::string arch;                     // of models/image_archs.h
  Shape input;                          // [height, width, channels]; of rank 0: open
  std::int64_t classes = 0;             // 0: open
  std::vector<double> mean, deviation;  // per channel, of pixels scaled to [0, 1]; empty: open

  bool complete() const { return input.rank() == 3 && classes > 0 && !mean.empty(); }
};

// The images that a task is made for, with the network that it trains unless told otherwise; Error(usage) when there is no
// such image task.
ImageSpec image_spec(const std::string& task);

class ImageTask final : public Task {
 public:
  // `compute`: the type of activations and products; logits, losses and statistics are float32.
  ImageTask(ImageSpec spec, std::int64_t crop_padding, bool flip, DType compute = DType::f32);

  std::string name() const override { return spec_.task; }
  bool has_subset(const DataOptions& data, const std::string& subset) const override;
  io::RowSource open(const DataOptions& data, const std::string& subset) const override;
  void check(const io::RowSource& source, std::uint64_t first, std::uint64_t count) const override;
  // The first set, which is that for training where there is one, settles what was left open.
  void expect(const io::RowSource& source) override;
  io::RowWork training_work(std::uint64_t seed) const override;
  ParameterStore& parameters() override { return network_->parameters; }
  void allocate_parameters(Backend& backend, bool training) override;
  std::size_t memory_bytes(std::int64_t micro_batch, bool training) const override;
  std::int64_t sums() const override { return 4; }  // as Backend::softmax_nll adds them
  Metrics metrics(std::span<const double> sums) const override;
  double divisor(std::span<const double> sums) const override { return sums[1]; }
  std::vector<std::string> metric_names() const override { return {"accuracy", "top5"}; }
  void train(const Pass& pass, const Rows& rows, std::span<const double> totals, View sums,
             const GradientsDone& done) override;
  void evaluate(const Pass& pass, const Rows& rows, View sums) override;
  // config.json: the specification.
  std::map<std::string, std::string> model_files() const override;
  // torchvision counts the steps of each batch norm.
  NameRules name_rules() const override { return {.step_counts = {".num_batches_tracked"}}; }

 private:
  void build();
  // A micro-batch on its way to the network.
  struct Staging {
    Buffer pixels, input, labels, dlogits;
    std::vector<std::int32_t> host_labels;
  };
  Staging make_staging(BufferSource& source, std::int64_t micro_batch, bool training) const;
  void take_memory(Backend& backend, std::int64_t micro_batch, bool training) override;
  void release_memory() override;
  // Images and labels of the rows, on the device; returns the normalised images [n, h, w, c].
  View load(Backend& backend, const Rows& rows);

  ImageSpec spec_;
  std::int64_t crop_padding_;
  bool flip_;
  DType compute_;
  std::unique_ptr<ImageNetwork> network_;  // once the specification is complete
  std::vector<float> mean_, deviation_;    // as the device takes them
  Staging staging_;
};

// Options before the config.json of the checkpoint that the run continues, judges or begins from, that before the task,
// and that before the data. Error(usage) for what no network can be, Error(input) for a config.json that is not right.
std::unique_ptr<Task> make_image_task(const TrainOptions& options);
// Likewise where no data are to settle what is left open: images, classes and means are then those that the network is
// from (MNIST, CIFAR-10 or ImageNet). Error(usage) when nothing names the network.
std::unique_ptr<Task> make_image_task_without_data(const TrainOptions& options);

}  // namespace motley::train
