// What CUDA adds to training (train/gpus.h): the CUDA backend and NCCL.
#pragma once

#include "train/gpus.h"

namespace motley {

const train::GpuSupport& cuda_support();

}  // namespace motley
