add_executable(train_step_bench train_step_bench.cc)
target_link_libraries(train_step_bench PRIVATE motley_train motley_flags)

# python3 tests/bench/bert_step.py build/release/bin/bert_step_bench
add_executable(bert_step_bench bert_step_bench.cc)
target_link_libraries(bert_step_bench PRIVATE motley_train motley_flags)

# python3 tests/bench/balance.py build/release/bin/balance_bench
add_executable(balance_bench balance_bench.cc)
target_link_libraries(balance_bench PRIVATE motley_train motley_flags)

# python3 tests/bench/image_step.py build/release/bin/image_step_bench
add_executable(image_step_bench image_step_bench.cc)
target_link_libraries(image_step_bench PRIVATE motley_train motley_dnnl OpenMP::OpenMP_CXX motley_flags)
