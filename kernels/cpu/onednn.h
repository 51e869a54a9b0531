// oneDNN as this backend uses it. Everything that differs between its versions 2 and 3 is in this header:
// version 3 has no operation descriptors, a primitive descriptor takes all arguments itself.
#pragma once

#include <omp.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <dnnl.hpp>

#include "core/dtype.h"
#include "core/error.h"

namespace motley::onednn {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;

inline const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

// Sets OpenMP's number of threads, which oneDNN goes by, and puts the old one back.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~ThreadScope() { omp_set_num_threads(before_); }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_;
};

// Runs `body` on `threads` threads; a failure inside oneDNN becomes an Error that names the operation.
template <class Body>
auto call(const char* operation, int threads, const Body& body) {
  const ThreadScope scope(threads);
  try {
    return body();
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory)
      throw OutOfMemory(fmt::format("{}: oneDNN found no memory: {}", operation, error.what()));
    fail(ExitCode::internal, "{}: oneDNN failed: {}", operation, error.what());
  }
}

inline void check(const char* operation, dnnl_status_t status) {
  if (status == dnnl_out_of_memory) throw OutOfMemory(fmt::format("{}: oneDNN found no memory", operation));
  if (status != dnnl_success)
    fail(ExitCode::internal, "{}: oneDNN failed with status {}", operation, static_cast<int>(status));
}

inline dnnl::memory bind(const Desc& desc, const void* data) {
  return {desc, engine(), const_cast<void*>(data)};  // oneDNN has no memory objects for constant data
}

// How many tensors were converted from one layout to another, for tests.
inline std::atomic<std::int64_t> conversions{0};

inline void convert(const dnnl::reorder& reorder, dnnl::stream& stream, dnnl::memory& from,
                    dnnl::memory& to) {
  ++conversions;
  reorder.execute(stream, from, to);
}

// Of float32 and bfloat16, the types that this backend multiplies.
inline dnnl::memory::data_type data_type(DType type) {
  return type == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

inline Desc desc_f32(const dnnl::memory::dims& dims, Tag tag) {
  return {dims, dnnl::memory::data_type::f32, tag};
}

inline dnnl::memory::dims dims_of(const Desc& desc) {
#if DNNL_VERSION_MAJOR >= 3
  return desc.get_dims();
#else
  return desc.dims();
#endif
}
inline dnnl::memory::data_type type_of(const Desc& desc) {
#if DNNL_VERSION_MAJOR >= 3
  return desc.get_data_type();
#else
  return desc.data_type();
#endif
}

// The scratchpad belongs to the caller, so that it is counted as device memory.
inline dnnl::primitive_attr attributes() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

// The tensors of a convolution and how its window moves; `bias` may be an empty descriptor.
struct Convolution {
  Desc src, weights, bias, dst;
  dnnl::memory::dims strides, padding;
};

inline auto forward_descriptor(const Convolution& c, const dnnl::primitive_attr& attr) {
  using Op = dnnl::convolution_forward;
  constexpr auto kind = dnnl::prop_kind::forward_training;
  constexpr auto direct = dnnl::algorithm::convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
  return Op::primitive_desc(engine(), kind, direct, c.src, c.weights, c.bias, c.dst, c.strides, c.padding,
                            c.padding, attr);
#else
  return Op::primitive_desc({kind, direct, c.src, c.weights, c.bias, c.dst, c.strides, c.padding, c.padding},
                            attr, engine());
#endif
}

inline auto backward_data_descriptor(const Convolution& c, const dnnl::primitive_attr& attr) {
  using Op = dnnl::convolution_backward_data;
  constexpr auto direct = dnnl::algorithm::convolution_direct;
  const auto hint = forward_descriptor(c, attr);
#if DNNL_VERSION_MAJOR >= 3
  return Op::primitive_desc(engine(), direct, c.src, c.weights, c.dst, c.strides, c.padding, c.padding, hint,
                            attr);
#else
  return Op::primitive_desc({direct, c.src, c.weights, c.dst, c.strides, c.padding, c.padding}, attr,
                            engine(), hint);
#endif
}

inline auto backward_weights_descriptor(const Convolution& c, const dnnl::primitive_attr& attr) {
  using Op = dnnl::convolution_backward_weights;
  constexpr auto direct = dnnl::algorithm::convolution_direct;
  Convolution forward = c;  // the gradient may be wider than the weights
  forward.weights = Desc(dims_of(c.weights), type_of(c.src), Tag::any);
  const auto hint = forward_descriptor(forward, attr);
#if DNNL_VERSION_MAJOR >= 3
  return Op::primitive_desc(engine(), direct, c.src, c.weights, c.bias, c.dst, c.strides, c.padding,
                            c.padding, hint, attr);
#else
  return Op::primitive_desc({direct, c.src, c.weights, c.bias, c.dst, c.strides, c.padding, c.padding}, attr,
                            engine(), hint);
#endif
}

// `bias` may be an empty descriptor.
inline auto matmul_descriptor(const Desc& a, const Desc& b, const Desc& bias, const Desc& c,
                              const dnnl::primitive_attr& attr) {
  using Op = dnnl::matmul;
#if DNNL_VERSION_MAJOR >= 3
  return bias.get_size() > 0 ? Op::primitive_desc(engine(), a, b, bias, c, attr)
                             : Op::primitive_desc(engine(), a, b, c, attr);
#else
  return Op::primitive_desc(bias.get_size() > 0 ? Op::desc(a, b, bias, c) : Op::desc(a, b, c), attr,
                            engine());
#endif
}

// A fully connected layer, src [n, in] and weights [out, in]; its forward descriptor is only a hint to the
// others.
inline auto inner_product_descriptor(const Desc& src, const Desc& weights, const Desc& dst) {
  using Op = dnnl::inner_product_forward;
  constexpr auto kind = dnnl::prop_kind::forward_training;
#if DNNL_VERSION_MAJOR >= 3
  return Op::primitive_desc(engine(), kind, src, weights, dst);
#else
  return Op::primitive_desc({kind, src, weights, dst}, engine());
#endif
}

inline auto inner_product_data_descriptor(const Desc& src, const Desc& weights, const Desc& dst,
                                          const dnnl::primitive_attr& attr) {
  using Op = dnnl::inner_product_backward_data;
  const auto hint = inner_product_descriptor(src, weights, dst);
#if DNNL_VERSION_MAJOR >= 3
  return Op::primitive_desc(engine(), src, weights, dst, hint, attr);
#else
  return Op::primitive_desc({src, weights, dst}, attr, engine(), hint);
#endif
}

inline auto inner_product_weights_descriptor(const Desc& src, const Desc& weights, const Desc& dst,
                                             const dnnl::primitive_attr& attr) {
  using Op = dnnl::inner_product_backward_weights;
  const Desc forward_weights(dims_of(weights), type_of(src), Tag::ab);  // the gradient may be the wider one
  const auto hint = inner_product_descriptor(src, forward_weights, dst);
#if DNNL_VERSION_MAJOR >= 3
  return Op::primitive_desc(engine(), src, weights, dst, hint, attr);
#else
  return Op::primitive_desc({src, weights, dst}, attr, engine(), hint);
#endif
}

// The processor multiplies bfloat16 itself.
inline bool has_bf16_products() {
  constexpr auto wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
}

}  // namespace motley::onednn
