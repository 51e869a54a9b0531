// Multi-head attention by batched products over (sample, head) pairs, which read and write the parts of qkv
// in place; attention_rows.cuh has what lies between the products. The backward pass forms the probabilities
// again from the scores and their log-sum-exp, as FlashAttention does (Dao et al., 2022, section 3.1).
//
// Pairs are worked on in chunks, of as many as have twice MatrixProducts::piece_bytes() of scores and
// probabilities, but at least one. That is two thirds of the cache: scores and probabilities are all that is
// read again, and the rows of q, k, v and context are a small part of what goes through the cache with them.
// Half as much would be too few pairs of long sequences, and so too few blocks of a product, to fill a large
// device. Scores are float32; probabilities and the gradients of scores are rounded to T for the products that
// take them.
#include <algorithm>
#include <limits>

#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/matrix_products.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

namespace rows = cuda::attention;

struct Sizes : AttentionSizes {
  explicit Sizes(const AttentionSizes& sizes) : AttentionSizes(sizes) {
    MOTLEY_CHECK(pairs() <= std::numeric_limits<int>::max() && stride() <= std::numeric_limits<int>::max());
  }
  std::int64_t pairs() const { return n * heads; }
  std::int64_t stride() const { return cuda::ceil_div(seq, 8) * 8; }  // of rows of scores
};

// --- Small kernels ----------------------------------------------------------------------------------------

// padded [n, stride] = mask [n, seq], and zeros behind it.
__global__ void pad_mask_kernel(const std::uint8_t* mask, std::int64_t n, std::int64_t seq,
                                std::int64_t stride, std::uint8_t* padded) {
  for (std::int64_t i = cuda::global_thread(); i < n * stride; i += cuda::global_threads()) {
    const std::int64_t sample = i / stride, key = i % stride;
    padded[i] = key < seq && mask[sample * seq + key] != 0 ? 1 : 0;
  }
}

// Where the matrices of an operand of the products are: bytes from one sample, head, and pair of the chunk to
// the next.
struct Operand {
  void* first = nullptr;
  std::int64_t per_sample = 0, per_head = 0, per_pair = 0;
};
constexpr int most_operands = 11;
struct Operands {
  Operand at[most_operands];
};

// pointers [operands, chunk], of the `count` pairs from first_pair on.
__global__ void pointers_kernel(Operands operands, std::int64_t first_pair, std::int64_t count,
                                std::int64_t heads, std::int64_t chunk, void** pointers) {
  const Operand operand = operands.at[blockIdx.y];
  for (std::int64_t i = cuda::global_thread(); i < count; i += cuda::global_threads()) {
    const std::int64_t sample = (first_pair + i) / heads, head = (first_pair + i) % heads;
    pointers[blockIdx.y * chunk + i] = static_cast<std::byte*>(operand.first) + sample * operand.per_sample +
                                       head * operand.per_head + i * operand.per_pair;
  }
}

// --- One call ---------------------------------------------------------------------------------------------

// Parts of the scratch memory, each 256-byte aligned: all are asked for, then there.
class Parts {
 public:
  std::size_t add(std::int64_t count, std::size_t size) {
    const std::size_t at = bytes_;
    bytes_ += (static_cast<std::size_t>(count) * size + 255) / 256 * 256;
    return at;
  }
  void take(CudaBackend& backend) { memory_ = backend.scratch(bytes_); }
  template <class T>
  T* at(std::size_t part) const {
    return reinterpret_cast<T*>(memory_ + part);
  }

 private:
  std::size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
};

// What both passes do around their products, in T: chunks of pairs, and the working memory of a chunk.
template <class T>
class Pass {
 public:
  static constexpr bool in_place = std::is_same_v<T, float>;

