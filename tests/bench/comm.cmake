# mpirun -n RANKS comm_bench
add_executable(comm_bench comm_bench.cc)
target_link_libraries(comm_bench PRIVATE motley_comm motley_flags)
