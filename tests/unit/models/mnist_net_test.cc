#include "models/mnist_net.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/paths.h"
#include "support/reference_mnist.h"

namespace motley {
namespace {

constexpr std::uint64_t seed = 42;
constexpr std::uint32_t step = 3, first_slot = 11;
constexpr std::int64_t batch_size = 5;

// The formulas of tests/golden/mnist_net.py.
std::vector<float> formula_weights(const Parameter& parameter, std::size_t index) {
  const std::string layer = parameter.name.substr(0, parameter.name.find('.'));
  const std::map<std::string, double> fan_in = {{"conv1", 9}, {"conv2", 288}, {"fc1", 9216}, {"fc2", 128}};
  std::vector<float> values(static_cast<std::size_t>(parameter.shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        static_cast<float>(std::sin(0.37 * static_cast<double>(i) + 1.3 * static_cast<double>(index + 1)) /
                           std::sqrt(fan_in.at(layer)));
  }
  return values;
}

test::ReferenceBatch formula_batch(std::int64_t n) {
  test::ReferenceBatch batch;
  for (std::int64_t i = 0; i < n * 784; ++i)
    batch.pixels.push_back(static_cast<std::uint8_t>((i * 7919 + 13) % 256));
  for (std::int64_t i = 0; i < n; ++i) batch.labels.push_back(static_cast<int>(i * 3 % 10));
  batch.seed = seed;
  batch.step = step;
  batch.first_slot = first_slot;
  return batch;
}

// The network on the CPU backend, fed in micro-batches of the given sizes.
struct Outcome {
  std::vector<double> logits;
  double loss_sum = 0;
  std::map<std::string, std::vector<double>> gradients;
  test::ReferenceParameters parameters;
};

Outcome run_network(const std::vector<std::int64_t>& micro_batches, bool training = true) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(2);
  const std::unique_ptr<ImageNetwork> network = make_mnist_net();
  network->parameters.allocate(*backend, true);
  network->body.reserve(*backend, batch_size, true);
  Outcome result;
  for (std::size_t i = 0; i < network->parameters.all().size(); ++i) {
    const std::vector<float> values = formula_weights(network->parameters.all()[i], i);
    const View view = network->parameters.value(static_cast<int>(i));
    backend->copy_to_device(view.data, values.data(), view.bytes());
    result.parameters[network->parameters.all()[i].name] = {values.begin(), values.end()};
  }
  Buffer pixels(*backend, batch_size * 784), input(*backend, batch_size * 784 * 4),
      labels(*backend, batch_size * 4);
  Buffer sums(*backend, 4 * 8), dlogits(*backend, batch_size * 10 * 4);
  const test::ReferenceBatch batch = formula_batch(batch_size);
  std::int64_t first = 0;
  for (const std::int64_t n : micro_batches) {
    backend->copy_to_device(pixels.data(), batch.pixels.data() + first * 784,
                            static_cast<std::size_t>(n * 784));
    backend->copy_to_device(labels.data(), batch.labels.data() + first, static_cast<std::size_t>(n) * 4);
    const View x = input.view(DType::f32, Shape{n, 28, 28, 1});
    const float mean = 0.1307f, deviation = 0.3081f;
    backend->normalize_images(pixels.view(DType::u8, x.shape), {&mean, 1}, {&deviation, 1}, x);
    const Pass pass{*backend, training, seed, step, static_cast<std::uint32_t>(first_slot + first),
                    first > 0};
    const View logits = network->body.forward(pass, x);
    std::vector<float> host(static_cast<std::size_t>(n * 10));
    backend->copy_to_host(host.data(), logits.data, logits.bytes());
    result.logits.insert(result.logits.end(), host.begin(), host.end());
    const View d = dlogits.view(DType::f32, logits.shape);
    backend->softmax_nll(logits, labels.view(DType::i32, Shape{n}), 5, sums.view(DType::f64, Shape{4}), d);
    if (training) network->body.backward(pass, x, d, {});
    first += n;
  }
  double host_sums[4];
  backend->copy_to_host(host_sums, sums.data(), sizeof(host_sums));
  result.loss_sum = host_sums[0];
  for (std::size_t i = 0; i < network->parameters.all().size(); ++i) {
    const View view = network->parameters.gradient(static_cast<int>(i));
    std::vector<float> host(static_cast<std::size_t>(view.elements()));
    backend->copy_to_host(host.data(), view.data, view.bytes());
    result.gradients[network->parameters.all()[i].name] = {host.begin(), host.end()};
  }
  return result;
}

double relative_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

TEST(MnistNet, has_the_parameters_of_hetseqs_network) {
  const std::unique_ptr<ImageNetwork> network = make_mnist_net();
  EXPECT_EQ(network->parameters.count(), 1199882);
  std::string names;
  for (const Parameter& parameter : network->parameters.all())
    names += parameter.name + parameter.shape.to_string() + " ";
  EXPECT_EQ(names,
            "conv1.weight[32, 1, 3, 3] conv1.bias[32] conv2.weight[64, 32, 3, 3] conv2.bias[64] "
            "fc1.weight[128, 9216] "
            "fc1.bias[128] fc2.weight[10, 128] fc2.bias[10] ");
}

TEST(MnistNet, equals_pytorch_with_dropout) {
  std::ifstream file(test::source_path("golden/mnist_net.json"));
  const auto golden = nlohmann::json::parse(file);
  const Outcome ours = run_network({batch_size});
  EXPECT_LT(relative_distance(ours.logits, golden["logits"].get<std::vector<double>>()), 1e-5);
  EXPECT_NEAR(ours.loss_sum, golden["loss_sum"].get<double>(), 1e-5 * golden["loss_sum"].get<double>());
  for (const auto& [name, gradient] : ours.gradients) {
    const auto& expected = golden["gradients"][name];
    double norm = 0;
    for (const double value : gradient) norm += value * value;
    norm = std::sqrt(norm);
    EXPECT_NEAR(norm, expected["norm"].get<double>(), 1e-5 * norm) << name;
    const double typical = norm / std::sqrt(static_cast<double>(gradient.size()));
    for (std::size_t k = 0; k < 32; ++k) {
      EXPECT_NEAR(gradient[k * 104729 % gradient.size()], expected["values"][k].get<double>(), 1e-4 * typical)
          << name << " element " << k * 104729 % gradient.size();
    }
  }
}

TEST(MnistNet, equals_the_float64_reference_in_every_gradient) {
  const Outcome ours = run_network({batch_size});
  const test::ReferenceResult reference = test::reference_mnist(ours.parameters, formula_batch(batch_size));
  EXPECT_LT(relative_distance(ours.logits, reference.logits), 1e-5);
  for (const auto& [name, gradient] : ours.gradients) {
    EXPECT_LT(relative_distance(gradient, reference.gradients.at(name)), 1e-5) << name;
  }
}

TEST(MnistNet, is_the_same_however_the_batch_is_cut) {
  const Outcome whole = run_network({5});
  for (const std::vector<std::int64_t>& cut : {std::vector<std::int64_t>{1, 1, 1, 1, 1}, {3, 2}, {1, 4}}) {
    const Outcome parts = run_network(cut);
    EXPECT_LT(relative_distance(parts.logits, whole.logits), 1e-5);
    for (const auto& [name, gradient] : parts.gradients) {
      EXPECT_LT(relative_distance(gradient, whole.gradients.at(name)), 1e-5) << name;
    }
  }
}

TEST(MnistNet, drops_nothing_in_evaluation) {
  const Outcome ours = run_network({batch_size}, false);
  test::ReferenceBatch batch = formula_batch(batch_size);
  batch.dropout = false;
  EXPECT_LT(relative_distance(ours.logits, test::reference_mnist(ours.parameters, batch).logits), 1e-5);
}

}  // namespace
}  // namespace motley
