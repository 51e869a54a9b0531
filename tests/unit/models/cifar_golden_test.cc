// A training pass of every family against PyTorch in float64 (tests/golden/cifar.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/philox.h"
#include "kernels/buffer.h"
#include "models/image_archs.h"
#include "support/golden.h"

namespace motley {
namespace {

// The formulas of tests/golden/cifar.py.
constexpr std::uint64_t seed = 5;
constexpr std::uint32_t step = 3, first_slot = 11, image_stream = 0x1000, sign_stream = 0x2000;
constexpr std::int64_t batch = 4, classes = 10;

std::vector<std::uint32_t> random_words(std::size_t count, std::uint32_t index, std::uint32_t time) {
  const RandomKey key(seed, Purpose::initialization, index, time);
  std::vector<std::uint32_t> words(count + 3);
  for (std::size_t i = 0; i < count; i += 4) {
    const Philox4 block = random_block(key, 0, static_cast<std::uint32_t>(i / 4));
    std::memcpy(&words[i], &block, sizeof(block));
  }
  words.resize(count);
  return words;
}

double unit(std::uint32_t word) {
  return 2.0 * (word >> 8) / 16777216.0 - 1.0;
}

std::uint32_t name_hash(const std::string& name) {
  std::uint32_t hash = 0x811C9DC5;
  for (const char byte : name) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x01000193;
  return hash;
}

std::vector<float> formula_values(const Parameter& parameter, double spread) {
  const Shape& shape = parameter.shape;
  std::vector<float> values;
  const bool is_scale = parameter.name.ends_with("weight");
  const double bound = shape.rank() > 1 ? std::sqrt(6.0 / static_cast<double>(shape.elements_from(1))) : 0;
  for (const std::uint32_t word :
       random_words(static_cast<std::size_t>(shape.elements()), 0, name_hash(parameter.name))) {
    const double u = unit(word), sign = values.size() % 4 == 3 ? -1 : 1;
    const double of_channel = is_scale ? spread * (1 + 0.2 * u) : sign * (1 + 0.2 * u);
    values.push_back(static_cast<float>(shape.rank() > 1 ? u * bound : of_channel));
  }
  return values;
}

std::vector<float> values_of(Backend& backend, const View& view) {
  std::vector<float> values(static_cast<std::size_t>(view.elements()));
  backend.copy_to_host(values.data(), view.data, view.bytes());
  return values;
}

// Norm and four projections on signs.
struct Digest {
  double norm = 0;
  double projections[4] = {};
};

Digest digest(const std::string& name, const std::vector<float>& values) {
  Digest result;
  const std::vector<std::uint32_t> signs = random_words(values.size(), sign_stream, name_hash(name));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    result.norm += value * value;
    for (int k = 0; k < 4; ++k) result.projections[k] += (signs[i] >> k & 1) != 0 ? -value : value;
  }
  result.norm = std::sqrt(result.norm);
  return result;
}

double norm_of(const std::vector<float>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> difference(a.size());
  std::transform(a.begin(), a.end(), b.begin(), difference.begin(), std::minus<>());
  return norm_of(difference) / norm_of(b);
}

// Compares the tensors, in the order of their names, with their digests [tensors, 5]. A difference is measured by
// what it does to the projections, against the tensor's norm and a hundredth of the norm of all: biases before a
// batch norm have gradients of 0.
void expect_digests(const std::map<std::string, std::vector<float>>& tensors,
                    const std::vector<float>& golden, const std::string& what) {
  ASSERT_EQ(golden.size(), tensors.size() * 5);
  double total = 0;
  for (std::size_t i = 0; i < golden.size(); i += 5) total += golden[i] * static_cast<double>(golden[i]);
  total = std::sqrt(total);
  double worst = 0;
  std::string worst_name;
  std::size_t at = 0;
  for (const auto& [name, values] : tensors) {
    const Digest ours = digest(name, values);
    double squares = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      const double difference = ours.projections[k] - static_cast<double>(golden[at + 1 + k]);
      squares += difference * difference / 4;
    }
    const double distance = std::max(std::sqrt(squares), std::abs(ours.norm - golden[at]));
    const double relative = distance / (golden[at] + 1e-2 * total);
    if (!(relative <= worst)) {
      worst = relative;
      worst_name = name;
    }
    at += 5;
  }
  EXPECT_LT(worst, 1e-4) << what << " of " << worst_name;
  testing::Test::RecordProperty(what, std::to_string(worst));
}

