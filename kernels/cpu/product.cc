#include "kernels/cpu/product.h"

#include "core/bfloat16.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"

namespace motley {
namespace {

using onednn::Desc;
using onednn::Tag;

constexpr std::int64_t product_key = 100;  // apart from the operations of convolutions

struct Prepared : PreparedPrimitive {
  dnnl::primitive primitive;
  int a_is = DNNL_ARG_SRC, b_is = DNNL_ARG_WEIGHTS, c_is = DNNL_ARG_DST;
  Desc a, b, bias, c, scratchpad;
};

template <class Descriptor, class Primitive>
void set(Prepared& made, const Descriptor& descriptor, const Primitive& primitive) {
  made.primitive = primitive;
  made.scratchpad = descriptor.scratchpad_desc();
}

std::unique_ptr<Prepared> prepare_matmul(const Product& p, bool bias) {
  auto made = std::make_unique<Prepared>();
  made->a = Desc({p.m, p.k}, onednn::data_type(p.in), p.transpose_a ? Tag::ba : Tag::ab);
  made->b = Desc({p.k, p.n}, onednn::data_type(p.in), p.transpose_b ? Tag::ba : Tag::ab);
  made->c = Desc({p.m, p.n}, onednn::data_type(p.out), Tag::ab);
  if (bias) made->bias = onednn::desc_f32({1, p.n}, Tag::ab);
  dnnl::primitive_attr attr = onednn::attributes();
  if (p.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attr.set_post_ops(sum);
  }
  const auto descriptor = onednn::matmul_descriptor(made->a, made->b, made->bias, made->c, attr);
  set(*made, descriptor, dnnl::matmul(descriptor));
  return made;
}

// The gradient of a linear layer's weights: a is dy [k, m], b is x [k, n].
std::unique_ptr<Prepared> prepare_weight_gradient(const Product& p) {
  auto made = std::make_unique<Prepared>();
  made->a_is = DNNL_ARG_DIFF_DST, made->b_is = DNNL_ARG_SRC, made->c_is = DNNL_ARG_DIFF_WEIGHTS;
  made->a = Desc({p.k, p.m}, onednn::data_type(p.in), Tag::ab);
  made->b = Desc({p.k, p.n}, onednn::data_type(p.in), Tag::ab);
  made->c = Desc({p.m, p.n}, onednn::data_type(p.out), Tag::ab);
  const auto descriptor =
      onednn::inner_product_weights_descriptor(made->b, made->c, made->a, onednn::attributes());
  set(*made, descriptor, dnnl::inner_product_backward_weights(descriptor));
  return made;
}

// The gradient of a linear layer's input: a is dy [m, k], b the weights [k, n].
std::unique_ptr<Prepared> prepare_input_gradient(const Product& p) {
  auto made = std::make_unique<Prepared>();
  made->a_is = DNNL_ARG_DIFF_DST, made->b_is = DNNL_ARG_WEIGHTS, made->c_is = DNNL_ARG_DIFF_SRC;
  made->a = Desc({p.m, p.k}, onednn::data_type(p.in), Tag::ab);
  made->b = Desc({p.k, p.n}, onednn::data_type(p.in), Tag::ab);
  made->c = Desc({p.m, p.n}, onednn::data_type(p.out), Tag::ab);
  const auto descriptor =
      onednn::inner_product_data_descriptor(made->c, made->b, made->a, onednn::attributes());
  set(*made, descriptor, dnnl::inner_product_backward_data(descriptor));
  return made;
}

// oneDNN's inner product is 5 to 30 % faster than its matmul where it applies.
std::unique_ptr<Prepared> prepare(const Product& p, bool bias) {
  if (p.accumulate || bias || p.transpose_b) return prepare_matmul(p, bias);
  return p.transpose_a ? prepare_weight_gradient(p) : prepare_input_gradient(p);
}

std::int64_t rounded(std::int64_t floats) {
  return ceil_div(floats, 16) * 16;
}

void widen(int threads, const Bf16* from, std::int64_t elements, float* to) {
  parallel_blocks(threads, elements, elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) to[i] = to_float(from[i]);
  });
}

