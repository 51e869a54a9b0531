// Convolution by oneDNN. Activations stay channels-last, which costs its kernels at most a few percent
// against the blocked layout they would choose; weights and their gradients, small for convolutions, are
// converted per call.
#include <optional>

#include "kernels/cpu/checks.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/parallel.h"

namespace motley {
namespace {

using onednn::Desc;
using onednn::Tag;

enum Operation : std::int64_t { forward = 1, backward_data = 2, backward_weights = 3 };

// Sizes of a convolution: x [n, h, w, in], y [n, out_h, out_w, out].
struct Sizes {
  std::int64_t n, h, w, in, out_h, out_w, out;
  Shape x, y, weight;
};

// Checks the two activation tensors against each other and says what the weight's shape must be.
Sizes sizes_of(const char* operation, const Conv2d& conv, const char* x_name, const ConstView& x,
               const char* y_name, const ConstView& y) {
  check_rank(operation, x_name, x, DType::f32, 4);
  check_rank(operation, y_name, y, DType::f32, 4);
  Sizes s{};
  s.n = x.shape[0], s.h = x.shape[1], s.w = x.shape[2], s.in = x.shape[3], s.out = y.shape[3];
  const bool sound = conv.kernel_h > 0 && conv.kernel_w > 0 && conv.stride_h > 0 && conv.stride_w > 0 &&
                     conv.pad_h >= 0 && conv.pad_w >= 0 && conv.groups > 0 && s.in > 0 && s.out > 0 &&
                     s.in % conv.groups == 0 && s.out % conv.groups == 0 &&
                     s.h + 2 * conv.pad_h >= conv.kernel_h && s.w + 2 * conv.pad_w >= conv.kernel_w;
  if (!sound) {
    fail(ExitCode::internal,
         "{}: a {}x{} kernel, stride {}x{}, padding {}x{}, {} groups does not fit {} {}, {} {}", operation,
         conv.kernel_h, conv.kernel_w, conv.stride_h, conv.stride_w, conv.pad_h, conv.pad_w, conv.groups,
         x_name, x.shape.to_string(), y_name, y.shape.to_string());
  }
  s.out_h = (s.h + 2 * conv.pad_h - conv.kernel_h) / conv.stride_h + 1;
  s.out_w = (s.w + 2 * conv.pad_w - conv.kernel_w) / conv.stride_w + 1;
  s.x = x.shape;
  s.y = Shape{s.n, s.out_h, s.out_w, s.out};
  s.weight = Shape{s.out, s.in / conv.groups, conv.kernel_h, conv.kernel_w};
  check_view(operation, y_name, y, DType::f32, s.y);
  return s;
}

PrimitiveKey key_of(Operation operation, const Conv2d& c, const Sizes& s, bool bias) {
  return {operation,  s.n,        s.h,        s.w,     s.in,    s.out,    c.kernel_h,
          c.kernel_w, c.stride_h, c.stride_w, c.pad_h, c.pad_w, c.groups, bias};
}

// PyTorch's layout; grouped weights have one dimension more in oneDNN, the memory is the same.
Desc weight_desc(const Conv2d& c, const Sizes& s, bool plain) {
  if (c.groups == 1) {
    return onednn::desc_f32({s.out, s.in, c.kernel_h, c.kernel_w}, plain ? Tag::oihw : Tag::any);
  }
  return onednn::desc_f32({c.groups, s.out / c.groups, s.in / c.groups, c.kernel_h, c.kernel_w},
                          plain ? Tag::goihw : Tag::any);
}

onednn::Convolution describe(const Conv2d& c, const Sizes& s, bool bias) {
  onednn::Convolution result;
  result.src = onednn::desc_f32({s.n, s.in, s.h, s.w}, Tag::nhwc);
  result.weights = weight_desc(c, s, false);
  if (bias) result.bias = onednn::desc_f32({s.out}, Tag::a);
  result.dst = onednn::desc_f32({s.n, s.out, s.out_h, s.out_w}, Tag::nhwc);
  result.strides = {c.stride_h, c.stride_w};
  result.padding = {c.pad_h, c.pad_w};
  return result;
}

// A convolution with its descriptors and the layout of its working memory: [scratchpad | weights in the
// primitive's layout | weights in PyTorch's layout | bias].
struct Prepared : PreparedPrimitive {
  dnnl::primitive primitive;
  Desc src, weights, plain_weights, bias, dst, scratchpad;
  std::optional<dnnl::reorder>
      reorder;  // to the primitive's layout, or for gradients from it; absent if they agree
  std::size_t weights_at = 0, plain_at = 0, bias_at = 0, scratch_bytes = 0;

