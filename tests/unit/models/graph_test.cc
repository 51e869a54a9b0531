#include "models/graph.h"

#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "core/philox.h"
#include "models/network_builder.h"

namespace motley {
namespace {

std::vector<float> random_values(std::int64_t count, std::uint32_t stream) {
  const RandomKey key(9, Purpose::initialization, stream, 0);
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(2 * to_unit_float(random_u32(key, 0, static_cast<std::uint32_t>(i))) - 1);
  return values;
}

std::vector<float> values_of(const View& view) {
  const auto* values = view.as<float>();
  return {values, values + view.elements()};
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

// --- Graphs of linear nodes, wired at random ----------------------------------------------------------------

constexpr std::int64_t side = 3, rows = 2;

// Every value is used: those that nobody reads are concatenated in the end.
std::unique_ptr<ImageNetwork> random_linear_network(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t bound) { return random() % bound; };
  NetworkBuilder net(Shape{side, side, 3}, 5);
  std::vector<Value> values;
  std::vector<bool> read;
  const auto made = [&](Value value) {
    values.push_back(value);
    read.push_back(false);
  };
  const auto pick = [&] {
    const std::size_t index = below(values.size());
    read[index] = true;
    return values[index];
  };
  const auto pick_like = [&](Value other) {
    std::vector<std::size_t> alike;
    for (std::size_t i = 0; i < values.size(); ++i)
      if (net.shape(values[i]) == net.shape(other)) alike.push_back(i);
    const std::size_t index = alike[below(alike.size())];
    read[index] = true;
    return values[index];
  };
  made(net.conv(net.input(), "first", {.out = 4, .kernel = 1}));
  for (int i = 0; i < 12; ++i) {
    const Value x = pick();
    switch (below(7)) {
      case 0:
      case 1:
        made(net.add(x, pick_like(x)));
        break;
      case 2: {
        const Value y = pick();
        made(net.concat({x, y, pick_like(y)}));
        break;
      }
      case 3: {
        if (net.channels(x) < 4) {
          made(net.conv(x, "widen" + std::to_string(i), {.out = 4}));
          break;
        }
        const auto [left, right] = net.split(x, net.channels(x) / 2);
        made(left);
        made(right);
        break;
      }
      case 4: {
        const Value y = pick();
        made(net.add_concat(x, y, std::min(net.channels(x), net.channels(y)) - 1));
        break;
      }
      case 5:
        made(net.conv(x, "conv" + std::to_string(i), {.out = 4}));
        break;
      default:
        made(net.avg_pool(x, {.kernel = 3, .stride = 1, .pad = 1}));
    }
    // Small enough to stay quick.
    if (net.channels(values.back()) > 40)
      values.back() = net.conv(values.back(), "fit" + std::to_string(i), {.out = 4, .kernel = 1});
  }
  std::vector<Value> last;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!read[i]) last.push_back(values[i]);
  if (last.size() == 1) last.push_back(last.front());
  net.flatten(net.concat(last));
  return net.finish();
}

// The output is linear in the weights of each convolution alone, so that the gradient of <dy, output> by a weight is
// <dy, output> with that weight 1 and its siblings 0.
TEST(Graph, gradients_flow_back_along_every_path_of_random_graphs) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const std::unique_ptr<Backend> backend = make_cpu_backend(1);
    const std::unique_ptr<ImageNetwork> network = random_linear_network(seed);
    ParameterStore& store = network->parameters;
    store.allocate(*backend, true);
    store.initialize(seed);
    network->body.reserve(*backend, rows, true);
    std::vector<float> input = random_values(rows * side * side * 3, 1);
    const View x = view_of(input.data(), Shape{rows, side, side, 3});
    const std::int64_t outputs = network->body.output_shape().elements();
    std::vector<float> gradient = random_values(rows * outputs, 2);
    const ConstView dy = view_of(gradient.data(), Shape{rows, outputs});
    const Pass pass{.backend = *backend, .training = true};
    network->body.forward(pass, x);
    network->body.backward(pass, x, dy, {});
    for (std::size_t p = 0; p < store.all().size(); ++p) {
      const View weight = store.value(static_cast<int>(p));
      const std::vector<float> before = values_of(weight);
      std::vector<float> expected;
      for (std::size_t i = 0; i < before.size(); ++i) {
        std::fill_n(weight.as<float>(), before.size(), 0.0f);
        weight.as<float>()[i] = 1;
        const std::vector<float> y = values_of(network->body.forward(pass, x));
        double sum = 0;
        for (std::size_t k = 0; k < y.size(); ++k) sum += static_cast<double>(y[k]) * gradient[k];
        std::fill_n(weight.as<float>(), before.size(), 0.0f);
        const std::vector<float> without = values_of(network->body.forward(pass, x));
        for (std::size_t k = 0; k < y.size(); ++k) sum -= static_cast<double>(without[k]) * gradient[k];
        expected.push_back(static_cast<float>(sum));
      }
      std::memcpy(weight.data, before.data(), weight.bytes());
      EXPECT_LT(distance(values_of(store.gradient(static_cast<int>(p))), expected), 1e-4)
          << "graph " << seed << ", " << store.all()[p].name;
    }
  }
}

