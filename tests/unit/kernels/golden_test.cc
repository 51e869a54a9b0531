// Against PyTorch: tests/golden/kernels.py made the files.
#include "support/golden.h"
#include "backend_test.h"

namespace motley::test {
namespace {

constexpr double tolerance = 3e-6;

class GoldenTest : public BackendTest {
 protected:
  Tensor load(const std::string& name) {
    const GoldenTensor& golden = kernels[name];
    if (golden.dtype == "I32") return {*backend, golden.values<std::int32_t>(), golden.shape};
    return {*backend, golden.values<float>(), golden.shape};
  }
  void expect_golden(const Tensor& got, const std::string& name) {
    SCOPED_TRACE(name);
    ASSERT_EQ(got.shape(), kernels[name].shape);
    expect_near(got.values(), kernels[name].values<float>(), tolerance);
  }

  const Golden kernels{"kernels.safetensors"};
};
MOTLEY_ON_EVERY_BACKEND(GoldenTest);

TEST_P(GoldenTest, convolution) {
  for (const std::string name :
       {"conv_plain", "conv_stride_pad", "conv_groups", "conv_depthwise", "conv_pointwise"}) {
    const auto p = kernels[name + ".parameters"].values<std::int32_t>();
    const Conv2d conv{p[0], p[1], p[2], p[3], p[4], p[5], p[6]};
    const Tensor x = load(name + ".x"), weight = load(name + ".weight"), bias = load(name + ".bias");
    const Tensor dy = load(name + ".dy");
    const Tensor y = junk(dy.shape()), dx = junk(x.shape()), dweight = junk(weight.shape()),
                 dbias = junk(bias.shape());
    backend->conv2d_forward(conv, x, weight, bias, p[7] != 0 ? Activation::relu : Activation::none, y);
    if (p[7] != 0) backend->relu_backward(y, dy, dy);
    backend->conv2d_backward_data(conv, dy, weight, dx);
    backend->conv2d_backward_weights(conv, x, dy, dweight, dbias, false);
    expect_golden(y, name + ".y");
    expect_golden(dx, name + ".dx");
    expect_golden(dweight, name + ".dweight");
    expect_golden(dbias, name + ".dbias");
  }
}

TEST_P(GoldenTest, max_pooling) {
  for (const std::string name : {"pool_2x2", "pool_overlap", "pool_rest"}) {
    const auto p = kernels[name + ".parameters"].values<std::int32_t>();
    const Pool2d pool{p[0], p[1], p[2], p[3], p[4], p[5]};
    const Tensor x = load(name + ".x"), dy = load(name + ".dy");
    const Tensor y = junk(dy.shape()), place = zeros(dy.shape(), DType::u8), dx = junk(x.shape());
    backend->max_pool2d_forward(pool, x, y, place);
    backend->max_pool2d_backward(pool, dy, place, dx);
    expect_golden(y, name + ".y");
    expect_golden(dx, name + ".dx");
  }
}

TEST_P(GoldenTest, linear) {
  for (const std::string name : {"linear", "linear_one"}) {
    const Tensor x = load(name + ".x"), weight = load(name + ".weight"), bias = load(name + ".bias");
    const Tensor dy = load(name + ".dy");
    const Tensor y = junk(dy.shape()), dx = junk(x.shape()), dweight = junk(weight.shape()),
                 dbias = junk(bias.shape());
    backend->linear_forward(x, weight, bias, Activation::relu, y);
    backend->relu_backward(y, dy, dy);
    backend->linear_backward_data(dy, weight, dx);
    backend->linear_backward_weights(x, dy, dweight, dbias, false);
    expect_golden(y, name + ".y");
    expect_golden(dx, name + ".dx");
    expect_golden(dweight, name + ".dweight");
    expect_golden(dbias, name + ".dbias");
  }
}

TEST_P(GoldenTest, log_softmax_and_negative_log_likelihood) {
  for (const std::string name : {"nll", "nll_large"}) {
    const Tensor logits = load(name + ".logits"), labels = load(name + ".labels");
    const Tensor dlogits = junk(logits.shape()), sums = zeros({4}, DType::f64);
    backend->softmax_nll(logits, labels, 3, sums, dlogits);
    expect_golden(dlogits, name + ".dlogits");
    const auto want = kernels[name + ".sums"].values<double>(), got = sums.values<double>();
    EXPECT_NEAR(got[0], want[0], tolerance * want[0]);
    for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(got[i], want[i]) << i;
  }
}

class GoldenOptimizerTest : public BackendTest {
 protected:
  using Step =
      std::function<void(int step, ConstView grad, ConstView scale, View param, View state1, View state2)>;

  // Ten steps from PyTorch's start with its gradients, then parameters and states against its own.
  void expect_same_as_pytorch(const std::string& name, const std::vector<std::string>& states,
                              const Step& step) {
    SCOPED_TRACE(name);
    const auto start = golden["common.start"].values<float>();
    const auto count = static_cast<std::int64_t>(start.size());
    const Tensor param = tensor(start, {count}), state1 = zeros({count}), state2 = zeros({count});
    const Tensor gradients = tensor(golden["common.gradients"].values<float>(), {10 * count});
    const Tensor scale = tensor({0.5f, 0.0f}, {2});
    for (int t = 0; t < 10; ++t) {
      step(t, view_of(static_cast<const float*>(gradients.view().data) + t * count, {count}), scale, param,
           state1, state2);
    }
    expect_near(param.values(), golden[name + ".param"].values<float>(), 1e-6);
    if (!states.empty()) expect_near(state1.values(), golden[name + "." + states[0]].values<float>(), 1e-6);
    if (states.size() > 1) expect_near(state2.values(), golden[name + "." + states[1]].values<float>(), 1e-6);
  }

