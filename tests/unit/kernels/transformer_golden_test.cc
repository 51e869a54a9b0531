// The operations of a transformer against PyTorch: tests/golden/transformer.py made the file.
#include "backend_test.h"
#include "kernels/row_groups.h"
#include "support/golden.h"

namespace motley::test {
namespace {

class TransformerGoldenTest : public BackendTest {
 protected:
  Tensor load(const std::string& name) {
    const GoldenTensor& stored = golden[name];
    if (stored.dtype == "I32") return {*backend, stored.values<std::int32_t>(), stored.shape};
    return {*backend, stored.values<float>(), stored.shape};
  }
  void expect_golden(const Tensor& got, const std::string& name, double tolerance = 2e-6) {
    SCOPED_TRACE(name);
    ASSERT_EQ(got.shape(), golden[name].shape);
    expect_near(got.values(), golden[name].values<float>(), tolerance);
  }
  RowGroups groups_of(const std::vector<std::int32_t>& index) {
    HostRowGroups host;
    group_rows(index, host);
    const auto place = [&](const std::vector<std::int32_t>& values) -> ConstView {
      kept.emplace_back(*backend, values, Shape{static_cast<std::int64_t>(values.size())});
      return kept.back();
    };
    return {place(host.rows), place(host.starts), place(host.sources)};
  }

