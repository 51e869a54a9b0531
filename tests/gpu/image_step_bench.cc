// gpu_image_step_bench [--device cuda|cpu] [--size full|quick|tiny]: training steps of image networks on one GPU with
// the program's own network, optimizer and update; it waits for the norm of the gradient and for the loss, as the trainer
// does. Reads lines and answers them as step_bench.h says; MODEL is a name of --arch, SIZE the pixels of a side, and a
// batch that fits has at most 256 images of 224 x 224 pixels, or 1024 smaller ones. tests/gpu/image_step.py drives it beside PyTorch.
//
//   ms             of one step, on the clock
//   plain_ms       on a GPU: the same without CUDA graphs, in turn
//   images_per_s   batch / time
//   tflops         flops / time; the flops of a step are 6 * multiply-adds of a forward pass (of convolutions and linear
//                  layers, models/layer.h) * batch: two for each, forward, for the gradient of the input and for that of
//                  the weights
//   mfu            tflops over the rate of a large square product of the same type, measured in this process
#include <string>

#include "bench/image_step.h"
#include "step_bench.h"

namespace {

using namespace motley;         // NOLINT: a program of one file
using namespace motley::bench;  // NOLINT

constexpr std::int64_t large_side = 224, most_large = 256, most_small = 1024;

class Program final : public StepBench<ImageStep> {
 public:
  using StepBench::StepBench;

 protected:
  Record time(const StepCase& wanted) override {
    const ImageArch& arch = find_image_arch(wanted.model);
    const DType type = type_of_precision(wanted.precision);
    const std::int64_t side = wanted.size, most = side < large_side ? most_small : most_large;
    const auto memory_of = [&](std::int64_t n) { return ImageStep::memory_bytes(arch, n, side, type); };
    const std::int64_t n =
        wanted.batch == "fit" ? fitting_batch(backend(), most, memory_of) : std::stoll(wanted.batch);
    const Timed timed =
        time_steps(wanted, n, [&] { return std::make_unique<ImageStep>(backend(), arch, n, side, type); });
    const double flop_per_s =
        6 * static_cast<double>(step().multiply_adds()) * static_cast<double>(n) / timed.seconds;
    Record record{{"bench", "image_step"},
                  {"model", wanted.model},
                  {"batch", n},
                  {"side", side},
                  {"precision", wanted.precision},
                  {"ms", 1e3 * timed.seconds},
                  {"images_per_s", static_cast<double>(n) / timed.seconds},
                  {"tflops", flop_per_s / 1e12},
                  {"mfu", flop_per_s / ceilings().matmul_flop_per_s(type)},
                  {"loss", timed.loss},
                  // Of a network that knows nothing yet: ln(classes).
                  {"correct", std::isfinite(timed.loss) &&
                                  timed.loss < 1.5 * std::log(static_cast<double>(arch.classes))},
                  {"parameters", step().parameters()},
                  {"memory_mib", backend().allocated_bytes() >> 20}};
    if (timed.plain_s > 0) record["plain_ms"] = 1e3 * timed.plain_s;
    return record;
  }

  Record check(const StepCase& wanted) override {
    const DType type = type_of_precision(wanted.precision);
    const ImageArch& arch = find_image_arch(wanted.model);
    const std::int64_t checked = wanted.size < large_side ? 8 : 2;
    const auto cpu = open_device("cpu");
    ImageStep ours(backend(), arch, checked, wanted.size, type),
        reference(*cpu, arch, checked, wanted.size, DType::f32);
    const double error = difference_of_two_steps(ours, reference, 1e-6);
    // The rate is small, and so are the changes that it makes: an untrained ResNet-50 amplifies rounding. On CPUs with and
    // without AVX-512 its norms differ by 5e-4 in float32, and from those of bfloat16 by 0.1.
    const double tolerance = type == DType::f32 ? 1e-3 : type == DType::f16 ? 2e-2 : 6e-2;
    return {{"bench", "image_check"}, {"model", wanted.model},
            {"side", wanted.size},    {"precision", wanted.precision},
            {"difference", error},    {"correct", error < tolerance}};  // NaN is not
  }
};

}  // namespace

int main(int argc, char** argv) {
  return run_step_bench<Program>("gpu_image_step_bench", "image networks", argc, argv);
}
