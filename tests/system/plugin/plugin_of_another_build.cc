extern "C" const char* motley_cuda_plugin_interface() {
  return "another";
}

extern "C" const void* motley_cuda_plugin_support() {
  return nullptr;
}
