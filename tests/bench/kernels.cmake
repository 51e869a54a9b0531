add_executable(kernels_bench
  ${CMAKE_CURRENT_LIST_DIR}/kernels_bench.cc ${CMAKE_CURRENT_LIST_DIR}/kernels_bench_batch_norm.cc
  ${CMAKE_CURRENT_LIST_DIR}/kernels_bench_images.cc
  ${CMAKE_CURRENT_LIST_DIR}/kernels_bench_transformer.cc)
target_link_libraries(kernels_bench PRIVATE motley_kernels motley_dnnl OpenMP::OpenMP_CXX motley_flags)
