// The GPUs of a program that is built with CUDA: main() hands this to set_gpu_driver.
#pragma once

#include "kernels/gpus.h"

namespace motley::cuda {

const GpuDriver& gpu_driver();

}  // namespace motley::cuda
