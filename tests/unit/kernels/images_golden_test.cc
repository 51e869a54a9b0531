// Operations of image networks against PyTorch: tests/golden/images.py made the file.
#include "backend_test.h"
#include "support/golden.h"

namespace motley::test {
namespace {

constexpr double tolerance = 3e-6;

class ImagesGoldenTest : public BackendTest {
 protected:
  Tensor load(const std::string& name) {
    return {*backend, golden[name].values<float>(), golden[name].shape};
  }
  std::vector<std::int32_t> parameters(const std::string& name) {
    return golden[name + ".parameters"].values<std::int32_t>();
  }
  void expect_golden(const Tensor& got, const std::string& name) {
    SCOPED_TRACE(name);
    ASSERT_EQ(got.shape().elements(), golden[name].shape.elements());
    expect_near(got.values(), golden[name].values<float>(), tolerance);
  }

  const Golden golden{"images.safetensors"};
};
MOTLEY_ON_EVERY_BACKEND(ImagesGoldenTest);

TEST_P(ImagesGoldenTest, grouped_and_depthwise_convolutions) {
  for (const std::string name : {"conv_depthwise_3", "conv_depthwise_5", "conv_depthwise_7", "conv_groups_1",
                                 "conv_groups_8", "conv_multiplier_7"}) {
    const auto p = parameters(name);
    const Conv2d conv{p[0], p[1], p[2], p[3], p[4], p[5], p[6]};
    const Tensor x = load(name + ".x"), weight = load(name + ".weight"), dy = load(name + ".dy");
    const Tensor y = junk(dy.shape()), dx = junk(x.shape()), dweight = junk(weight.shape());
    backend->conv2d_forward(conv, x, weight, {}, Activation::none, y);
    backend->conv2d_backward_data(conv, dy, weight, dx);
    backend->conv2d_backward_weights(conv, x, dy, dweight, {}, false);
    expect_golden(y, name + ".y");
    expect_golden(dx, name + ".dx");
    expect_golden(dweight, name + ".dweight");
  }
}

TEST_P(ImagesGoldenTest, average_pooling) {
  for (const std::string name : {"avg_2x2", "avg_padding", "avg_rest", "avg_global"}) {
    const auto p = parameters(name);
    const Pool2d pool{p[0], p[1], p[2], p[3], p[4], p[5]};
    const Tensor x = load(name + ".x"), dy = load(name + ".dy");
    const Tensor y = junk(dy.shape()), dx = junk(x.shape());
    backend->avg_pool2d_forward(pool, x, y);
    backend->avg_pool2d_backward(pool, dy, dx);
    expect_golden(y, name + ".y");
    expect_golden(dx, name + ".dx");
  }
}

TEST_P(ImagesGoldenTest, channel_shuffle) {
  for (const std::string name : {"shuffle_2", "shuffle_3", "shuffle_4"}) {
    const std::int64_t groups = parameters(name)[0];
    const Tensor x = load(name + ".x"), dy = load(name + ".dy");
    const Tensor y = junk(x.shape()), dx = junk(x.shape());
    backend->channel_shuffle(groups, x, y);
    backend->channel_shuffle(x.shape()[3] / groups, dy, dx);
    expect_golden(y, name + ".y");
    expect_golden(dx, name + ".dx");
  }
}

TEST_P(ImagesGoldenTest, concatenation_and_its_gradients) {
  const std::string name = "concatenation";
  const Tensor a = load(name + ".a"), b = load(name + ".b"), dy = load(name + ".dy"),
               dy2 = load(name + ".dy2");
  const std::int64_t first = a.shape()[3], second = b.shape()[3];
  const Tensor y = junk(dy.shape()), da = junk(a.shape()), db = junk(b.shape());
  backend->copy_channels(a, 0, y, 0, first);
  backend->copy_channels(b, 0, y, first, second);
  backend->copy_channels(dy, 0, da, 0, first);
  backend->copy_channels(dy, first, db, 0, second);
  backend->copy_channels(dy2, 0, db, 0, second, true);
  expect_golden(y, name + ".y");
  expect_golden(da, name + ".da");
  expect_golden(db, name + ".db");
}

TEST_P(ImagesGoldenTest, squeeze_and_excitation_and_its_gradients) {
  const std::string name = "squeeze";
  const Tensor x = load(name + ".x"), weight = load(name + ".weight"), bias = load(name + ".bias"),
               dy = load(name + ".dy");
  const Shape& shape = x.shape();
  const std::int64_t n = shape[0], c = shape[3];
  const Pool2d whole{shape[1], shape[2], 1, 1, 0, 0};
  const Tensor pooled = junk({n, 1, 1, c}), before = junk({n, 1, 1, c}), s = junk({n, c}), y = junk(shape);
  backend->avg_pool2d_forward(whole, x, pooled);
  backend->conv2d_forward({}, pooled, weight, bias, Activation::none, before);
  backend->activation_forward(Activation::sigmoid, before.view().reshaped({n, c}), s);
  backend->scale_channels_forward(x, s, y);
  expect_golden(s, name + ".s");
  expect_golden(y, name + ".y");

  const Tensor dx = junk(shape), ds = junk({n, c}), through_pool = junk(shape), dpooled = junk({n, 1, 1, c});
  const Tensor dweight = junk(weight.shape()), dbias = junk({c});
  backend->scale_channels_backward(x, s, dy, dx, ds);
  const View ds_image = ds.view().reshaped({n, 1, 1, c});
  backend->activation_backward(Activation::sigmoid, before, ds_image, ds_image);
  backend->conv2d_backward_weights({}, pooled, ds_image, dweight, dbias, false);
  backend->conv2d_backward_data({}, ds_image, weight, dpooled);
  backend->avg_pool2d_backward(whole, dpooled, through_pool);
  backend->add(dx, through_pool, Activation::none, dx);
  expect_golden(dx, name + ".dx");
  expect_golden(dweight, name + ".dweight");
  expect_golden(dbias, name + ".dbias");
}

TEST_P(ImagesGoldenTest, residual_sums_and_their_gradient) {
  const Tensor a = load("residual.a"), b = load("residual.b"), dy = load("residual.dy");
  const Tensor y = junk(a.shape()), dx = junk(a.shape());
  backend->add(a, b, Activation::relu, y);
  backend->relu_backward(y, dy, dx);
  expect_golden(y, "residual.y");
  expect_golden(dx, "residual.dx");
}

TEST_P(ImagesGoldenTest, activations) {
  for (const auto& [name, activation] : {std::pair(std::string("sigmoid"), Activation::sigmoid),
                                         std::pair(std::string("swish"), Activation::swish)}) {
    const Tensor x = load(name + ".x"), dy = load(name + ".dy");
    const Tensor y = junk(x.shape()), dx = junk(x.shape());
    backend->activation_forward(activation, x, y);
    backend->activation_backward(activation, x, dy, dx);
    expect_golden(y, name + ".y");
    expect_golden(dx, name + ".dx");
  }
}

}  // namespace
}  // namespace motley::test
