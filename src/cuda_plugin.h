// CUDA for a program that does not link it. What calls the libraries of CUDA is a shared library of its own, the plugin:
// lib/motley/libmotley_cuda.so beside the folder of the program. It is loaded by ranks that may have a GPU, so that
// others start without those libraries and without the 200 MB that they take of each process.
#pragma once

#include "train/gpus.h"

namespace motley {

// A train::FindGpuSupport. Null where there is no NVIDIA driver, no plugin, or (with a warning) one that cannot be loaded.
const train::GpuSupport* cuda_plugin(bool insist);

// What the plugin defines, to be found by name. The interface is the hash of the headers that both sides were compiled
// with: a plugin of another build is refused.
constexpr const char* cuda_plugin_interface = MOTLEY_PLUGIN_INTERFACE;
extern "C" {
const char* motley_cuda_plugin_interface();
const train::GpuSupport* motley_cuda_plugin_support();
}

}  // namespace motley
