// A training step of an image network with the program's own network, optimizer and update: what image_step_bench
// times on the CPU and gpu_image_step_bench on a GPU.
#pragma once

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/buffer.h"
#include "models/image_archs.h"
#include "train/optimizer.h"
#include "train/update.h"

namespace motley::bench {

inline Shape square_image(std::int64_t side) {
  return Shape{side, side, 3};
}

// Each with stripes of its own direction, width and colour, and a little noise: of noise alone all images would look the
// same to a network, whose batch norms would make much of the little that they differ in.
inline std::vector<std::uint8_t> striped_images(std::int64_t n, std::int64_t side) {
  std::vector<std::uint8_t> pixels;
  pixels.reserve(static_cast<std::size_t>(square_image(side).with_batch(n).elements()));
  std::uint32_t noise = 1;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t row = 0; row < side; ++row) {
      for (std::int64_t column = 0; column < side; ++column) {
        const std::int64_t wave = (row * (1 + i % 5) + column * (1 + i % 7)) * 256 / side;
        for (std::int64_t channel = 0; channel < 3; ++channel) {
          const std::int64_t stripe = std::abs((wave + i * 37 + channel * (i % 11) * 16) % 256 - 128);
          noise = noise * 1664525 + 1013904223;
          pixels.push_back(static_cast<std::uint8_t>(stripe + (i * 53 + channel * 29) % 96 + (noise >> 27)));
        }
      }
    }
  }
  return pixels;
}

// Normalisation of the images, forward, backward, SGD with momentum. The images and their labels lie on the device.
class ImageStep {
 public:
  ImageStep(Backend& backend, const ImageArch& arch, std::int64_t n, std::int64_t side, DType type)
      : backend_(backend),
        network_(arch.make(square_image(side), arch.classes)),
        // As --precision fp16 has it: the loss scale over the batch, rounded up to a power of two (train/stepper.cc).
        weight_(type == DType::f16 ? 128.0 / static_cast<double>(std::bit_ceil(static_cast<std::uint64_t>(n)))
                                   : 1) {
    ParameterStore& store = network_->parameters;
    store.allocate(backend, true, type);
    store.initialize(1);
    network_->body.reserve(backend, n, true, type);
    const Shape images = square_image(side).with_batch(n), scores{n, arch.classes};
    memory_ = Buffer(backend, bytes(images, scores, type));
    std::size_t at = 0;
    const auto take = [&](DType of, const Shape& shape) {
      const View view = memory_.view(of, shape, at);
      at += padded(view.bytes());
      return view;
    };
    pixels_ = take(DType::u8, images);
    x_ = take(type, images);
    labels_ = take(DType::i32, Shape{n});
    dlogits_ = take(type, scores);
    const std::vector<std::uint8_t> pixels = striped_images(n, side);
    std::vector<std::int32_t> labels;
    for (std::int64_t i = 0; i < n; ++i) labels.push_back(static_cast<std::int32_t>(i * 7 % arch.classes));
    backend.copy_to_device(pixels_.data, pixels.data(), pixels.size());
    backend.copy_to_device(labels_.data, labels.data(), labels_.bytes());
    train::OptimizerOptions options;
    options.name = "sgd";
    options.weight_decay = 5e-4;
    optimizer_ = train::make_optimizer(options, backend, store);
    update_.emplace(backend, 4, store, *optimizer_, 0);
  }

  // Bytes that it takes: parameters, gradients, momentum, the copy in the compute type, and what the batch needs.
  static double memory_bytes(const ImageArch& arch, std::int64_t n, std::int64_t side, DType type) {
    const std::unique_ptr<ImageNetwork> network = arch.make(square_image(side), arch.classes);
    const auto parameters = static_cast<double>(network->parameters.count());
    return parameters * (3 * sizeof(float) + (type == DType::f32 ? 0.0 : 2.0)) +
           static_cast<double>(network->body.memory_bytes(n, true, type) +
                               bytes(square_image(side).with_batch(n), Shape{n, arch.classes}, type));
  }

  // The mean loss of the batch. `stretch`: the passes are a stretch of the backend, as in the trainer.
  static constexpr double rate = 1e-3;
  double step(double lr = rate, bool stretch = true) {
    ++step_;
    const View sums = update_->sums();
    backend_.fill_zero(sums);
    const Pass pass{.backend = backend_,
                    .training = true,
                    .seed = 1,
                    .step = static_cast<std::uint32_t>(step_),
                    .gradient_weight = static_cast<float>(weight_)};
    network_->parameters.refresh_copy();
    const auto train = [&] {
      backend_.normalize_images(pixels_, mean_, deviation_, x_);
      const View logits = network_->body.forward(pass, x_);
      backend_.softmax_nll(logits, labels_, 5, sums, dlogits_, pass.gradient_weight);
      network_->body.backward(pass, x_, dlogits_, {});
    };
    if (stretch) {
      backend_.run_stretch({labels_.elements(), 0}, train, train);
    } else {
      train();
    }
    norm_ = update_->norm(weight_ * static_cast<double>(labels_.elements()));
    update_->step(lr, step_);
    backend_.synchronize();
    double host[4];
    backend_.copy_to_host(host, sums.data, sizeof host);
    return host[0] / host[1];
  }

  // Of the last step's gradient.
  double norm() const { return norm_; }
  std::int64_t parameters() const { return network_->parameters.count(); }
  std::int64_t multiply_adds() const { return network_->body.multiply_adds(); }

 private:
  static std::size_t padded(std::size_t size) { return (size + 255) / 256 * 256; }
  static std::size_t bytes(const Shape& images, const Shape& scores, DType type) {
    const auto pixels = static_cast<std::size_t>(images.elements());
    return padded(pixels) + padded(pixels * size_of(type)) +
           padded(static_cast<std::size_t>(images[0]) * sizeof(std::int32_t)) +
           padded(static_cast<std::size_t>(scores.elements()) * size_of(type));
  }

  Backend& backend_;
  std::unique_ptr<ImageNetwork> network_;
  double weight_, norm_ = 0;
  const std::vector<float> mean_{0.5F, 0.5F, 0.5F}, deviation_{0.25F, 0.25F, 0.25F};
  Buffer memory_;
  View pixels_, x_, labels_, dlogits_;
  std::unique_ptr<train::Optimizer> optimizer_;
  std::optional<train::Update> update_;
  std::int64_t step_ = 0;
};

}  // namespace motley::bench
