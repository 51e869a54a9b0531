// Whether the compiler may use vectors wide enough for own convolutions to beat oneDNN's. oneDNN finds out at run time
// what the processor has, and computes all of them where this program was built for any processor.
#pragma once

namespace motley {

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
constexpr bool has_wide_vectors = true;
#else
constexpr bool has_wide_vectors = false;
#endif

}  // namespace motley