  std::vector<Tensor> kept;
  const Golden golden{"transformer.safetensors"};
};
MOTLEY_ON_EVERY_BACKEND(TransformerGoldenTest);

TEST_P(TransformerGoldenTest, activations_and_their_derivatives) {
  for (const auto& [name, activation] : {std::pair<std::string, Activation>{"gelu", Activation::gelu},
                                         {"swish", Activation::swish},
                                         {"tanh", Activation::tanh},
                                         {"relu", Activation::relu}}) {
    const Tensor x = load(name + ".x"), dy = load(name + ".dy");
    const std::int64_t count = x.shape()[0];
    // A layer with the weight 1 applies nothing but its activation.
    const Tensor one = tensor({1}, {1, 1}), y = junk({count, 1}), before = junk({count, 1}),
                 dx = junk({count});
    backend->linear_forward(x.view().reshaped({count, 1}), one, {}, activation, y, before);
    EXPECT_EQ(before.values(), x.values());
    const Tensor flat(*backend, y.values(), {count});
    expect_golden(flat, name + ".y", 3e-7);
    backend->activation_backward(activation, x, dy, dx);
    expect_golden(dx, name + ".dx", 5e-7);
    backend->activation_backward(activation, x, dy, dy);
    EXPECT_EQ(dy.values(), dx.values()) << "in place";
  }
}

TEST_P(TransformerGoldenTest, gelu_keeps_its_relative_accuracy_far_below_zero) {
  const Tensor x = tensor({-3.0f, -6.0f, -10.0f}, {3, 1}), y = junk({3, 1});
  backend->linear_forward(x, tensor({1}, {1, 1}), {}, Activation::gelu, y);
  const auto got = y.values(), at = x.values();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double t = static_cast<double>(at[i]), want = t * 0.5 * std::erfc(-t / std::sqrt(2.0));
    EXPECT_NEAR(got[i], want, 5e-6 * std::abs(want));
  }
}

TEST_P(TransformerGoldenTest, layer_norm) {
  for (const std::string name : {"layer_norm", "layer_norm_plain"}) {
    const Tensor x = load(name + ".x"), gamma = load(name + ".gamma"), beta = load(name + ".beta");
    const Tensor residual = name == "layer_norm" ? load(name + ".residual") : Tensor();
    const ConstView added = name == "layer_norm" ? ConstView(residual) : ConstView{};
    const Tensor sum = junk(x.shape()), y = junk(x.shape()), dsum = junk(x.shape());
    const Shape tokens{x.shape()[0], x.shape()[1]};
    const Tensor mean = junk(tokens), rstd = junk(tokens), dgamma = junk(gamma.shape()),
                 dbeta = junk(beta.shape());
    backend->add_layer_norm_forward({}, x, added, gamma, beta, 1e-12, sum, y, mean, rstd);
    expect_golden(y, name + ".y");
    backend->add_layer_norm_backward({}, load(name + ".dy"), sum, mean, rstd, gamma, dsum, {}, dgamma, dbeta,
                                     false);
    expect_golden(dsum, name + ".dsum");
    expect_golden(dgamma, name + ".dgamma");
    expect_golden(dbeta, name + ".dbeta");
  }
}

TEST_P(TransformerGoldenTest, attention) {
  for (const std::string name : {"attention", "attention_tiles"}) {
    const auto sizes = golden[name + ".parameters"].values<std::int32_t>();
    const Tensor qkv = load(name + ".qkv"), dcontext = load(name + ".dcontext");
    std::vector<std::uint8_t> mask;
    for (const std::int32_t value : golden[name + ".mask"].values<std::int32_t>()) {
      mask.push_back(static_cast<std::uint8_t>(value));
    }
    const Tensor keys(*backend, mask, {sizes[0], sizes[1]});
    const Tensor context = junk(dcontext.shape()), sums = junk({sizes[0], sizes[2], sizes[1]}),
                 dqkv = junk(qkv.shape());
    const Attention attention{.heads = sizes[2], .dropout = {}};
    backend->attention_forward(attention, qkv, keys, context, sums);
    expect_golden(context, name + ".context");
    expect_golden(sums, name + ".log_sum_exp");
    backend->attention_backward(attention, qkv, keys, context, sums, dcontext, dqkv);
    expect_golden(dqkv, name + ".dqkv", 5e-6);
  }
}

TEST_P(TransformerGoldenTest, embedding) {
  const Tensor word = load("embedding.word"), position = load("embedding.position"),
               type = load("embedding.type");
  const Tensor ids = load("embedding.ids"), types = load("embedding.types"), dy = load("embedding.dy");
  const Tensor y = junk(dy.shape());
  backend->embedding_forward(word, position, type, ids, types, y);
  expect_golden(y, "embedding.y");

  std::vector<std::int32_t> places;
  const std::int64_t tokens = ids.shape().elements(), seq = ids.shape()[1], width = dy.shape()[2];
  for (std::int64_t i = 0; i < tokens; ++i) places.push_back(static_cast<std::int32_t>(i % seq));
  const View rows = dy.view().reshaped({tokens, width});
  const Tensor dword = zeros(word.shape()), dposition = zeros(position.shape()), dtype = zeros(type.shape());
  backend->scatter_add_rows(groups_of(ids.values<std::int32_t>()), rows, dword);
  backend->scatter_add_rows(groups_of(places), rows, dposition);
  backend->scatter_add_rows(groups_of(types.values<std::int32_t>()), rows, dtype);
  expect_golden(dword, "embedding.dword");
  expect_golden(dposition, "embedding.dposition");
  expect_golden(dtype, "embedding.dtype");
}

TEST_P(TransformerGoldenTest, casts_round_to_nearest_even_and_keep_infinity) {
  const Tensor x = load("cast.x");
  const std::int64_t count = x.shape()[0];
  const auto bits_of = [&](const std::string& name) {
    std::vector<std::uint16_t> bits;
    for (const std::int32_t value : golden[name].values<std::int32_t>()) {
      bits.push_back(static_cast<std::uint16_t>(value));
    }
    return bits;
  };
  const auto as = [](const Tensor& bits, DType dtype) { return View{bits.view().data, dtype, bits.shape()}; };
  for (const auto& [name, dtype] :
       {std::pair<std::string, DType>{"cast.bf16", DType::bf16}, {"cast.f16", DType::f16}}) {
    const Tensor bits = zeros({count}, DType::u16);
    backend->cast(x, as(bits, dtype));
    EXPECT_EQ(bits.values<std::uint16_t>(), bits_of(name)) << name;
    // Every number of the narrow type survives the way to float32 and back.
    const Tensor wide = junk({count}), again = zeros({count}, DType::u16);
    backend->cast(as(bits, dtype), wide);
    backend->cast(wide, as(again, dtype));
    EXPECT_EQ(again.values<std::uint16_t>(), bits.values<std::uint16_t>()) << name;
  }
  const auto half = bits_of("cast.half");
  const auto halves = static_cast<std::int64_t>(half.size());
  const Tensor wide = junk({halves});
  backend->cast(as(Tensor(*backend, half, {halves}), DType::f16), wide);
  EXPECT_EQ(wide.values(), golden["cast.half_as_f32"].values<float>());
}

TEST_P(TransformerGoldenTest, casts_keep_nan) {
  const auto nan = std::bit_cast<float>(0x7f800001u);  // its only set bit of the fraction is rounded off
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor x = tensor({nan, -nan}, {2}), narrow = zeros({2}, DType::u16), back = zeros({2});
    const View view{narrow.view().data, dtype, {2}};
    backend->cast(x, view);
    backend->cast(view, back);
    EXPECT_TRUE(std::isnan(back.values()[0]) && std::isnan(back.values()[1]));
  }
  expect_refused([&] { backend->cast(zeros({2}), zeros({2}, DType::i32)); }, {"cast", "y", "int32"});
  expect_refused([&] { backend->cast(zeros({2}), zeros({3})); }, {"cast", "y", "[3]"});
}

}  // namespace
}  // namespace motley::test
