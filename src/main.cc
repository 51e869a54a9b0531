#include "cli/command.h"
#include "cuda_plugin.h"

// A program that was built on a newer machine would die by SIGILL on an older one that shares the file
// system: it shall say so instead.
#ifdef __x86_64__
#include <unistd.h>

#include <cstring>

#include "core/error.h"

// What follows runs where the rest of the program cannot, so it uses what every x86-64 processor has.
#define MOTLEY_ANY_PROCESSOR __attribute__((target("arch=x86-64")))

namespace {

// The first instruction set that the compiler was allowed to use (-march=native) and that this processor
// lacks; null when it has them all.
MOTLEY_ANY_PROCESSOR const char* missing_instructions() {
  __builtin_cpu_init();
#define MOTLEY_NEEDS(feature) \
  if (!__builtin_cpu_supports(feature)) return feature
#ifdef __SSE4_2__
  MOTLEY_NEEDS("sse4.2");
#endif
#ifdef __POPCNT__
  MOTLEY_NEEDS("popcnt");
#endif
#ifdef __AVX__
  MOTLEY_NEEDS("avx");
#endif
#ifdef __AVX2__
  MOTLEY_NEEDS("avx2");
#endif
#ifdef __FMA__
  MOTLEY_NEEDS("fma");
#endif
#ifdef __FMA4__
  MOTLEY_NEEDS("fma4");
#endif
#ifdef __XOP__
  MOTLEY_NEEDS("xop");
#endif
#ifdef __BMI__
  MOTLEY_NEEDS("bmi");
#endif
#ifdef __BMI2__
  MOTLEY_NEEDS("bmi2");
#endif
#ifdef __AVX512F__
  MOTLEY_NEEDS("avx512f");
#endif
#ifdef __AVX512CD__
  MOTLEY_NEEDS("avx512cd");
#endif
#ifdef __AVX512BW__
  MOTLEY_NEEDS("avx512bw");
#endif
#ifdef __AVX512DQ__
  MOTLEY_NEEDS("avx512dq");
#endif
#ifdef __AVX512VL__
  MOTLEY_NEEDS("avx512vl");
#endif
#ifdef __AVX512IFMA__
  MOTLEY_NEEDS("avx512ifma");
#endif
#ifdef __AVX512VBMI__
  MOTLEY_NEEDS("avx512vbmi");
#endif
#ifdef __AVX512VBMI2__
  MOTLEY_NEEDS("avx512vbmi2");
#endif
#ifdef __AVX512VNNI__
  MOTLEY_NEEDS("avx512vnni");
#endif
#ifdef __AVX512BITALG__
  MOTLEY_NEEDS("avx512bitalg");
#endif
#ifdef __AVX512VPOPCNTDQ__
  MOTLEY_NEEDS("avx512vpopcntdq");
#endif
#ifdef __AVX512BF16__
  MOTLEY_NEEDS("avx512bf16");
#endif
#ifdef __GFNI__
  MOTLEY_NEEDS("gfni");
#endif
#ifdef __VPCLMULQDQ__
  MOTLEY_NEEDS("vpclmulqdq");
#endif
#undef MOTLEY_NEEDS
  return nullptr;
}

MOTLEY_ANY_PROCESSOR void say(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

// 101 is the first that programs may use: before the constructors of all objects with static storage.
__attribute__((constructor(101))) MOTLEY_ANY_PROCESSOR void check_processor() {
  const char* missing = missing_instructions();
  if (missing == nullptr) return;
  say("motley: error: this program was built for a processor with ");
  say(missing);
  say(" instructions, which this one does not have; build it with -DMOTLEY_NATIVE=OFF or on the oldest of "
      "your "
      "machines\n");
  ::_exit(static_cast<int>(motley::ExitCode::device));
}

}  // namespace
#endif

int main(int argc, char** argv) {
  motley::train::set_gpu_support(motley::cuda_plugin);
  return motley::cli::main(argc, argv);
}