// --- A small network with every kind of batch norm -----------------------------------------------------------

constexpr std::int64_t classes = 7;
const Shape image{6, 6, 3};

std::unique_ptr<ImageNetwork> small_network() {
  NetworkBuilder net(image, classes);
  Value x = net.conv_bn(net.input(), "conv1", "bn1", {.out = 16}, Activation::relu);
  Value y = net.conv_bn(x, "conv2", "bn2", {.out = 16}, Activation::swish);
  y = net.squeeze_excite(y, "se.fc1", "se.fc2", 4, Activation::swish);
  x = net.conv_bn_add(y, "conv3", "bn3", {.out = 16, .kernel = 1}, x, Activation::relu);
  y = net.conv_bn(x, "conv4", "bn4", {.out = 16, .groups = 16}, Activation::relu);
  x = net.conv_bn_add(y, "conv5", "bn5", {.out = 16, .kernel = 1}, x, Activation::none);
  x = net.relu(net.add_concat(x, net.conv(x, "conv6", {.out = 24}), 8));
  x = net.max_pool(net.batch_norm(x, "bn7", Activation::none));
  const auto [left, right] = net.split(x, 12);
  x = net.shuffle(net.concat({right, left}), 4);
  x = net.conv(x, "conv7", {.out = 16, .stride = 2});
  x = net.dropout(net.linear(net.global_avg_pool(x), "hidden", 16, Activation::relu), 0.5);
  net.classify(x, "fc");
  return net.finish();
}

struct Outcome {
  std::vector<float> logits, gradients, statistics;
};

// Rows [first, first + n) of the batch, as one rank of several or alone.
Outcome run_rank(std::int64_t first, std::int64_t n, std::int64_t batch, StatisticsSum* statistics) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const std::unique_ptr<ImageNetwork> network = small_network();
  ParameterStore& store = network->parameters;
  store.allocate(*backend, true);
  store.initialize(3);
  network->body.reserve(*backend, n, true);
  std::vector<float> input = random_values(batch * image.elements(), 1),
                     dy = random_values(batch * classes, 2);
  const ConstView x = view_of(std::as_const(input).data() + first * image.elements(), image.with_batch(n));
  const Pass pass{.backend = *backend,
                  .training = true,
                  .seed = 4,
                  .step = 5,
                  .first_slot = static_cast<std::uint32_t>(first),
                  .statistics = statistics,
                  .batch = batch};
  Outcome result;
  result.logits = values_of(network->body.forward(pass, x));
  network->body.backward(pass, x, view_of(&dy[0] + first * classes, Shape{n, classes}), {});
  result.gradients = values_of(store.gradients());
  result.statistics = values_of(store.statistics());
  return result;
}

// Adds up over threads, each of which stands for a rank. Backends of one process share prepared convolutions, which only
// one may run at a time: shares are all different, but for those of no samples.
class ThreadSum final : public StatisticsSum {
 public:
  struct Shared {
    explicit Shared(std::ptrdiff_t ranks) : meeting(ranks), sums(static_cast<std::size_t>(ranks)) {}
    std::barrier<> meeting;
    std::vector<std::vector<double>> sums;
    int calls = 0;
  };
  ThreadSum(Shared& shared, std::size_t rank) : shared_(shared), rank_(rank) {}

