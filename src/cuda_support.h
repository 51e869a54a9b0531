// Gives a program its GPUs: the CUDA backend and NCCL, for train/gpus.h.
#pragma once

namespace motley {

// Before anything else of Motley is used.
void use_cuda();

}  // namespace motley
