// Convolution: 3 x 3 kernels without stride by Winograd's method, others by oneDNN. Activations stay channels-last, which
// over all convolutions of ResNet-50 (CIFAR's form) costs oneDNN's kernels 3 % (bfloat16: 6 %) against the blocked layout
// they would choose, and more for grouped ones. Weights and gradients stay in PyTorch's layout, the same on every device of a
// run: oneDNN's part of them is converted per call, which takes another 2 % (4 %) at batch 32.
#include <optional>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/winograd.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

using onednn::Desc;
using onednn::Tag;

enum Operation : std::int64_t { forward = 1, backward_data = 2, backward_weights = 3 };

PrimitiveKey key_of(Operation operation, const ConvolutionSizes& s, DType type, bool bias) {
  const Conv2d& c = s.conv;
  return {operation, s.n,        s.h,        s.w,        s.in,
          s.out,     c.kernel_h, c.kernel_w, c.stride_h, c.stride_w,
          c.pad_h,   c.pad_w,    c.groups,   bias,       static_cast<std::int64_t>(type)};
}

// PyTorch's layout; grouped weights have one dimension more in oneDNN, the memory is the same.
Desc weight_desc(const ConvolutionSizes& s, DType type, bool plain) {
  const Conv2d& c = s.conv;
  const auto element = onednn::data_type(type);
  if (c.groups == 1) return {{s.out, s.in, c.kernel_h, c.kernel_w}, element, plain ? Tag::oihw : Tag::any};
  return {{c.groups, s.out / c.groups, s.in / c.groups, c.kernel_h, c.kernel_w},
          element,
          plain ? Tag::goihw : Tag::any};
}

// Of activations in `type`.
onednn::Convolution describe(const ConvolutionSizes& s, DType type, DType weight_type, bool bias) {
  const auto element = onednn::data_type(type);
  onednn::Convolution result;
  result.src = Desc({s.n, s.in, s.h, s.w}, element, Tag::nhwc);
  result.weights = weight_desc(s, weight_type, false);
  if (bias) result.bias = onednn::desc_f32({s.out}, Tag::a);
  result.dst = Desc({s.n, s.out, s.out_h, s.out_w}, element, Tag::nhwc);
  result.strides = {s.conv.stride_h, s.conv.stride_w};
  result.padding = {s.conv.pad_h, s.conv.pad_w};
  return result;
}