  void add_up(View sums) override {
    auto* values = sums.as<double>();
    const auto count = static_cast<std::size_t>(sums.elements());
    shared_.sums[rank_].assign(values, values + count);
    if (rank_ == 0) ++shared_.calls;
    shared_.meeting.arrive_and_wait();
    std::fill_n(values, count, 0.0);
    for (const std::vector<double>& of_rank : shared_.sums) {
      ASSERT_EQ(of_rank.size(), count) << "the ranks add up different statistics";
      for (std::size_t i = 0; i < count; ++i) values[i] += of_rank[i];
    }
    shared_.meeting.arrive_and_wait();
  }

 private:
  Shared& shared_;
  std::size_t rank_;
};

// Law 1 in small: batch norm's statistics are those of the global batch however it is divided, and a rank may have
// no samples.
TEST(Graph, batch_norm_over_ranks_is_that_of_the_whole_batch) {
  const std::int64_t batch = 8;
  const Outcome whole = run_rank(0, batch, batch, nullptr);
  for (const std::vector<std::int64_t>& shares :
       {std::vector<std::int64_t>{1, 2, 5}, {3, 0, 5}, {0, 8}, {8}, {3, 5, 0, 0}}) {
    ThreadSum::Shared shared(static_cast<std::ptrdiff_t>(shares.size()));
    std::vector<Outcome> parts(shares.size());
    std::vector<std::thread> ranks;
    std::int64_t first = 0;
    for (std::size_t rank = 0; rank < shares.size(); ++rank) {
      ranks.emplace_back([&, rank, first] {
        ThreadSum sum(shared, rank);
        parts[rank] = run_rank(first, shares[rank], batch, &sum);
      });
      first += shares[rank];
    }
    for (std::thread& rank : ranks) rank.join();
    std::vector<float> logits, gradients(whole.gradients.size());
    for (const Outcome& part : parts) {
      logits.insert(logits.end(), part.logits.begin(), part.logits.end());
      for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] += part.gradients[i];
      EXPECT_EQ(part.statistics, parts[0].statistics) << "ranks differ in their running statistics";
      EXPECT_LT(distance(part.statistics, whole.statistics), 1e-6);
    }
    EXPECT_LT(distance(logits, whole.logits), 1e-5);
    EXPECT_LT(distance(gradients, whole.gradients), 1e-5);
    EXPECT_EQ(shared.calls, 2 * 6) << "forward and backward of each batch norm";
  }
}

TEST(Graph, micro_batches_need_not_fill_the_memory) {
  const Outcome exact = run_rank(2, 3, 8, nullptr);
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const std::unique_ptr<ImageNetwork> network = small_network();
  network->parameters.allocate(*backend, true);
  network->parameters.initialize(3);
  network->body.reserve(*backend, 8, true);
  const std::vector<float> input = random_values(8 * image.elements(), 1), dy = random_values(8 * classes, 2);
  const Pass pass{.backend = *backend, .training = true, .seed = 4, .step = 5, .first_slot = 2};
  const ConstView x = view_of(&input[0] + 2 * image.elements(), image.with_batch(3));
  EXPECT_EQ(values_of(network->body.forward(pass, x)), exact.logits);
  network->body.backward(pass, x, view_of(&dy[0] + 2 * classes, Shape{3, classes}), {});
  EXPECT_EQ(values_of(network->parameters.gradients()), exact.gradients);
}

TEST(Graph, takes_the_memory_that_it_says_and_reuses_it) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const std::unique_ptr<ImageNetwork> network = small_network();
  network->parameters.allocate(*backend, true);
  const std::size_t before = backend->allocated_bytes();
  std::size_t bytes[2];
  for (const bool training : {false, true}) {
    network->body.reserve(*backend, 16, training);
    bytes[training ? 1 : 0] = backend->allocated_bytes() - before;
    EXPECT_EQ(backend->allocated_bytes() - before, network->body.memory_bytes(16, training));
  }
  // Evaluation holds what one node reads and writes, and the shortcut; the largest are 6x6x32.
  const std::size_t largest = 16 * 6 * 6 * 32 * sizeof(float);
  EXPECT_LE(bytes[0], 3 * largest);
  EXPECT_GT(bytes[1], bytes[0]);
  EXPECT_LT(network->body.memory_bytes(16, true, DType::bf16), bytes[1] * 11 / 20);
}

