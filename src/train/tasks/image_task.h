// Image classification: HDF5 image sets, an image network, negative log-likelihood, accuracy.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/buffer.h"
#include "models/image_network.h"
#include "train/task.h"

namespace motley::train {

class ImageTask final : public Task {
 public:
  // mean and deviation per channel, of images scaled to [0, 1].
  ImageTask(std::string name, std::unique_ptr<ImageNetwork> network, std::vector<float> mean,
            std::vector<float> deviation);

  std::string name() const override { return name_; }
  bool has_subset(const DataOptions& data, const std::string& subset) const override;
  io::RowSource open(const DataOptions& data, const std::string& subset) const override;
  void check(const io::RowSource& source, std::uint64_t first, std::uint64_t count) const override;
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

 private:
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

  std::string name_;
  std::unique_ptr<ImageNetwork> network_;
  std::vector<float> mean_, deviation_;
  Staging staging_;
};

}  // namespace motley::train
