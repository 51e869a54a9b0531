// motley on simulated GPUs.
#include "cli/command.h"
#include "cuda_support.h"

int main(int argc, char** argv) {
  motley::train::set_gpu_support([](bool) { return &motley::cuda_support(); });
  return motley::cli::main(argc, argv);
}
