// The operations of a layer of BERT-base, 8 sequences of 128 tokens, in float32 and bfloat16; and those of
// its loss and optimizer.
#include <deque>

#include "core/philox.h"
#include "core/bfloat16.h"
#include "kernels/buffer.h"
#include "kernels/row_groups.h"
#include "kernels_bench.h"

namespace motley::bench {
namespace {

constexpr std::int64_t n = 8, seq = 128, tokens = n * seq, width = 768, heads = 12, inner = 3072,
                       words = 30522;
constexpr std::int64_t masked = 160, parameters = 7'087'872;  // of one layer

class Layer {
 public:
  Layer(Backend& backend, DType dtype) : backend_(backend), type(dtype) {
    x = filled({tokens, width}, 1), dx = filled({tokens, width}, 1), sum = filled({n, seq, width}, 1);
    y = filled({n, seq, width}, 1);
    hidden = filled({tokens, inner}, 1), before = filled({tokens, inner}, 1),
    dhidden = filled({tokens, inner}, 1);
    up = filled({inner, width}, 0.05f), dup = make({inner, width}), bias = make({inner});
    qkv = filled({n, seq, 3, heads, width / heads}, 1), dqkv = filled(qkv.shape, 1),
    keys = make({n, seq}, DType::u8);
    std::fill_n(keys.as<std::uint8_t>(), tokens, std::uint8_t{1});
    log_sum_exp = make({n, heads, seq}), mean = make({n, seq}), rstd = make({n, seq});
    gamma = make({width}), beta = make({width}), dgamma = make({width}), dbeta = make({width});
    std::fill_n(gamma.as<float>(), width, 1.0f);
    table = make({words, width}), ids = make(Shape{n, seq}, DType::i32),
    types = make(Shape{n, seq}, DType::i32);
    for (std::int64_t i = 0; i < tokens; ++i)
      ids.as<std::int32_t>()[i] = static_cast<std::int32_t>(i * 7919 % words);
    logits = make({masked, words}), dlogits = make({masked, words}, type),
    labels = make({masked}, DType::i32);
    sums = make({4}, DType::f64);
    HostRowGroups host;
    group_rows({ids.as<std::int32_t>(), static_cast<std::size_t>(tokens)}, host);
    groups = {ints(host.rows), ints(host.starts), ints(host.sources)};
    param = make({parameters}), grad = make({parameters}), exp_avg = make({parameters}),
    square = make({parameters});
    narrow = make({parameters}, DType::bf16), scale = make({2});
    for (std::int64_t i = 0; i < parameters; ++i)
      param.as<float>()[i] = grad.as<float>()[i] = 1e-3f * float(i % 7);
    scale.as<float>()[0] = 1;
    backend_.add_layer_norm_forward(mask, y, {}, gamma, beta, 1e-12, sum, y, mean, rstd);
    backend_.attention_forward(attention, qkv, keys, y, log_sum_exp);
  }

  void linear_forward() { backend_.linear_forward(x, up, bias, Activation::gelu, hidden, before); }
  void linear_backward_data() { backend_.linear_backward_data(hidden, up, dx); }
  void linear_backward_weights() { backend_.linear_backward_weights(x, hidden, dup, bias, false); }
  void activation_backward() { backend_.activation_backward(Activation::gelu, before, hidden, dhidden); }
  void layer_norm_forward() {
    backend_.add_layer_norm_forward(mask, x.reshaped(sum.shape), y, gamma, beta, 1e-12, sum, y, mean, rstd);
  }
  void layer_norm_backward() {
    backend_.add_layer_norm_backward(mask, y, sum, mean, rstd, gamma, y, dx.reshaped(sum.shape), dgamma,
                                     dbeta, false);
  }
  void attention_forward() { backend_.attention_forward(attention, qkv, keys, y, log_sum_exp); }
  void attention_backward() { backend_.attention_backward(attention, qkv, keys, y, log_sum_exp, sum, dqkv); }
  void dropout() {
    backend_.dropout(mask, hidden.reshaped({n, seq, inner}), dhidden.reshaped({n, seq, inner}));
  }
  void embedding() { backend_.embedding_forward(table, table, table, ids, types, y); }
  void scatter() { backend_.scatter_add_rows(groups, x, table); }
  void softmax() { backend_.softmax_nll(logits, labels, 5, sums, dlogits); }
  void cast() { backend_.cast(param, narrow); }
  void adam() { backend_.adam_step({.lr = 1e-4, .decoupled = true}, grad, scale, param, exp_avg, square); }
  void lamb() {
    const Segment all{0, static_cast<std::size_t>(parameters), 0.01};
    backend_.lamb_step({.lr = 1e-4}, {&all, 1}, grad, scale, param, exp_avg, square);
  }