// c [rows, columns] (+)= product + bias.
template <class T>
void store(int threads, std::int64_t rows, std::int64_t columns, const float* product, const float* bias,
           bool accumulate, T* c) {
  parallel_for(threads, rows, [&](std::int64_t row) {
    const float* from = product + row * columns;
    T* to = c + row * columns;
#pragma omp simd
    for (std::int64_t i = 0; i < columns; ++i) {
      const float added = (bias == nullptr ? 0.0f : bias[i]) + (accumulate ? to_float(to[i]) : 0.0f);
      to[i] = from_float<T>(from[i] + added);
    }
  });
}

}  // namespace

// For processors without bfloat16 products: in float32 they are exact, too, and not slower.
void CpuBackend::multiply_widened(const char* operation, const Product& p, const Bf16* a, const Bf16* b,
                                  const float* bias, void* c) {
  const std::int64_t room_a = rounded(p.m * p.k), room_b = rounded(p.k * p.n), room_c = rounded(p.m * p.n);
  auto* wide_a =
      reinterpret_cast<float*>(scratch(static_cast<std::size_t>(room_a + room_b + room_c) * sizeof(float)));
  float* wide_b = wide_a + room_a;
  float* wide_c = wide_b + room_b;
  widen(threads(), a, p.m * p.k, wide_a);
  widen(threads(), b, p.k * p.n, wide_b);
  Product wide = p;
  wide.in = wide.out = DType::f32;
  wide.accumulate = false;
  {
    const onednn::ThreadScope scope(threads());
    onednn::check(operation, sgemm(wide, wide_a, wide_b, wide_c));
  }
  if (p.out == DType::f32) {
    store(threads(), p.m, p.n, wide_c, bias, p.accumulate, static_cast<float*>(c));
  } else {
    store(threads(), p.m, p.n, wide_c, bias, p.accumulate, static_cast<Bf16*>(c));
  }
}

void CpuBackend::multiply(const char* operation, const Product& p, const void* a, const void* b,
                          const float* bias, void* c) {
  if (p.in == DType::bf16 && !device_.bf16_native) {
    return multiply_widened(operation, p, static_cast<const Bf16*>(a), static_cast<const Bf16*>(b), bias, c);
  }
  // sgemm is the faster one on transposed and on deep operands, matmul on a layer's forward product.
  if (p.in == DType::f32 && p.out == DType::f32 && bias == nullptr && !p.transpose_b) {
    const onednn::ThreadScope scope(threads());
    onednn::check(operation, sgemm(p, static_cast<const float*>(a), static_cast<const float*>(b),
                                   static_cast<float*>(c)));
    return;
  }
  onednn::call(operation, threads(), [&] {
    const PrimitiveKey key{product_key,
                           p.transpose_a,
                           p.transpose_b,
                           p.m,
                           p.n,
                           p.k,
                           static_cast<std::int64_t>(p.in),
                           static_cast<std::int64_t>(p.out),
                           p.accumulate,
                           bias != nullptr};
    auto& prepared = primitives_.find_or_make<Prepared>(key, [&] { return prepare(p, bias != nullptr); });
    std::unordered_map<int, dnnl::memory> args{
        {prepared.a_is, onednn::bind(prepared.a, a)},
        {prepared.b_is, onednn::bind(prepared.b, b)},
        {prepared.c_is, onednn::bind(prepared.c, c)},
        {DNNL_ARG_SCRATCHPAD, onednn::bind(prepared.scratchpad, scratch(prepared.scratchpad.get_size()))}};
    if (bias != nullptr) args.emplace(DNNL_ARG_BIAS, onednn::bind(prepared.bias, bias));
    dnnl::stream stream(onednn::engine());
    prepared.primitive.execute(stream, args);
    stream.wait();
  });
}

}  // namespace motley
