// Convolution by oneDNN. Activations stay channels-last, which costs its kernels at most a few percent
// against the blocked layout they would choose; weights and their gradients, small for convolutions, are
// converted per call.
#include <optional>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

using onednn::Desc;
using onednn::Tag;

enum Operation : std::int64_t { forward = 1, backward_data = 2, backward_weights = 3 };

PrimitiveKey key_of(Operation operation, const ConvolutionSizes& s, bool bias) {
  const Conv2d& c = s.conv;
  return {operation,  s.n,        s.h,        s.w,     s.in,    s.out,    c.kernel_h,
          c.kernel_w, c.stride_h, c.stride_w, c.pad_h, c.pad_w, c.groups, bias};
}

// PyTorch's layout; grouped weights have one dimension more in oneDNN, the memory is the same.
Desc weight_desc(const ConvolutionSizes& s, bool plain) {
  const Conv2d& c = s.conv;
  if (c.groups == 1) {
    return onednn::desc_f32({s.out, s.in, c.kernel_h, c.kernel_w}, plain ? Tag::oihw : Tag::any);
  }
  return onednn::desc_f32({c.groups, s.out / c.groups, s.in / c.groups, c.kernel_h, c.kernel_w},
                          plain ? Tag::goihw : Tag::any);
}

onednn::Convolution describe(const ConvolutionSizes& s, bool bias) {
  onednn::Convolution result;
  result.src = onednn::desc_f32({s.n, s.in, s.h, s.w}, Tag::nhwc);
  result.weights = weight_desc(s, false);
  if (bias) result.bias = onednn::desc_f32({s.out}, Tag::a);
  result.dst = onednn::desc_f32({s.n, s.out, s.out_h, s.out_w}, Tag::nhwc);
  result.strides = {s.conv.stride_h, s.conv.stride_w};
  result.padding = {s.conv.pad_h, s.conv.pad_w};
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
  const ConvolutionSizes s = check_conv2d(name, conv, {"x", x}, {"y", y}, {"weight", weight}, {"bias", bias});
  MOTLEY_CHECK(activation == Activation::none || activation == Activation::relu);
  if (s.n == 0) return;

  onednn::call(name, threads(), [&] {
    const bool with_bias = !bias.empty();
    auto& p = primitives_.find_or_make<Prepared>(key_of(forward, s, with_bias), [&] {
      const auto pd = onednn::forward_descriptor(describe(s, with_bias), onednn::attributes());
      auto made = std::make_unique<Prepared>();
      made->primitive = dnnl::convolution_forward(pd);
      made->src = pd.src_desc(), made->weights = pd.weights_desc(), made->dst = pd.dst_desc();
      if (with_bias) made->bias = pd.bias_desc();
      made->plain_weights = weight_desc(s, true);
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
  const ConvolutionSizes s = check_conv2d(name, conv, {"dx", dx}, {"dy", dy}, {"weight", weight});
  if (s.n == 0) return;

  onednn::call(name, threads(), [&] {
    auto& p = primitives_.find_or_make<Prepared>(key_of(backward_data, s, false), [&] {
      const auto pd = onednn::backward_data_descriptor(describe(s, false), onednn::attributes());
      auto made = std::make_unique<Prepared>();
      made->primitive = dnnl::convolution_backward_data(pd);
      made->src = pd.diff_src_desc(), made->weights = pd.weights_desc(), made->dst = pd.diff_dst_desc();
      made->plain_weights = weight_desc(s, true);
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
  const ConvolutionSizes s =
      check_conv2d(name, conv, {"x", x}, {"dy", dy}, {"dweight", dweight}, {"dbias", dbias});
  const bool with_bias = !dbias.empty();
  if (s.n == 0) {
    if (!accumulate) fill_zero(dweight);
    if (!accumulate && with_bias) fill_zero(dbias);
    return;
  }

  onednn::call(name, threads(), [&] {
    auto& p = primitives_.find_or_make<Prepared>(key_of(backward_weights, s, with_bias), [&] {
      const auto pd = onednn::backward_weights_descriptor(describe(s, with_bias), onednn::attributes());
      auto made = std::make_unique<Prepared>();
      made->primitive = dnnl::convolution_backward_weights(pd);
      made->src = pd.src_desc(), made->weights = pd.diff_weights_desc(), made->dst = pd.diff_dst_desc();
      if (with_bias) made->bias = pd.diff_bias_desc();
      made->plain_weights = weight_desc(s, true);
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