  // `buffers` of float32 scores, and as many in T, which for float32 are the same memory.
  Pass(const char* name, CudaBackend& backend, const Sizes& s, int buffers, Parts& parts)
      : name_(name), backend_(backend), s_(s), parts_(parts) {
    constexpr std::int64_t most_pairs = 65535;
    const std::int64_t elements = s.seq * s.stride();
    const std::int64_t bytes = elements * buffers * (4 + (in_place ? 0 : std::int64_t{sizeof(T)}));
    const std::int64_t most = std::clamp<std::int64_t>(2 * backend.products().piece_bytes() / bytes, 1,
                                                       std::min(s.pairs(), most_pairs));
    // In equal chunks: a small one at the end would take as many launches as a whole one.
    chunk_ = cuda::ceil_div(s.pairs(), cuda::ceil_div(s.pairs(), most));
    mask_ = parts.add(s.n * s.stride(), 1);
    pointers_ = parts.add(most_operands * chunk_, sizeof(void*));
    for (int i = 0; i < buffers; ++i) {
      wide_[i] = parts.add(chunk_ * elements, sizeof(float));
      narrow_[i] = in_place ? wide_[i] : parts.add(chunk_ * elements, sizeof(T));
    }
  }

  // work(rows) for each chunk; multiply() is about its pairs then.
  template <class Work>
  void for_each_chunk(const std::uint8_t* key_mask, std::initializer_list<Operand> operands,
                      const Work& work) {
    constexpr int threads = cuda::elementwise_threads;
    cuda::launch(name_, pad_mask_kernel, cuda::grid_for(backend_, s_.n * s_.stride()), backend_.stream(),
                 key_mask, s_.n, s_.seq, s_.stride(), mask());
    Operands all;
    std::copy(operands.begin(), operands.end(), all.at);
    for (std::int64_t first = 0; first < s_.pairs(); first += chunk_) {
      pairs_ = std::min(chunk_, s_.pairs() - first);
      const dim3 blocks =
          cuda::extents(cuda::ceil_div(pairs_, threads), static_cast<std::int64_t>(operands.size()));
      cuda::launch(name_, pointers_kernel, {blocks, dim3(threads)}, backend_.stream(), all, first, pairs_,
                   s_.heads, chunk_, parts_.at<void*>(pointers_));
      work(rows::Rows{static_cast<std::uint32_t>(pairs_ * s_.seq), static_cast<std::uint32_t>(first),
                      static_cast<std::uint32_t>(s_.seq), static_cast<std::uint32_t>(s_.stride()),
                      static_cast<std::uint32_t>(s_.heads)});
    }
  }

  // Of the operands number a, b and c; p without its types and count.
  void multiply(cuda::BatchedProduct p, int a, int b, int c, DType out = DTypeOf<T>::value) const {
    void* const* const pointers = parts_.at<void*>(pointers_);
    p.in = DTypeOf<T>::value, p.out = out;
    p.count = pairs_;
    backend_.products().multiply_batched(p, pointers + a * chunk_, pointers + b * chunk_,
                                         pointers + c * chunk_);
  }

  // q, k or v, or their gradients.
  Operand part(const T* qkv, int which) const {
    return {const_cast<T*>(qkv) + which * s_.heads * s_.dim, s_.seq * s_.token() * element, s_.dim * element};
  }
  Operand context(const T* tensor) const {
    return {const_cast<T*>(tensor), s_.seq * s_.heads * s_.dim * element, s_.dim * element};
  }
  Operand wide(int buffer) const { return {scores(buffer), 0, 0, s_.seq * s_.stride() * 4}; }
  Operand narrow(int buffer) const { return {rounded(buffer), 0, 0, s_.seq * s_.stride() * element}; }

  float* scores(int buffer) const { return parts_.at<float>(wide_[buffer]); }
  T* rounded(int buffer) const { return parts_.at<T>(narrow_[buffer]); }
  std::uint8_t* mask() const { return parts_.at<std::uint8_t>(mask_); }

 private:
  static constexpr std::int64_t element = sizeof(T);

  const char* name_;
  CudaBackend& backend_;
  Sizes s_;
  Parts& parts_;
  std::int64_t chunk_ = 0, pairs_ = 0;
  std::size_t mask_ = 0, pointers_ = 0, wide_[2]{}, narrow_[2]{};
};

