add_executable(kernels_bench ${CMAKE_CURRENT_LIST_DIR}/kernels_bench.cc)
target_link_libraries(kernels_bench PRIVATE motley_kernels motley_dnnl OpenMP::OpenMP_CXX motley_flags)
add_executable(bert_step_bench ${CMAKE_CURRENT_LIST_DIR}/bert_step_bench.cc)
target_link_libraries(bert_step_bench PRIVATE motley_kernels motley_flags)
