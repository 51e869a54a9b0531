#include "golden_network.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/philox.h"
#include "kernels/buffer.h"
#include "models/image_archs.h"
#include "support/golden.h"

namespace motley::test {
namespace {

// The formulas of tests/golden/cifar.py.
constexpr std::uint64_t seed = 5;
constexpr std::uint32_t step = 3, first_slot = 11, image_stream = 0x1000, sign_stream = 0x2000;
constexpr std::int64_t batch = 4, classes = 10;

const Golden& golden() {
  static const Golden file("cifar.safetensors");
  return file;
}

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

// Through `rounded` to the type of `out`.
void put(Backend& backend, const std::vector<float>& values, DType rounded, const View& out) {
  const Buffer exact(backend, values.size() * sizeof(float)),
      between(backend, values.size() * size_of(rounded));
  backend.copy_to_device(exact.data(), values.data(), exact.bytes());
  backend.cast(exact.view(DType::f32, out.shape), between.view(rounded, out.shape));
  backend.cast(between.view(rounded, out.shape), out);
  backend.synchronize();
}

double norm_of(const std::vector<float>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

}  // namespace

NetworkPass golden_pass(Backend& backend, const std::string& name, DType type, DType rounded) {
  const std::vector<std::int32_t> side_and_draw = golden()[name + ".images"].values<std::int32_t>();
  const std::int64_t side = side_and_draw[0];
  const double spread = golden()[name + ".spread"].values<double>()[0];
  const Shape image{side, side, 3};
  const std::unique_ptr<ImageNetwork> network = find_image_arch(name).make(image, classes);
  ParameterStore& store = network->parameters;
  store.allocate(backend, true, type);
  store.initialize(1);
  for (std::size_t i = 0; i < store.all().size(); ++i) {
    put(backend, formula_values(store.all()[i], spread), rounded, store.value(static_cast<int>(i)));
  }
  store.changed();
  store.refresh_copy();
  network->body.reserve(backend, batch, true, type);

  std::vector<float> pixels;
  for (const std::uint32_t word : random_words(static_cast<std::size_t>(batch * image.elements()),
                                               image_stream + static_cast<std::uint32_t>(side_and_draw[1]),
                                               static_cast<std::uint32_t>(side)))
    pixels.push_back(static_cast<float>(2 * unit(word)));
  const Shape x_shape = image.with_batch(batch), logits_shape{batch, classes};
  const Buffer x_buffer(backend, pixels.size() * size_of(type));
  const View x = x_buffer.view(type, x_shape);
  put(backend, pixels, rounded, x);
  std::vector<std::int32_t> labels;
  for (std::int32_t i = 0; i < batch; ++i) labels.push_back(i * 3 % 10);
  const Buffer labels_buffer(backend, labels.size() * sizeof(std::int32_t)),
      sums_buffer(backend, 4 * sizeof(double)),
      dlogits_buffer(backend, static_cast<std::size_t>(batch * classes) * size_of(type));
  backend.copy_to_device(labels_buffer.data(), labels.data(), labels_buffer.bytes());
  const View sums = sums_buffer.view(DType::f64, Shape{4}), dlogits = dlogits_buffer.view(type, logits_shape);
  backend.fill_zero(sums);

  NetworkPass result;
  const Pass pass{.backend = backend, .training = true, .seed = seed, .step = step, .first_slot = first_slot};
  const View logits = network->body.forward(pass, x);
  result.logits = values_of(backend, logits);
  backend.softmax_nll(logits, labels_buffer.view(DType::i32, Shape{batch}), 5, sums, dlogits);
  double host_sums[4];
  backend.copy_to_host(host_sums, sums.data, sums.bytes());
  result.loss = host_sums[0];
  network->body.backward(pass, x, dlogits,
                         [&](std::size_t elements) { result.finished.push_back(elements); });
  result.arena_elements = store.arena_elements();
  for (std::size_t i = 0; i < store.all().size(); ++i)
    result.gradients[store.all()[i].name] = values_of(backend, store.gradient(static_cast<int>(i)));
  for (std::size_t i = 0; i < store.all_statistics().size(); ++i)
    result.statistics[store.all_statistics()[i].name] =
        values_of(backend, store.statistic(static_cast<int>(i)));

  // In evaluation, with memory for evaluation alone.
  network->body.reserve(backend, batch, false, type);
  result.evaluated = values_of(backend, network->body.forward(Pass{.backend = backend}, x));
  return result;
}

GoldenPass golden_of(const std::string& name) {
  const Golden& file = golden();
  return {.logits = file[name + ".logits"].values<float>(),
          .evaluated = file[name + ".evaluated"].values<float>(),
          .loss = file[name + ".loss"].values<double>()[0],
          .gradients = file[name + ".gradients"].values<float>(),
          .statistics = file[name + ".statistics"].values<float>()};
}

const std::vector<std::string>& golden_networks() {
  static const std::vector<std::string> names = {
      "vgg11",          "resnet18",       "resnet50",         "resnet18_imagenet", "resnet50_imagenet",
      "resnet8",        "preactresnet18", "preactresnet50",   "resnext29_32x4d",   "senet18",
      "densenet_cifar", "dpn26",          "googlenet",        "mobilenet",         "mobilenetv2",
      "pnasnet_a",      "pnasnet_b",      "regnetx_200mf",    "regnety_400mf",     "efficientnet_b0",
      "shufflenet_g2",  "shufflenet_g3",  "shufflenetv2_0.5", "shufflenetv2_1"};
  return names;
}

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

double distance_of_projections(const Digest& ours, const float* golden) {
  double squares = 0;
  for (std::size_t k = 0; k < 4; ++k) {
    const double difference = ours.projections[k] - static_cast<double>(golden[1 + k]);
    squares += difference * difference / 4;
  }
  return std::sqrt(squares);
}

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> difference(a.size());
  std::transform(a.begin(), a.end(), b.begin(), difference.begin(), std::minus<>());
  return norm_of(difference) / norm_of(b);
}

}  // namespace motley::test