  const Golden golden{"optimizers.safetensors"};
};
MOTLEY_ON_EVERY_BACKEND(GoldenOptimizerTest);

TEST_P(GoldenOptimizerTest, sgd) {
  const auto with = [this](SgdOptions options) {
    return [this, options](int t, ConstView grad, ConstView scale, View param, View momentum, View) mutable {
      options.first_step = t == 0;
      backend->sgd_step(options, grad, scale, param, options.momentum != 0 ? momentum : View{});
    };
  };
  expect_same_as_pytorch("sgd", {}, with({.lr = 0.1}));
  expect_same_as_pytorch("sgd_decay", {}, with({.lr = 0.1, .weight_decay = 0.05}));
  expect_same_as_pytorch("sgd_momentum", {"momentum"}, with({.lr = 0.1, .momentum = 0.9}));
  expect_same_as_pytorch("sgd_nesterov", {"momentum"},
                         with({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05, .nesterov = true}));
  expect_same_as_pytorch("sgd_dampening", {"momentum"}, with({.lr = 0.1, .momentum = 0.8, .dampening = 0.3}));
}

TEST_P(GoldenOptimizerTest, adam_and_adamw) {
  const auto with = [this](AdamOptions options) {
    return
        [this, options](int t, ConstView grad, ConstView scale, View param, View mean, View square) mutable {
          options.step = t + 1;
          backend->adam_step(options, grad, scale, param, mean, square);
        };
  };
  const std::vector<std::string> states{"exp_avg", "exp_avg_sq"};
  expect_same_as_pytorch("adam", states, with({.lr = 0.01}));
  expect_same_as_pytorch("adam_decay", states,
                         with({.lr = 0.01, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1}));
  expect_same_as_pytorch("adamw", states, with({.lr = 0.01, .weight_decay = 0.1, .decoupled = true}));
}

TEST_P(GoldenOptimizerTest, adadelta) {
  const auto with = [this](AdadeltaOptions options) {
    return [this, options](int, ConstView grad, ConstView scale, View param, View square, View delta) {
      backend->adadelta_step(options, grad, scale, param, square, delta);
    };
  };
  const std::vector<std::string> states{"square_avg", "acc_delta"};
  expect_same_as_pytorch("adadelta", states, with({.lr = 1.0}));
  expect_same_as_pytorch("adadelta_decay", states,
                         with({.lr = 0.7, .rho = 0.95, .eps = 1e-5, .weight_decay = 0.1}));
}

TEST_P(GoldenOptimizerTest, steps_take_any_address_and_touch_nothing_else) {
  constexpr std::int64_t count = 1001;
  using Run = std::function<void(ConstView grad, ConstView scale, View param, View state1, View state2)>;
  const std::vector<Run> runs{
      [&](ConstView g, ConstView s, View p, View, View) { backend->sgd_step({.lr = 0.1}, g, s, p, {}); },
      [&](ConstView g, ConstView s, View p, View m, View) {
        backend->sgd_step({.lr = 0.1, .momentum = 0.9}, g, s, p, m);
      },
      [&](ConstView g, ConstView s, View p, View m, View v) { backend->adam_step({.lr = 0.1}, g, s, p, m, v); },
      [&](ConstView g, ConstView s, View p, View m, View v) { backend->adadelta_step({}, g, s, p, m, v); }};
  const Tensor scale = tensor({0.5f}, {1});
  for (std::size_t run = 0; run < runs.size(); ++run) {
    SCOPED_TRACE(run);
    // The same elements from the start of their memory and one element behind it.
    std::vector<std::vector<float>> results;
    for (const std::int64_t first : {0, 1}) {
      std::vector<Tensor> tensors;
      std::vector<View> views;
      for (std::uint32_t stream = 0; stream < 4; ++stream) {
        auto values = random_values(count, stream, 0, 1);
        values.insert(values.begin(), static_cast<std::size_t>(first), 12345.0f);
        values.push_back(12345.0f);
        tensors.push_back(tensor(values, {count + first + 1}));
        views.push_back(view_of(tensors.back().view().as<float>() + first, {count}));
      }
      runs[run](views[0], scale, views[1], views[2], views[3]);
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        auto got = tensors[t].values();
        EXPECT_EQ(got.back(), 12345.0f);
        got.pop_back();
        for (std::int64_t i = 0; i < first; ++i) {
          EXPECT_EQ(got.front(), 12345.0f);
          got.erase(got.begin());
        }
        if (first == 0) {
          results.push_back(got);
        } else {
          expect_near(got, results[t], 3e-7);
        }
      }
    }
  }
}

TEST_P(GoldenOptimizerTest, wrong_arguments_are_refused_by_name) {
  const Tensor three = zeros({3}), four = zeros({4}), none = zeros({0}), scale = tensor({1.0f}, {1});
  expect_refused([&] { backend->sgd_step({}, four, scale, three, {}); }, {"sgd_step", "grad", "3"});
  expect_refused([&] { backend->sgd_step({.momentum = 0.9}, three, scale, three, four); },
                 {"sgd_step", "momentum"});
  expect_refused([&] { backend->sgd_step({.nesterov = true}, three, scale, three, {}); },
                 {"sgd_step", "Nesterov"});
  expect_refused([&] { backend->adam_step({}, three, scale, three, three, four); },
                 {"adam_step", "exp_avg_sq"});
  expect_refused([&] { backend->adam_step({}, three, none, three, three, three); }, {"adam_step", "scale"});
  expect_refused([&] { backend->adadelta_step({}, three, scale, three, four, three); },
                 {"adadelta_step", "square_avg"});
}

}  // namespace
}  // namespace motley::test
