// bert_step_bench [THREADS]: training steps of BERT-base on the CPU, made of the backend's operations as a
// model calls them: forward, backward, AdamW. Reads lines "BATCH SEQ fp32|bf16 COUNT" from standard input
// and answers each with one line of JSON: milliseconds per step (on the clock, and of processor time),
// memory in use, and the processor time of every operation. tests/bench/bert_step.py drives it beside
// PyTorch.
#include <fmt/format.h>
#include <time.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "kernels/row_groups.h"

namespace {

using namespace motley;

constexpr std::int64_t layers = 12, width = 768, heads = 12, inner = 3072, words = 30522, positions = 512;
constexpr double drop = 0.1, eps = 1e-12;

// A linear layer's or a table's place in the arenas.
struct Matrix {
  std::int64_t at, out, in;
};
struct Vector {
  std::int64_t at, elements;
};

struct LayerParameters {
  Matrix qkv, attention_out, up, down;
  Vector qkv_bias, attention_out_bias, up_bias, down_bias, gamma1, beta1, gamma2, beta2;
};

struct LayerActivations {
  View qkv, context, log_sum_exp, sum1, mean1, rstd1, y1, before_gelu, gelu, sum2, mean2, rstd2, y2;
};

// Processor time of the process. On one thread it is what a step would take on a machine that does nothing
// else; the time on the clock is reported, too.
double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Bert {
 public:
  Bert(Backend& backend, std::int64_t n, std::int64_t seq, DType type)
      : backend_(backend), n_(n), seq_(seq), tokens_(n * seq), masked_(n * (seq * 5 / 32)), type_(type) {
    word_ = matrix(words, width), position_ = matrix(positions, width), kind_ = matrix(2, width);
    gamma_ = vector(width), beta_ = vector(width);
    for (std::int64_t i = 0; i < layers; ++i) {
      LayerParameters p;
      p.qkv = matrix(3 * width, width), p.qkv_bias = vector(3 * width);
      p.attention_out = matrix(width, width), p.attention_out_bias = vector(width);
      p.gamma1 = vector(width), p.beta1 = vector(width), p.gamma2 = vector(width), p.beta2 = vector(width);
      p.up = matrix(inner, width), p.up_bias = vector(inner);
      p.down = matrix(width, inner), p.down_bias = vector(width);
      layer_.push_back(p);
    }
    head_ = matrix(width, width), head_bias_ = vector(width), head_gamma_ = vector(width),
    head_beta_ = vector(width);
    vocabulary_bias_ = vector(words);
    parameters_ = arena(), gradients_ = arena(), exp_avg_ = arena(), exp_avg_sq_ = arena();
    if (type != DType::f32) narrow_ = make({end_}, type);
    fill_parameters();
    make_activations();
    make_inputs();
  }

  void step() {
    ++time_;
    timed("fill_zero", [&] { backend_.fill_zero(gradients_); });
    if (type_ != DType::f32) timed("cast", [&] { backend_.cast(parameters_, narrow_); });
    const View last = forward();
    head_and_loss(last);
    for (std::int64_t i = layers - 1; i >= 0; --i)
      layer_backward(i, i == 0 ? embedded_ : activations_[at(i - 1)].y2);
    embedding_backward();
    timed("sum_squares", [&] { backend_.sum_squares(gradients_, squares_); });
    timed("gradient_scale", [&] { backend_.gradient_scale(squares_, count_, 1, scale_); });
    timed("adam_step", [&] {
      backend_.adam_step({.lr = 1e-5, .weight_decay = 0.01, .decoupled = true, .step = ++steps_}, gradients_,
                         scale_, parameters_, exp_avg_, exp_avg_sq_);
    });
  }

  double loss() const { return sums_.as<double>()[0] / sums_.as<double>()[1]; }
  std::map<std::string, double> seconds;  // by operation

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  Matrix matrix(std::int64_t out, std::int64_t in) { return {take(out * in), out, in}; }
  Vector vector(std::int64_t elements) { return {take(elements), elements}; }
  std::int64_t take(std::int64_t elements) {
    const std::int64_t begin = end_;
    end_ += (elements + 15) / 16 * 16;
    return begin;
  }
  View make(const Shape& shape, DType dtype = DType::f32) {
    buffers_.emplace_back(backend_, static_cast<std::size_t>(shape.elements()) * size_of(dtype));
    return buffers_.back().view(dtype, shape);
  }
  View activation(const Shape& shape) { return make(shape, type_); }
  View arena() { return make({end_}); }

  template <class Body>
  void timed(const char* name, const Body& body) {
    const double start = cpu_seconds();
    body();
    seconds[name] += cpu_seconds() - start;
  }

  static View part(const View& arena, std::int64_t begin, const Shape& shape) {
    return {static_cast<std::byte*>(arena.data) + static_cast<std::size_t>(begin) * size_of(arena.dtype),
            arena.dtype, shape};
  }
  View weight(const Matrix& m) const {
    return part(type_ == DType::f32 ? parameters_ : narrow_, m.at, {m.out, m.in});
  }
  View table(const Matrix& m) const { return part(parameters_, m.at, {m.out, m.in}); }
  View value(const Vector& v) const { return part(parameters_, v.at, {v.elements}); }
  View gradient(const Matrix& m) const { return part(gradients_, m.at, {m.out, m.in}); }
  View gradient(const Vector& v) const { return part(gradients_, v.at, {v.elements}); }
  DropoutMask mask(std::int64_t index) const {
    return {RandomKey(1, Purpose::dropout, static_cast<std::uint32_t>(index), time_), 0, drop};
  }

  void fill_parameters() {
    float* p = parameters_.as<float>();
    const RandomKey key(1, Purpose::initialization, 0, 0);
    for (std::int64_t i = 0; i < end_; ++i) {
      p[i] = 0.07f * (to_unit_float(random_u32(key, 0, static_cast<std::uint32_t>(i))) - 0.5f);
    }
    const auto ones = [&](const Vector& v) { std::fill_n(p + v.at, v.elements, 1.0f); };
    ones(gamma_), ones(head_gamma_);
    for (const LayerParameters& l : layer_) ones(l.gamma1), ones(l.gamma2);
  }

  void make_activations() {
    const Shape all{n_, seq_, width}, rows{n_, seq_};
    embedded_sum_ = activation(all), embedded_ = activation(all), mean_ = make(rows), rstd_ = make(rows);
    for (std::int64_t i = 0; i < layers; ++i) {
      activations_.push_back({activation({n_, seq_, 3, heads, width / heads}), activation(all),
                              make({n_, heads, seq_}), activation(all), make(rows), make(rows),
                              activation(all), activation({tokens_, inner}), activation({tokens_, inner}),
                              activation(all), make(rows), make(rows), activation(all)});
    }
    dy_ = activation(all), dsum_ = activation(all), dx_ = activation(all);
    dinner_ = activation({tokens_, inner}), dqkv_ = activation({n_, seq_, 3, heads, width / heads});
    const Shape masked{masked_, width};
    picked_ = activation(masked), before_ = activation(masked), transformed_ = activation(masked);
    normal_ = activation(masked), dpicked_ = activation(masked), picked_mean_ = make({masked_, 1});
    picked_rstd_ = make({masked_, 1});
    logits_ = make({masked_, words});
    dlogits_ = type_ == DType::f32 ? logits_ : make({masked_, words}, type_);
  }

  void make_inputs() {
    ids_ = make(Shape{n_, seq_}, DType::i32), types_ = make(Shape{n_, seq_}, DType::i32);
    keys_ = make({n_, seq_}, DType::u8), labels_ = make({masked_}, DType::i32),
    places_ = make({masked_}, DType::i32);
    sums_ = make({4}, DType::f64), squares_ = make({1}, DType::f64), count_ = make({1}, DType::f64),
    scale_ = make({2});
    std::vector<std::int32_t> ids, places, kinds(at(tokens_), 0), positions_of;
    for (std::int64_t i = 0; i < tokens_; ++i) {
      ids.push_back(static_cast<std::int32_t>(i * 7919 % words));
      positions_of.push_back(static_cast<std::int32_t>(i % seq_));
    }
    for (std::int64_t i = 0; i < masked_; ++i) {
      places.push_back(static_cast<std::int32_t>(i * tokens_ / masked_));
      labels_.as<std::int32_t>()[i] = static_cast<std::int32_t>(i * 31 % words);
    }
    std::copy(ids.begin(), ids.end(), ids_.as<std::int32_t>());
    std::copy(places.begin(), places.end(), places_.as<std::int32_t>());
    std::fill_n(keys_.as<std::uint8_t>(), tokens_, std::uint8_t{1});
    *count_.as<double>() = static_cast<double>(masked_);
    word_groups_ = groups(ids), position_groups_ = groups(positions_of), kind_groups_ = groups(kinds);
    place_groups_ = groups(places);
  }

  RowGroups groups(const std::vector<std::int32_t>& index) {
    HostRowGroups host;
    group_rows(index, host);
    const auto copy = [&](const std::vector<std::int32_t>& values) {
      const View view = make({static_cast<std::int64_t>(values.size())}, DType::i32);
      backend_.copy_to_device(view.data, values.data(), view.bytes());
      return view;
    };
    return {copy(host.rows), copy(host.starts), copy(host.sources)};
  }

  View tokens(const View& x) const { return x.reshaped({tokens_, x.elements() / tokens_}); }

  void linear(const View& x, const Matrix& w, const Vector& bias, Activation activation, const View& y,
              const View& before = {}) {
    timed("linear_forward",
          [&] { backend_.linear_forward(x, weight(w), value(bias), activation, y, before); });
  }
  void linear_backward(const View& x, const Matrix& w, const Vector& bias, const View& dy, const View& dx,
                       bool accumulate) {
    timed("linear_backward_weights",
          [&] { backend_.linear_backward_weights(x, dy, gradient(w), gradient(bias), false); });
    timed("linear_backward_data", [&] { backend_.linear_backward_data(dy, weight(w), dx, accumulate); });
  }
  void norm(const DropoutMask& m, const View& x, const View& residual, const Vector& gamma,
            const Vector& beta, const View& sum, const View& y, const View& mean, const View& rstd) {
    timed("add_layer_norm_forward", [&] {
      backend_.add_layer_norm_forward(m, x, residual, value(gamma), value(beta), eps, sum, y, mean, rstd);
    });
  }
  void norm_backward(const DropoutMask& m, const View& dy, const View& sum, const View& mean,
                     const View& rstd, const Vector& gamma, const Vector& beta, const View& dsum,
                     const View& dx) {
    timed("add_layer_norm_backward", [&] {
      backend_.add_layer_norm_backward(m, dy, sum, mean, rstd, value(gamma), dsum, dx, gradient(gamma),
                                       gradient(beta), true);
    });
  }

  View forward() {
    timed("embedding_forward", [&] {
      backend_.embedding_forward(table(word_), table(position_), table(kind_), ids_, types_, embedded_sum_);
    });
    norm({}, embedded_sum_, {}, gamma_, beta_, embedded_sum_, embedded_, mean_, rstd_);
    timed("dropout", [&] { backend_.dropout(mask(0), embedded_, embedded_); });
    View x = embedded_;
    for (std::int64_t i = 0; i < layers; ++i) {
      const LayerParameters& p = layer_[at(i)];
      LayerActivations& a = activations_[at(i)];
      linear(tokens(x), p.qkv, p.qkv_bias, Activation::none, tokens(a.qkv));
      timed("attention_forward", [&] {
        backend_.attention_forward({heads, mask(3 * i + 1)}, a.qkv, keys_, a.context, a.log_sum_exp);
      });
      linear(tokens(a.context), p.attention_out, p.attention_out_bias, Activation::none, tokens(a.sum1));
      norm(mask(3 * i + 2), a.sum1, x, p.gamma1, p.beta1, a.sum1, a.y1, a.mean1, a.rstd1);
      linear(tokens(a.y1), p.up, p.up_bias, Activation::gelu, a.gelu, a.before_gelu);
      linear(a.gelu, p.down, p.down_bias, Activation::none, tokens(a.sum2));
      norm(mask(3 * i + 3), a.sum2, a.y1, p.gamma2, p.beta2, a.sum2, a.y2, a.mean2, a.rstd2);
      x = a.y2;
    }
    return x;
  }

  // The masked positions, through the transformation and the words' own vectors; their gradient to dy_.
  void head_and_loss(const View& last) {
    const Shape one_each{masked_, 1, width};
    timed("gather_rows", [&] { backend_.gather_rows(tokens(last), places_, picked_); });
    linear(picked_, head_, head_bias_, Activation::gelu, transformed_, before_);
    norm({}, transformed_.reshaped(one_each), {}, head_gamma_, head_beta_, transformed_.reshaped(one_each),
         normal_.reshaped(one_each), picked_mean_, picked_rstd_);
    linear(normal_, word_, vocabulary_bias_, Activation::none, logits_);
    timed("fill_zero", [&] { backend_.fill_zero(sums_); });
    timed("softmax_nll", [&] { backend_.softmax_nll(logits_, labels_, 5, sums_, dlogits_); });
    linear_backward(normal_, word_, vocabulary_bias_, dlogits_, dpicked_, false);
    const View d = dpicked_.reshaped(one_each);
    norm_backward({}, d, transformed_.reshaped(one_each), picked_mean_, picked_rstd_, head_gamma_, head_beta_,
                  d, {});
    timed("activation_backward",
          [&] { backend_.activation_backward(Activation::gelu, before_, dpicked_, dpicked_); });
    linear_backward(picked_, head_, head_bias_, dpicked_, normal_, false);
    timed("fill_zero", [&] { backend_.fill_zero(dy_); });
    timed("scatter_add_rows", [&] { backend_.scatter_add_rows(place_groups_, normal_, tokens(dy_)); });
  }

  // From the gradient of the layer's output in dy_ to that of its input.
  void layer_backward(std::int64_t i, const View& x) {
    const LayerParameters& p = layer_[at(i)];
    const LayerActivations& a = activations_[at(i)];
    norm_backward(mask(3 * i + 3), dy_, a.sum2, a.mean2, a.rstd2, p.gamma2, p.beta2, dsum_, dx_);
    linear_backward(a.gelu, p.down, p.down_bias, tokens(dx_), dinner_, false);
    timed("activation_backward",
          [&] { backend_.activation_backward(Activation::gelu, a.before_gelu, dinner_, dinner_); });
    linear_backward(tokens(a.y1), p.up, p.up_bias, dinner_, tokens(dsum_), true);
    norm_backward(mask(3 * i + 2), dsum_, a.sum1, a.mean1, a.rstd1, p.gamma1, p.beta1, dy_, dx_);
    linear_backward(tokens(a.context), p.attention_out, p.attention_out_bias, tokens(dx_), tokens(dsum_),
                    false);
    timed("attention_backward", [&] {
      backend_.attention_backward({heads, mask(3 * i + 1)}, a.qkv, keys_, a.context, a.log_sum_exp, dsum_,
                                  dqkv_);
    });
    linear_backward(tokens(x), p.qkv, p.qkv_bias, tokens(dqkv_), tokens(dy_), true);
  }

  void embedding_backward() {
    timed("dropout", [&] { backend_.dropout(mask(0), dy_, dy_); });
    norm_backward({}, dy_, embedded_sum_, mean_, rstd_, gamma_, beta_, dy_, {});
    timed("scatter_add_rows", [&] {
      backend_.scatter_add_rows(word_groups_, tokens(dy_), gradient(word_));
      backend_.scatter_add_rows(position_groups_, tokens(dy_), gradient(position_));
      backend_.scatter_add_rows(kind_groups_, tokens(dy_), gradient(kind_));
    });
  }

  Backend& backend_;
  std::int64_t n_, seq_, tokens_, masked_;
  DType type_;
  std::vector<Buffer> buffers_;
  std::int64_t end_ = 0, steps_ = 0;
  std::uint32_t time_ = 0;
  Matrix word_, position_, kind_, head_;
  Vector gamma_, beta_, head_bias_, head_gamma_, head_beta_, vocabulary_bias_;
  std::vector<LayerParameters> layer_;
  std::vector<LayerActivations> activations_;
  View parameters_, gradients_, exp_avg_, exp_avg_sq_, narrow_;
  View embedded_sum_, embedded_, mean_, rstd_, dy_, dsum_, dx_, dinner_, dqkv_;
  View picked_, before_, transformed_, normal_, dpicked_, picked_mean_, picked_rstd_, logits_, dlogits_;
  View ids_, types_, keys_, labels_, places_, sums_, squares_, count_, scale_;
  RowGroups word_groups_, position_groups_, kind_groups_, place_groups_;
};

}  // namespace