TEST(Graph, evaluates_in_the_memory_of_training_with_the_same_bits) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const std::unique_ptr<ImageNetwork> network = small_network();
  network->parameters.allocate(*backend, true);
  network->parameters.initialize(3);
  const std::vector<float> input = random_values(4 * image.elements(), 1);
  const ConstView x = view_of(input.data(), image.with_batch(4));
  std::vector<float> logits[2];
  for (const bool training : {false, true}) {
    network->body.reserve(*backend, 4, training);
    logits[training ? 1 : 0] = values_of(network->body.forward(Pass{.backend = *backend}, x));
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST(Graph, after_out_of_memory_nothing_is_reserved_and_less_may_be) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const std::unique_ptr<ImageNetwork> network = small_network();
  network->parameters.allocate(*backend, true);
  const std::size_t before = backend->allocated_bytes();
  backend->set_memory_limit(before + network->body.memory_bytes(7, true));
  network->body.reserve(*backend, 7, true);
  EXPECT_THROW(network->body.reserve(*backend, 8, true), OutOfMemory);
  EXPECT_EQ(backend->allocated_bytes(), before);
  network->body.reserve(*backend, 7, true);
}

TEST(Graph, a_batch_of_one_value_per_channel_has_no_variance) {
  NetworkBuilder net(Shape{1, 1, 3}, 2);
  net.classify(net.conv_bn(net.input(), "conv", "bn", {.out = 4}, Activation::relu), "fc");
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const std::unique_ptr<ImageNetwork> network = net.finish();
  network->parameters.allocate(*backend, true);
  network->body.reserve(*backend, 2, true);
  const std::vector<float> input = random_values(6, 1);
  const Pass pass{.backend = *backend, .training = true, .step = 12};
  try {
    network->body.forward(pass, view_of(input.data(), Shape{1, 1, 1, 3}));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_NE(std::string(error.what())
                  .find("bn: batch norm needs more than one value per channel; the batch of step 12"),
              std::string::npos)
        << error.what();
  }
  network->body.forward(pass, view_of(input.data(), Shape{2, 1, 1, 3}));
}

// --- Half precision ------------------------------------------------------------------------------------------

TEST(Graph, computes_in_bfloat16_with_float32_logits_and_gradients) {
  const std::int64_t n = 16;
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const std::vector<float> input = random_values(n * image.elements(), 1), dy = random_values(n * classes, 2);
  Outcome outcomes[2];
  for (const DType compute : {DType::f32, DType::bf16}) {
    const std::unique_ptr<ImageNetwork> network = small_network();
    network->parameters.allocate(*backend, true, compute);
    network->parameters.initialize(3);
    network->parameters.refresh_copy();
    network->body.reserve(*backend, n, true, compute);
    Buffer x_buffer(*backend, input.size() * sizeof(float)), dy_buffer(*backend, dy.size() * sizeof(float));
    const View x = x_buffer.view(compute, image.with_batch(n)),
               d = dy_buffer.view(compute, Shape{n, classes});
    backend->cast(view_of(input.data(), x.shape), x);
    backend->cast(view_of(dy.data(), d.shape), d);
    const Pass pass{.backend = *backend, .training = true, .seed = 4};
    Outcome& outcome = outcomes[compute == DType::f32 ? 0 : 1];
    outcome.logits = values_of(network->body.forward(pass, x));
    network->body.backward(pass, x, d, {});
    outcome.gradients = values_of(network->parameters.gradients());
    outcome.statistics = values_of(network->parameters.statistics());
  }
  // A bfloat16 has 8 bits: each of the network's layers rounds to 0.4 %.
  EXPECT_LT(distance(outcomes[1].logits, outcomes[0].logits), 0.05);
  EXPECT_LT(distance(outcomes[1].gradients, outcomes[0].gradients), 0.15);
  EXPECT_LT(distance(outcomes[1].statistics, outcomes[0].statistics), 0.01);
  EXPECT_GT(distance(outcomes[1].logits, outcomes[0].logits), 1e-5) << "it was float32";
}

}  // namespace
}  // namespace motley