constexpr std::size_t round_up(std::size_t bytes) {
  return (bytes + 63) / 64 * 64;
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
dnnl::memory bind_weights(Prepared& p, const void* weight, std::byte* scratch, dnnl::stream& stream) {
  if (!p.reorder) return onednn::bind(p.weights, weight);
  dnnl::memory plain = onednn::bind(p.plain_weights, weight);
  dnnl::memory converted = onednn::bind(p.weights, scratch + p.weights_at);
  onednn::convert(*p.reorder, stream, plain, converted);
  return converted;
}

// The type to compute in: processors without bfloat16 products multiply in float32, exactly and not slower.
DType computed_type(const char* operation, const ConstView& x, const DeviceInfo& device) {
  DType type = DType::f32;
  with_element_type(operation, "x", x, [&](auto element) { type = DTypeOf<decltype(element)>::value; });
  return type == DType::bf16 && !device.bf16_native ? DType::f32 : type;
}

// Tensors as the primitive takes them: where they are, or, if it computes in a wider type, float32 copies.
class Operands {
 public:
  Operands(int threads, DType computed) : threads_(threads), computed_(computed) {}

  std::size_t copies_bytes(std::initializer_list<ConstView> tensors) const {
    std::size_t bytes = 0;
    for (const ConstView& t : tensors) {
      if (t.dtype != computed_) bytes += round_up(static_cast<std::size_t>(t.elements()) * sizeof(float));
    }
    return bytes;
  }
  // The copies lie here.
  void place(std::byte* work) { work_ = work; }

  const void* input(const ConstView& x) {
    if (x.dtype == computed_) return x.data;
    float* const copy = next(x.elements());
    convert(x.as<Bf16>(), x.elements(), copy);
    return copy;
  }
  void* output(const View& y) {
    if (y.dtype == computed_) return y.data;
    output_ = y;
    output_copy_ = next(y.elements());
    return output_copy_;
  }
  // After the primitive has run.
  void finish() const {
    if (output_copy_ != nullptr) convert(output_copy_, output_.elements(), output_.as<Bf16>());
  }

 private:
  float* next(std::int64_t elements) {
    auto* const copy = reinterpret_cast<float*>(work_);
    work_ += round_up(static_cast<std::size_t>(elements) * sizeof(float));
    return copy;
  }
  template <class From, class To>
  void convert(const From* from, std::int64_t elements, To* to) const {
    parallel_blocks(threads_, elements, elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) to[i] = from_float<To>(to_float(from[i]));
    });
  }

  int threads_;
  DType computed_;
  std::byte* work_ = nullptr;
  View output_;
  float* output_copy_ = nullptr;
};

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
  const DType type = computed_type(name, x, device_);
  if (s.n == 0) return;
  if (winograd::applies(s))
    return winograd::forward(threads(), s, x, weight, bias, activation, y,
                             scratch(winograd::forward_bytes(threads(), s)));

  onednn::call(name, threads(), [&] {
    const bool with_bias = !bias.empty();
    auto& p = primitives_.find_or_make<Prepared>(key_of(forward, s, type, with_bias), [&] {
      const auto pd = onednn::forward_descriptor(describe(s, type, type, with_bias), onednn::attributes());
      auto made = std::make_unique<Prepared>();
      made->primitive = dnnl::convolution_forward(pd);
      made->src = pd.src_desc(), made->weights = pd.weights_desc(), made->dst = pd.dst_desc();
      if (with_bias) made->bias = pd.bias_desc();
      made->plain_weights = weight_desc(s, type, true);
      made->make_reorder(made->plain_weights, made->weights);
      made->lay_out(pd.scratchpad_desc());
      return made;
    });
    Operands operands(threads(), type);
    std::byte* work = scratch(p.scratch_bytes + operands.copies_bytes({x, weight, y}));
    operands.place(work + p.scratch_bytes);
    dnnl::stream stream(onednn::engine());
    std::unordered_map<int, dnnl::memory> args{
        {DNNL_ARG_SRC, onednn::bind(p.src, operands.input(x))},
        {DNNL_ARG_WEIGHTS, bind_weights(p, operands.input(weight), work, stream)},
        {DNNL_ARG_DST, onednn::bind(p.dst, operands.output(y))},
        {DNNL_ARG_SCRATCHPAD, onednn::bind(p.scratchpad, work)}};
    if (with_bias) args.emplace(DNNL_ARG_BIAS, onednn::bind(p.bias, bias.data));
    p.primitive.execute(stream, args);
    stream.wait();
    operands.finish();
  });
  // Not oneDNN's fused ReLU, which turns NaN into 0: a diverged network would train on in silence.
  if (activation == Activation::relu) relu_forward(y, y);
}

void CpuBackend::conv2d_backward_data(const Conv2d& conv, ConstView dy, ConstView weight, View dx) {
  constexpr auto name = "conv2d_backward_data";
  const ConvolutionSizes s = check_conv2d(name, conv, {"dx", dx}, {"dy", dy}, {"weight", weight});
  const DType type = computed_type(name, dy, device_);
  if (s.n == 0) return;
  if (winograd::applies(s))
    return winograd::backward_data(threads(), s, dy, weight, dx,
                                   scratch(winograd::backward_data_bytes(threads(), s)));

  onednn::call(name, threads(), [&] {
    auto& p = primitives_.find_or_make<Prepared>(key_of(backward_data, s, type, false), [&] {
      const auto pd = onednn::backward_data_descriptor(describe(s, type, type, false), onednn::attributes());
      auto made = std::make_unique<Prepared>();
      made->primitive = dnnl::convolution_backward_data(pd);
      made->src = pd.diff_src_desc(), made->weights = pd.weights_desc(), made->dst = pd.diff_dst_desc();
      made->plain_weights = weight_desc(s, type, true);
      made->make_reorder(made->plain_weights, made->weights);
      made->lay_out(pd.scratchpad_desc());
      return made;
    });
    Operands operands(threads(), type);
    std::byte* work = scratch(p.scratch_bytes + operands.copies_bytes({dy, weight, dx}));
    operands.place(work + p.scratch_bytes);
    dnnl::stream stream(onednn::engine());
    p.primitive.execute(stream, {{DNNL_ARG_DIFF_DST, onednn::bind(p.dst, operands.input(dy))},
                                 {DNNL_ARG_WEIGHTS, bind_weights(p, operands.input(weight), work, stream)},
                                 {DNNL_ARG_DIFF_SRC, onednn::bind(p.src, operands.output(dx))},
                                 {DNNL_ARG_SCRATCHPAD, onednn::bind(p.scratchpad, work)}});
    stream.wait();
    operands.finish();
  });
}

