add_executable(solver_bench solver_bench.cc)
target_include_directories(solver_bench PRIVATE ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(solver_bench PRIVATE motley_balance motley_flags)