  void lay_out(const Desc& scratchpad_desc) {
    constexpr auto round_up = [](std::size_t bytes) { return (bytes + 63) / 64 * 64; };
    scratchpad = scratchpad_desc;
    weights_at = round_up(scratchpad.get_size());
    plain_at = weights_at + round_up(weights.get_size());
    bias_at = plain_at + round_up(plain_weights.get_size());
    scratch_bytes = bias_at + round_up(bias.get_size());
  }

  void make_reorder(const Desc& from, const Desc& to) {
    if (from == to) return;
    reorder = dnnl::reorder({onednn::engine(), from, onednn::engine(), to});
  }
};

// The weights in the primitive's layout: converted into `scratch`, or where they are.
dnnl::memory bind_weights(Prepared& p, const ConstView& weight, std::byte* scratch, dnnl::stream& stream) {
  if (!p.reorder) return onednn::bind(p.weights, weight.data);
  dnnl::memory plain = onednn::bind(p.plain_weights, weight.data);
  dnnl::memory converted = onednn::bind(p.weights, scratch + p.weights_at);
  p.reorder->execute(stream, plain, converted);
  return converted;
}

void add_to(float* sum, const float* term, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) sum[i] += term[i];
}

}  // namespace

void CpuBackend::conv2d_forward(const Conv2d& conv, ConstView x, ConstView weight, ConstView bias,
                                Activation activation, View y) {
  constexpr auto name = "conv2d_forward";
  const Sizes s = sizes_of(name, conv, "x", x, "y", y);
  check_view(name, "weight", weight, DType::f32, s.weight);
  if (!bias.empty()) check_view(name, "bias", bias, DType::f32, Shape{s.out});
  MOTLEY_CHECK(activation == Activation::none || activation == Activation::relu);
  if (s.n == 0) return;

  onednn::call(name, threads(), [&] {
    const bool with_bias = !bias.empty();
    auto& p = primitives_.find_or_make<Prepared>(key_of(forward, conv, s, with_bias), [&] {
      const auto pd = onednn::forward_descriptor(describe(conv, s, with_bias), onednn::attributes());
      auto made = std::make_unique<Prepared>();
      made->primitive = dnnl::convolution_forward(pd);
      made->src = pd.src_desc(), made->weights = pd.weights_desc(), made->dst = pd.dst_desc();
      if (with_bias) made->bias = pd.bias_desc();
      made->plain_weights = weight_desc(conv, s, true);
      made->make_reorder(made->plain_weights, made->weights);
      made->lay_out(pd.scratchpad_desc());
      return made;
    });
    std::byte* work = scratch(p.scratch_bytes);
    dnnl::stream stream(onednn::engine());
    std::unordered_map<int, dnnl::memory> args{{DNNL_ARG_SRC, onednn::bind(p.src, x.data)},
                                               {DNNL_ARG_WEIGHTS, bind_weights(p, weight, work, stream)},
                                               {DNNL_ARG_DST, onednn::bind(p.dst, y.data)},
                                               {DNNL_ARG_SCRATCHPAD, onednn::bind(p.scratchpad, work)}};
    if (with_bias) args.emplace(DNNL_ARG_BIAS, onednn::bind(p.bias, bias.data));
    p.primitive.execute(stream, args);
    stream.wait();
  });
  // Not oneDNN's fused ReLU, which turns NaN into 0: a diverged network would train on in silence.
  if (activation == Activation::relu) relu_forward(y, y);
}

