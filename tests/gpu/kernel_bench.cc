// gpu_kernel_bench [--device cuda|cpu] [--size full|quick|tiny] [--only TEXT] [--list-devices]: every operation of
// kernels/backend.h that a training step spends time in, at the sizes of BERT-large (for those of images, of the mnist
// network and of CIFAR's), one line of JSON each:
//
//   us          of one call on the device, the median over timings of many calls each; calls take turns in sets of
//               tensors that are together larger than any cache
//   spread      (slowest - fastest timing) / median
//   gb_per_s    the bytes that the operation must move at least (each input read once, each output written once) over
//               that time
//   tflops      multiplications and additions of its definition over that time
//   bound       what holds it back at best: "copy", its bytes over the bandwidth of the device's own copy, or
//               "matmul", its flops over the rate of a large square product of the same type, whichever takes longer;
//               both are measured in the same run, and are the first lines
//   of_bound    the time at that bound over the time taken: 1 is the most that can be hoped for
//   error       ||result - expected|| / ||expected||, expected from the CPU backend in float32 on the same inputs,
//               for rows at both ends of the tensors
//   correct     the error is that of the type
//
// The exit code is 1 when a result was not correct.
#include "kernel_bench.h"

#include <fmt/format.h>

namespace {

using namespace motley;         // NOLINT: a program of one file
using namespace motley::bench;  // NOLINT

void run_case(Bench& bench, const Case& c, DType type) {
  try {
    c.run(bench, type);
  } catch (const OutOfMemory&) {
    // Cards of a few gigabytes hold no arenas of BERT-large.
    print({{"bench", "kernel"}, {"op", c.name}, {"type", name_of(type)}, {"skipped", "out of memory"}});
  }
  bench.backend().release_scratch();
}

void print_ceilings(Bench& bench) {
  Record record{{"bench", "ceilings"},
                {"device", bench.backend().device().name},
                {"copy_gb_per_s", bench.ceilings().copy_bytes_per_s() / 1e9}};
  for (const DType type : bench.types())
    record["matmul_tflops"][name_of(type)] = bench.ceilings().matmul_flop_per_s(type) / 1e12;
  print(record);
}

int run(int argc, char** argv) {
  const Settings settings = parse_settings(argc, argv);
  if (settings.help) {
    fmt::print(
        "gpu_kernel_bench [--device cuda|cpu] [--size full|quick|tiny] [--only TEXT] [--list-devices]\n"
        "Times the operations of a training step; a line of JSON each (docs/gpu.md).\n");
    return 0;
  }
  if (settings.list_devices) {
    list_devices();
    return 0;
  }
  const std::unique_ptr<Backend> backend = open_device(settings.device);
  Bench bench(*backend, settings);
  print_ceilings(bench);
  for (const auto& cases :
       {elementwise_cases, token_cases, product_cases, image_cases, channel_cases, arena_cases}) {
    for (const Case& c : cases()) {
      if (!bench.wants(c.name)) continue;
      for (const DType type : c.all_types ? bench.types() : std::vector<DType>{DType::f32})
        run_case(bench, c, type);
    }
  }
  return bench.wrong() > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_main("gpu_kernel_bench", [&] { return run(argc, argv); });
}