// The products of a pair, by the matrices that they take: row-major [seq, dim] of qkv or context, and
// [seq, seq] of scores.
struct Products {
  std::int64_t seq, dim, token, output, stride;
  explicit Products(const Sizes& s)
      : seq(s.seq), dim(s.dim), token(s.token()), output(s.heads * s.dim), stride(s.stride()) {}

  // [seq, seq] = factor * a b^T, where the rows of a and b are row_a and token apart.
  cuda::BatchedProduct scores(std::int64_t row_a, float factor) const {
    return {.transpose_b = true,
            .m = seq,
            .n = seq,
            .k = dim,
            .row_a = row_a,
            .row_b = token,
            .row_c = stride,
            .factor = factor};
  }
  // [seq, dim] = factor * op(scores) b.
  cuda::BatchedProduct weighted(bool transposed, std::int64_t row_b, std::int64_t row_c, float factor) const {
    return {.transpose_a = transposed,
            .m = seq,
            .n = dim,
            .k = seq,
            .row_a = stride,
            .row_b = row_b,
            .row_c = row_c,
            .factor = factor};
  }
};

template <class T>
void forward(const char* name, CudaBackend& backend, Pass<T>& pass, const Sizes& s, const cuda::Dropout& drop,
             const std::uint8_t* key_mask, const T* qkv, T* context, float* log_sum_exp) {
  enum { q, k, v, scores, probabilities, sums };
  const Products products(s);
  pass.for_each_chunk(key_mask,
                      {pass.part(qkv, 0), pass.part(qkv, 1), pass.part(qkv, 2), pass.wide(0), pass.narrow(0),
                       pass.context(context)},
                      [&](const rows::Rows& of_chunk) {
                        pass.multiply(products.scores(products.token, s.scale()), q, k, scores, DType::f32);
                        rows::softmax(name, backend.stream(), of_chunk, drop, pass.scores(0), pass.mask(),
                                      pass.rounded(0), log_sum_exp);
                        pass.multiply(products.weighted(false, products.token, products.output, 1),
                                      probabilities, v, sums);
                      });
}

template <class T>
void backward(const char* name, CudaBackend& backend, Pass<T>& pass, const Sizes& s,
              const cuda::Dropout& drop, const std::uint8_t* key_mask, const T* qkv, const float* log_sum_exp,
              const T* dcontext, T* dqkv) {
  enum { q, k, v, dsums, scores, dkept, kept, dscores, dq, dk, dv };
  const Products products(s);
  pass.for_each_chunk(
      key_mask,
      {pass.part(qkv, 0), pass.part(qkv, 1), pass.part(qkv, 2), pass.context(dcontext), pass.wide(0),
       pass.wide(1), pass.narrow(0), pass.narrow(1), pass.part(dqkv, 0), pass.part(dqkv, 1),
       pass.part(dqkv, 2)},
      [&](const rows::Rows& of_chunk) {
        pass.multiply(products.scores(products.token, s.scale()), q, k, scores, DType::f32);
        pass.multiply(products.scores(products.output, 1), dsums, v, dkept, DType::f32);
        rows::softmax_backward(name, backend.stream(), of_chunk, drop, pass.scores(0), pass.scores(1),
                               pass.mask(), log_sum_exp, pass.rounded(0), pass.rounded(1));
        pass.multiply(products.weighted(true, products.output, products.token, 1), kept, dsums, dv);
        pass.multiply(products.weighted(false, products.token, products.token, s.scale()), dscores, k, dq);
        pass.multiply(products.weighted(true, products.token, products.token, s.scale()), dscores, q, dk);
      });
}