int main(int argc, char** argv) {
  const auto backend = make_cpu_backend(argc > 1 ? std::atoi(argv[1]) : 1);
  std::unique_ptr<Bert> bert;
  std::string made;
  std::int64_t n = 0, seq = 0, count = 0;
  for (std::string precision; std::cin >> n >> seq >> precision >> count;) {
    const std::string wanted = fmt::format("{} {} {}", n, seq, precision);
    if (wanted != made) {
      bert.reset();
      bert = std::make_unique<Bert>(*backend, n, seq, precision == "bf16" ? DType::bf16 : DType::f32);
      made = wanted;
    }
    bert->seconds.clear();
    const auto start = std::chrono::steady_clock::now();
    const double cpu_start = cpu_seconds();
    for (std::int64_t i = 0; i < count; ++i) bert->step();
    const double cpu = cpu_seconds() - cpu_start;
    const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const auto per_step = [&](double seconds) { return 1e3 * seconds / static_cast<double>(count); };
    fmt::print("{{\"ms\": {:.2f}, \"cpu_ms\": {:.2f}, \"loss\": {:.5f}, \"memory_mib\": {}, \"ms_of\": {{",
               per_step(all), per_step(cpu), bert->loss(), backend->allocated_bytes() >> 20);
    const char* separator = "";
    for (const auto& [name, seconds] : bert->seconds) {
      fmt::print("{}\"{}\": {:.2f}", separator, name, per_step(seconds));
      separator = ", ";
    }
    fmt::print("}}}}\n");
    std::fflush(stdout);
  }
}
