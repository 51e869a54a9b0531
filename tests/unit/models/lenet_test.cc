#include "models/lenet.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "support/paths.h"

namespace motley {
namespace {

constexpr std::int64_t batch_size = 4;

// The formulas of tests/golden/lenet.py.
std::vector<float> formula_weights(const Parameter& parameter, std::size_t index) {
  const std::map<std::string, double> fan_in = {
      {"conv1", 75}, {"conv2", 150}, {"fc1", 400}, {"fc2", 120}, {"fc3", 84}};
  const std::string layer = parameter.name.substr(0, parameter.name.find('.'));
  std::vector<float> values(static_cast<std::size_t>(parameter.shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        static_cast<float>(std::sin(0.37 * static_cast<double>(i) + 1.3 * static_cast<double>(index + 1)) /
                           std::sqrt(fan_in.at(layer)));
  }
  return values;
}

TEST(LeNet, equals_pytorch) {
  std::ifstream file(test::source_path("golden/lenet.json"));
  const auto golden = nlohmann::json::parse(file);
  const std::unique_ptr<Backend> backend = make_cpu_backend(2);
  const std::unique_ptr<ImageNetwork> network = make_lenet(Shape{32, 32, 3}, 10);
  ParameterStore& store = network->parameters;
  store.allocate(*backend, true);
  network->body.reserve(*backend, batch_size, true);
  for (std::size_t i = 0; i < store.all().size(); ++i) {
    const View view = store.value(static_cast<int>(i));
    backend->copy_to_device(view.data, formula_weights(store.all()[i], i).data(), view.bytes());
  }
  std::vector<float> pixels(batch_size * 32 * 32 * 3);
  for (std::size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = static_cast<float>(std::cos(0.011 * static_cast<double>(i)));
  std::vector<std::int32_t> labels;
  for (std::int32_t i = 0; i < batch_size; ++i) labels.push_back(i * 3 % 10);
  Buffer input(*backend, pixels.size() * sizeof(float)),
      targets(*backend, labels.size() * sizeof(std::int32_t));
  Buffer sums(*backend, 4 * sizeof(double)), dlogits(*backend, batch_size * 10 * sizeof(float));
  const View x = input.view(DType::f32, Shape{batch_size, 32, 32, 3});
  backend->copy_to_device(x.data, pixels.data(), x.bytes());
  backend->copy_to_device(targets.data(), labels.data(), labels.size() * sizeof(std::int32_t));
  backend->fill_zero(sums.view(DType::f64, Shape{4}));

  const Pass pass{.backend = *backend, .training = true};
  const View logits = network->body.forward(pass, x);
  const View d = dlogits.view(DType::f32, logits.shape);
  backend->softmax_nll(logits, targets.view(DType::i32, Shape{batch_size}), 5,
                       sums.view(DType::f64, Shape{4}), d);
  std::vector<float> host_logits(batch_size * 10);
  backend->copy_to_host(host_logits.data(), logits.data, logits.bytes());
  network->body.backward(pass, x, d, {});

  double host_sums[4];
  backend->copy_to_host(host_sums, sums.data(), sizeof host_sums);
  const double loss = golden["loss_sum"].get<double>();
  EXPECT_NEAR(host_sums[0], loss, 1e-5 * loss);
  for (std::size_t i = 0; i < host_logits.size(); ++i)
    EXPECT_NEAR(host_logits[i], golden["logits"][i].get<double>(), 1e-5) << "logit " << i;
  for (std::size_t i = 0; i < store.all().size(); ++i) {
    const View view = store.gradient(static_cast<int>(i));
    std::vector<float> gradient(static_cast<std::size_t>(view.elements()));
    backend->copy_to_host(gradient.data(), view.data, view.bytes());
    const auto& expected = golden["gradients"][store.all()[i].name];
    double square = 0;
    for (const float value : gradient) square += static_cast<double>(value) * value;
    const double norm = expected["norm"].get<double>();
    EXPECT_NEAR(std::sqrt(square), norm, 1e-5 * norm) << store.all()[i].name;
    const double typical = norm / std::sqrt(static_cast<double>(gradient.size()));
    for (std::size_t k = 0; k < 32; ++k) {
      EXPECT_NEAR(gradient[k * 104729 % gradient.size()], expected["values"][k].get<double>(), 1e-4 * typical)
          << store.all()[i].name << " element " << k;
    }
  }
}

}  // namespace
}  // namespace motley
