extern "C" int cuInit(unsigned int) {
  return 100;  // CUDA_ERROR_NO_DEVICE
}