 private:
  View make(const Shape& shape, DType dtype = DType::f32) {
    buffers_.emplace_back(backend_, static_cast<std::size_t>(shape.elements()) * size_of(dtype));
    return buffers_.back().view(dtype, shape);
  }
  View filled(const Shape& shape, float size) {
    const View view = make(shape, type);
    const RandomKey key(1, Purpose::initialization, ++streams_, 0);
    for (std::int64_t i = 0; i < shape.elements(); ++i) {
      const float value = size * (2 * to_unit_float(random_u32(key, 0, static_cast<std::uint32_t>(i))) - 1);
      if (type == DType::f32) {
        view.as<float>()[i] = value;
      } else {
        view.as<Bf16>()[i] = from_float<Bf16>(value);
      }
    }
    return view;
  }
  View ints(const std::vector<std::int32_t>& values) {
    const View view = make({static_cast<std::int64_t>(values.size())}, DType::i32);
    backend_.copy_to_device(view.data, values.data(), view.bytes());
    return view;
  }

  Backend& backend_;
  std::deque<Buffer> buffers_;
  std::uint32_t streams_ = 0;

 public:
  DType type;
  const DropoutMask mask{RandomKey(1, Purpose::dropout, 0, 0), 0, 0.1};
  const Attention attention{heads, mask};
  View x, dx, sum, y, hidden, before, dhidden, up, dup, bias, qkv, dqkv, keys, log_sum_exp, mean, rstd, gamma,
      beta, dgamma, dbeta, table, ids, types, logits, dlogits, labels, sums, param, grad, exp_avg, square,
      narrow, scale;
  RowGroups groups;
};

struct Case {
  const char* name;
  void (Layer::*run)();
  View Layer::*result;
  double flop;      // 0: the operation is bound by memory
  double elements;  // of arguments of type T
  double bytes;     // of other arguments
};

constexpr double rows = tokens, size = rows * width, wide = rows * inner, product = 2 * wide * width;
constexpr double scores = 2.0 * n * seq * seq * width;
const Case cases[] = {
    {"linear_gelu_forward", &Layer::linear_forward, &Layer::hidden, product, 0, 0},
    {"linear_backward_data", &Layer::linear_backward_data, &Layer::dx, product, 0, 0},
    {"linear_backward_weights", &Layer::linear_backward_weights, &Layer::dup, product, 0, 0},
    {"attention_forward", &Layer::attention_forward, &Layer::y, 2 * scores, 0, 0},
    {"attention_backward", &Layer::attention_backward, &Layer::dqkv, 5 * scores, 0, 0},
    {"gelu_backward", &Layer::activation_backward, &Layer::dhidden, 0, 3 * wide, 0},
    {"add_layer_norm_forward", &Layer::layer_norm_forward, &Layer::y, 0, 4 * size, 0},
    {"add_layer_norm_backward", &Layer::layer_norm_backward, &Layer::dx, 0, 4 * size, 0},
    {"dropout", &Layer::dropout, &Layer::dhidden, 0, 2 * wide, 0},
    {"embedding_forward", &Layer::embedding, &Layer::y, 0, size, 4 * 3 * size},
    {"scatter_add_rows", &Layer::scatter, &Layer::table, 0, size, 4 * 2 * size},
    {"softmax_nll", &Layer::softmax, &Layer::dlogits, 0, double(masked) * words, 4.0 * masked* words},
    {"cast_to_bfloat16", &Layer::cast, &Layer::narrow, 0, 0, 6.0 * parameters},
    {"adamw", &Layer::adam, &Layer::param, 0, 0, 4.0 * 7 * parameters},
    {"lamb", &Layer::lamb, &Layer::param, 0, 0, 4.0 * 10 * parameters},
};

}  // namespace

void bench_transformer(const Settings& settings, Bounds& bounds) {
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const Case& c : cases) {
      Layer layer(settings.backend, type), expected(settings.reference, type);
      const std::string shown = "\"batch\": 8, \"type\": \"" + std::string(name_of(type)) + "\"";
      const Operation operation{c.name, shown, c.flop, c.elements * double(size_of(type)) + c.bytes,
                                type == DType::f32 ? 1e-4 : 1e-2};
      measure(
          settings, bounds, operation, [&] { (layer.*c.run)(); }, layer.*c.result,
          [&] { (expected.*c.run)(); }, expected.*c.result);
    }
  }
}

}  // namespace motley::bench