// Whether the device multiplies the type, on matrices that begin where cuBLAS wants them. Otherwise a call
// works on float32 copies, in which the same products are exact, too.
bool multiplies(const CudaBackend& backend, const Sizes& s, std::initializer_list<ConstView> views) {
  const DType type = views.begin()->dtype;
  if (type == DType::f32) return true;
  return cuda::multiplies(backend.capability(), type) && s.dim % 8 == 0 &&
         std::all_of(views.begin(), views.end(),
                     [](const ConstView& v) { return cuda::aligned(v.data, 16); });
}

View part_view(const Parts& parts, std::size_t part, const Shape& shape) {
  return view_of(parts.at<float>(part), shape);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::attention_forward(const Attention& attention, ConstView qkv, ConstView key_mask,
                                    View context, View log_sum_exp) {
  constexpr auto name = "attention_forward";
  const Sizes s{check_attention_forward(name, attention, qkv, key_mask, context, log_sum_exp)};
  const cuda::Dropout drop = cuda::dropout_of(name, attention.dropout);
  if (qkv.elements() == 0) return;
  const auto* const mask = key_mask.as<std::uint8_t>();
  auto* const sums = log_sum_exp.as<float>();
  cuda::with_element_type(name, "qkv", qkv.dtype, [&](auto type) {
    using T = decltype(type);
    Parts parts;
    if (multiplies(*this, s, {qkv, context})) {
      Pass<T> pass(name, *this, s, 1, parts);
      parts.take(*this);
      return forward<T>(name, *this, pass, s, drop, mask, qkv.as<T>(), context.as<T>(), sums);
    }
    Pass<float> pass(name, *this, s, 1, parts);
    const std::size_t qkv_part = parts.add(qkv.elements(), sizeof(float)),
                      context_part = parts.add(context.elements(), sizeof(float));
    parts.take(*this);
    const View wide_qkv = part_view(parts, qkv_part, qkv.shape),
               wide_context = part_view(parts, context_part, context.shape);
    cast(qkv, wide_qkv);
    forward<float>(name, *this, pass, s, drop, mask, wide_qkv.as<float>(), wide_context.as<float>(), sums);
    cast(wide_context, context);
  });
}

void CudaBackend::attention_backward(const Attention& attention, ConstView qkv, ConstView key_mask,
                                     ConstView context, ConstView log_sum_exp, ConstView dcontext,
                                     View dqkv) {
  constexpr auto name = "attention_backward";
  const Sizes s{
      check_attention_backward(name, attention, qkv, key_mask, context, log_sum_exp, dcontext, dqkv)};
  const cuda::Dropout drop = cuda::dropout_of(name, attention.dropout);
  if (qkv.elements() == 0) return;
  const auto* const mask = key_mask.as<std::uint8_t>();
  const auto* const sums = log_sum_exp.as<float>();
  cuda::with_element_type(name, "qkv", qkv.dtype, [&](auto type) {
    using T = decltype(type);
    Parts parts;
    if (multiplies(*this, s, {qkv, dcontext, dqkv})) {
      Pass<T> pass(name, *this, s, 2, parts);
      parts.take(*this);
      return backward<T>(name, *this, pass, s, drop, mask, qkv.as<T>(), sums, dcontext.as<T>(), dqkv.as<T>());
    }
    Pass<float> pass(name, *this, s, 2, parts);
    const std::size_t qkv_part = parts.add(qkv.elements(), sizeof(float)),
                      dcontext_part = parts.add(dcontext.elements(), sizeof(float)),
                      dqkv_part = parts.add(dqkv.elements(), sizeof(float));
    parts.take(*this);
    const View wide_qkv = part_view(parts, qkv_part, qkv.shape),
               wide_dcontext = part_view(parts, dcontext_part, dcontext.shape),
               wide_dqkv = part_view(parts, dqkv_part, dqkv.shape);
    cast(qkv, wide_qkv);
    cast(dcontext, wide_dcontext);
    backward<float>(name, *this, pass, s, drop, mask, wide_qkv.as<float>(), sums, wide_dcontext.as<float>(),
                    wide_dqkv.as<float>());
    cast(wide_dqkv, dqkv);
  });
}

}  // namespace motley