void CpuBackend::conv2d_backward_weights(const Conv2d& conv, ConstView x, ConstView dy, View dweight,
                                         View dbias, bool accumulate) {
  constexpr auto name = "conv2d_backward_weights";
  const ConvolutionSizes s = check_conv2d_backward_weights(name, conv, x, dy, dweight, dbias);
  const DType type = computed_type(name, x, device_);
  const bool with_bias = !dbias.empty();
  if (s.n == 0) {
    if (!accumulate) fill_zero(dweight);
    if (!accumulate && with_bias) fill_zero(dbias);
    return;
  }
  if (winograd::applies(s)) {
    return winograd::backward_weights(threads(), s, x, dy, dweight, dbias, accumulate,
                                      scratch(winograd::backward_weights_bytes(threads(), s)));
  }

  onednn::call(name, threads(), [&] {
    auto& p = primitives_.find_or_make<Prepared>(key_of(backward_weights, s, type, with_bias), [&] {
      const auto pd =
          onednn::backward_weights_descriptor(describe(s, type, DType::f32, with_bias), onednn::attributes());
      auto made = std::make_unique<Prepared>();
      made->primitive = dnnl::convolution_backward_weights(pd);
      made->src = pd.src_desc(), made->weights = pd.diff_weights_desc(), made->dst = pd.diff_dst_desc();
      if (with_bias) made->bias = pd.diff_bias_desc();
      made->plain_weights = weight_desc(s, DType::f32, true);
      made->make_reorder(made->weights, made->plain_weights);
      made->lay_out(pd.scratchpad_desc());
      return made;
    });
    // oneDNN overwrites, so a gradient that is to be added to goes through working memory first.
    Operands operands(threads(), type);
    std::byte* work = scratch(p.scratch_bytes + operands.copies_bytes({x, dy}));
    operands.place(work + p.scratch_bytes);
    void* plain = accumulate ? work + p.plain_at : dweight.data;
    void* bias_gradient = accumulate ? work + p.bias_at : dbias.data;
    dnnl::memory result = onednn::bind(p.weights, p.reorder ? work + p.weights_at : plain);
    std::unordered_map<int, dnnl::memory> args{{DNNL_ARG_SRC, onednn::bind(p.src, operands.input(x))},
                                               {DNNL_ARG_DIFF_DST, onednn::bind(p.dst, operands.input(dy))},
                                               {DNNL_ARG_DIFF_WEIGHTS, result},
                                               {DNNL_ARG_SCRATCHPAD, onednn::bind(p.scratchpad, work)}};
    if (with_bias) args.emplace(DNNL_ARG_DIFF_BIAS, onednn::bind(p.bias, bias_gradient));
    dnnl::stream stream(onednn::engine());
    p.primitive.execute(stream, args);
    if (p.reorder) {
      dnnl::memory target = onednn::bind(p.plain_weights, plain);
      onednn::convert(*p.reorder, stream, result, target);
    }
    stream.wait();
    if (accumulate) {
      add_to(dweight.as<float>(), static_cast<const float*>(plain), dweight.elements());
      if (with_bias) add_to(dbias.as<float>(), static_cast<const float*>(bias_gradient), s.out);
    }
  });
}

}  // namespace motley