class CifarGolden : public testing::TestWithParam<std::string> {};

TEST_P(CifarGolden, equals_pytorch_in_output_loss_and_all_gradients) {
  static const test::Golden golden("cifar.safetensors");
  const std::string name = GetParam();
  const std::vector<std::int32_t> side_and_draw = golden[name + ".images"].values<std::int32_t>();
  const std::int64_t side = side_and_draw[0];
  const double spread = golden[name + ".spread"].values<double>()[0];
  const Shape image{side, side, 3};
  const std::unique_ptr<Backend> backend = make_cpu_backend(2);
  const auto arch = std::find_if(image_archs().begin(), image_archs().end(),
                                 [&](const ImageArch& candidate) { return candidate.name == name; });
  ASSERT_NE(arch, image_archs().end());
  const std::unique_ptr<ImageNetwork> network = arch->make(image, classes);
  ParameterStore& store = network->parameters;
  store.allocate(*backend, true);
  store.initialize(1);
  for (std::size_t i = 0; i < store.all().size(); ++i) {
    const std::vector<float> values = formula_values(store.all()[i], spread);
    backend->copy_to_device(store.value(static_cast<int>(i)).data, values.data(),
                            values.size() * sizeof(float));
  }
  network->body.reserve(*backend, batch, true);

  std::vector<float> pixels;
  for (const std::uint32_t word : random_words(static_cast<std::size_t>(batch * image.elements()),
                                               image_stream + static_cast<std::uint32_t>(side_and_draw[1]),
                                               static_cast<std::uint32_t>(side)))
    pixels.push_back(static_cast<float>(2 * unit(word)));
  const View x = view_of(pixels.data(), image.with_batch(batch));
  std::vector<std::int32_t> labels;
  for (std::int32_t i = 0; i < batch; ++i) labels.push_back(i * 3 % 10);
  std::vector<double> sums(4);
  std::vector<float> gradient(batch * classes);
  const View dlogits = view_of(gradient.data(), Shape{batch, classes});

  const Pass pass{
      .backend = *backend, .training = true, .seed = seed, .step = step, .first_slot = first_slot};
  const View logits = network->body.forward(pass, x);
  EXPECT_LT(relative_distance(values_of(*backend, logits), golden[name + ".logits"].values<float>()), 1e-4);
  backend->softmax_nll(logits, view_of(labels), 5, view_of(sums), dlogits);
  const double loss = golden[name + ".loss"].values<double>()[0];
  EXPECT_NEAR(sums[0], loss, 1e-4 * loss);
  std::size_t finished = 0;
  network->body.backward(pass, x, dlogits, [&](std::size_t elements) {
    EXPECT_GT(elements, finished);
    finished = elements;
  });
  EXPECT_EQ(finished, store.arena_elements());

  std::map<std::string, std::vector<float>> gradients, statistics;
  for (std::size_t i = 0; i < store.all().size(); ++i)
    gradients[store.all()[i].name] = values_of(*backend, store.gradient(static_cast<int>(i)));
  for (std::size_t i = 0; i < store.all_statistics().size(); ++i)
    statistics[store.all_statistics()[i].name] = values_of(*backend, store.statistic(static_cast<int>(i)));
  expect_digests(gradients, golden[name + ".gradients"].values<float>(), "gradient");
  expect_digests(statistics, golden[name + ".statistics"].values<float>(), "statistic");

  // In evaluation, with memory for evaluation alone.
  network->body.reserve(*backend, batch, false);
  const View evaluated = network->body.forward(Pass{.backend = *backend}, x);
  EXPECT_LT(relative_distance(values_of(*backend, evaluated), golden[name + ".evaluated"].values<float>()),
            1e-4);
}

std::string case_name(const testing::TestParamInfo<std::string>& network) {
  std::string name = network.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(, CifarGolden,
                         testing::Values("vgg11", "resnet18", "resnet50", "resnet18_imagenet",
                                         "resnet50_imagenet", "resnet8", "preactresnet18", "preactresnet50",
                                         "resnext29_32x4d", "senet18", "densenet_cifar", "dpn26", "googlenet",
                                         "mobilenet", "mobilenetv2", "pnasnet_a", "pnasnet_b",
                                         "regnetx_200mf", "regnety_400mf", "efficientnet_b0", "shufflenet_g2",
                                         "shufflenet_g3", "shufflenetv2_0.5", "shufflenetv2_1"),
                         case_name);

}  // namespace
}  // namespace motley