void CpuBackend::conv2d_backward_data(const Conv2d& conv, ConstView dy, ConstView weight, View dx) {
  constexpr auto name = "conv2d_backward_data";
  const Sizes s = sizes_of(name, conv, "dx", dx, "dy", dy);
  check_view(name, "weight", weight, DType::f32, s.weight);
  if (s.n == 0) return;

  onednn::call(name, threads(), [&] {
    auto& p = primitives_.find_or_make<Prepared>(key_of(backward_data, conv, s, false), [&] {
      const auto pd = onednn::backward_data_descriptor(describe(conv, s, false), onednn::attributes());
      auto made = std::make_unique<Prepared>();
      made->primitive = dnnl::convolution_backward_data(pd);
      made->src = pd.diff_src_desc(), made->weights = pd.weights_desc(), made->dst = pd.diff_dst_desc();
      made->plain_weights = weight_desc(conv, s, true);
      made->make_reorder(made->plain_weights, made->weights);
      made->lay_out(pd.scratchpad_desc());
      return made;
    });
    std::byte* work = scratch(p.scratch_bytes);
    dnnl::stream stream(onednn::engine());
    p.primitive.execute(stream, {{DNNL_ARG_DIFF_DST, onednn::bind(p.dst, dy.data)},
                                 {DNNL_ARG_WEIGHTS, bind_weights(p, weight, work, stream)},
                                 {DNNL_ARG_DIFF_SRC, onednn::bind(p.src, dx.data)},
                                 {DNNL_ARG_SCRATCHPAD, onednn::bind(p.scratchpad, work)}});
    stream.wait();
  });
}

void CpuBackend::conv2d_backward_weights(const Conv2d& conv, ConstView x, ConstView dy, View dweight,
                                         View dbias, bool accumulate) {
  constexpr auto name = "conv2d_backward_weights";
  const Sizes s = sizes_of(name, conv, "x", x, "dy", dy);
  check_view(name, "dweight", dweight, DType::f32, s.weight);
  const bool with_bias = !dbias.empty();
  if (with_bias) check_view(name, "dbias", dbias, DType::f32, Shape{s.out});
  if (s.n == 0) {
    if (!accumulate) fill_zero(dweight);
    if (!accumulate && with_bias) fill_zero(dbias);
    return;
  }

  onednn::call(name, threads(), [&] {
    auto& p = primitives_.find_or_make<Prepared>(key_of(backward_weights, conv, s, with_bias), [&] {
      const auto pd = onednn::backward_weights_descriptor(describe(conv, s, with_bias), onednn::attributes());
      auto made = std::make_unique<Prepared>();
      made->primitive = dnnl::convolution_backward_weights(pd);
      made->src = pd.src_desc(), made->weights = pd.diff_weights_desc(), made->dst = pd.diff_dst_desc();
      if (with_bias) made->bias = pd.diff_bias_desc();
      made->plain_weights = weight_desc(conv, s, true);
      made->make_reorder(made->weights, made->plain_weights);
      made->lay_out(pd.scratchpad_desc());
      return made;
    });
    // oneDNN overwrites, so a gradient that is to be added to goes through working memory first.
    std::byte* work = scratch(p.scratch_bytes);
    void* plain = accumulate ? work + p.plain_at : dweight.data;
    void* bias_gradient = accumulate ? work + p.bias_at : dbias.data;
    dnnl::memory result = onednn::bind(p.weights, p.reorder ? work + p.weights_at : plain);
    std::unordered_map<int, dnnl::memory> args{{DNNL_ARG_SRC, onednn::bind(p.src, x.data)},
                                               {DNNL_ARG_DIFF_DST, onednn::bind(p.dst, dy.data)},
                                               {DNNL_ARG_DIFF_WEIGHTS, result},
                                               {DNNL_ARG_SCRATCHPAD, onednn::bind(p.scratchpad, work)}};
    if (with_bias) args.emplace(DNNL_ARG_DIFF_BIAS, onednn::bind(p.bias, bias_gradient));
    dnnl::stream stream(onednn::engine());
    p.primitive.execute(stream, args);
    if (p.reorder) {
      dnnl::memory target = onednn::bind(p.plain_weights, plain);
      p.reorder->execute(stream, result, target);
    }
    stream.wait();
    if (accumulate) {
      add_to(dweight.as<float>(), static_cast<const float*>(plain), dweight.elements());
      if (with_bias) add_to(dbias.as<float>(), static_cast<const float*>(bias_gradient), s.out);
    }
  });
}

}  // namespace motley
