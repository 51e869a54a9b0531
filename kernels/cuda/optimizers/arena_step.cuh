// One pass over the arenas of an optimizer: a rule is called with each element's gradient, parameter and
// states. The passes are bound by memory, so every array is read once and written once, 16 bytes at a time.
#pragma once

#include "kernels/cuda/elementwise.cuh"

namespace motley::cuda {

// What a step reads and changes: x[0] are the parameters, the others the optimizer's states.
template <int arrays>
struct Arena {
  std::int64_t elements;
  const float* grad;
  const float* scale;  // the gradient's factor, known on the device alone
  float* x[arrays];
};

template <int width, int arrays, class Rule>
__device__ inline void step_elements(const Rule& rule, const Arena<arrays>& arena, float factor,
                                     std::int64_t first) {
  const Pack<float, width> grad = load<width>(arena.grad + first);
  Pack<float, width> x[arrays];
#pragma unroll
  for (int a = 0; a < arrays; ++a) x[a] = load<width>(arena.x[a] + first);
#pragma unroll
  for (int i = 0; i < width; ++i) {
    float at[arrays];
#pragma unroll
    for (int a = 0; a < arrays; ++a) at[a] = x[a].at[i];
    rule(grad.at[i] * factor, at);
#pragma unroll
    for (int a = 0; a < arrays; ++a) x[a].at[i] = at[a];
  }
#pragma unroll
  for (int a = 0; a < arrays; ++a) store<width>(arena.x[a] + first, x[a]);
}

template <int width, int arrays, class Rule>
__global__ void __launch_bounds__(elementwise_threads) arena_step_kernel(Rule rule, Arena<arrays> arena) {
  const float factor = *arena.scale;
  const std::int64_t packs = arena.elements / width;
  for (std::int64_t p = global_thread(); p < packs; p += global_threads())
    step_elements<width>(rule, arena, factor, p * width);
  for (std::int64_t i = packs * width + global_thread(); i < arena.elements; i += global_threads())
    step_elements<1>(rule, arena, factor, i);
}

// `rule` is an object with `__device__ void operator()(float gradient, float (&x)[1 + states]) const`.
template <class Rule, class... States>
void arena_step(const char* name, const CudaBackend& backend, const Rule& rule, ConstView grad,
                ConstView scale, View param, States... states) {
  constexpr int arrays = 1 + sizeof...(States), width = widest_pack<float>;
  const Arena<arrays> arena{param.elements(),
                            grad.as<float>(),
                            scale.as<float>(),
                            {param.as<float>(), states.template as<float>()...}};
  const bool whole = packs_fit<width>(grad.as<float>(), param.as<float>(), states.template as<float>()...);
  launch(name, whole ? arena_step_kernel<width, arrays, Rule> : arena_step_kernel<1, arrays, Rule>,
         grid_for(backend, ceil_div(arena.elements, whole ? width : 1)), backend.stream(), rule, arena);
}

}  // namespace motley::cuda
