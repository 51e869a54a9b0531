#include "cuda_plugin.h"
#include "cuda_support.h"

namespace motley {

const char* motley_cuda_plugin_interface() {
  return cuda_plugin_interface;
}

const train::GpuSupport* motley_cuda_plugin_support() {
  return &cuda_support();
}

}  // namespace motley
