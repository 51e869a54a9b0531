// The cases of gpu_kernel_bench, by kind of operation.
#pragma once

#include "bench.h"

namespace motley::bench {

// A case for one type of activations; those of float32 alone are called once.
struct Case {
  const char* name;  // of the operation
  void (*run)(Bench& bench, DType type);
  bool all_types = false;
};

std::vector<Case> elementwise_cases();  // kernel_bench_elementwise.cc
std::vector<Case> image_cases();        // kernel_bench_images.cc
std::vector<Case> channel_cases();      // kernel_bench_channels.cc
std::vector<Case> token_cases();        // kernel_bench_tokens.cc
std::vector<Case> product_cases();      // kernel_bench_products.cc
std::vector<Case> arena_cases();        // kernel_bench_arenas.cc
std::vector<Case> batch_norm_cases();   // kernel_bench_batch_norm.cc

// Tokens as BERT-large sees them: micro-batches of 128 tokens a sequence, 32768 in all.
struct TokenSizes {
  explicit TokenSizes(const Bench& bench)
      : n(bench.pick(256, 32, 3)),
        seq(bench.pick(128, 128, 8)),
        tokens(n * seq),
        hidden(bench.pick(1024, 1024, 24)),
        inner(4 * hidden),
        heads(bench.pick(16, 16, 3)),
        words(bench.pick(30522, 30522, 50)),
        masked(tokens * 5 / 32) {}

  std::int64_t n, seq, tokens, hidden, inner, heads, words, masked;
};

// Parameters of BERT-large with both heads.
inline std::int64_t arena_elements(const Bench& bench) {
  return bench.pick(336'226'108, 16'777'259, 3001);
}

}  // namespace motley::bench
