# mpirun -n 2 build/release/bin/reader_bench
add_executable(reader_bench reader_bench.cc)
target_link_libraries(reader_bench PRIVATE motley_io motley_comm motley_flags)
# python3 tests/bench/tokenizer.py build/release/bin/tokenizer_bench VOCAB TEXT
add_executable(tokenizer_bench tokenizer_bench.cc)
target_link_libraries(tokenizer_bench PRIVATE motley_io motley_flags)

# mpirun -n 2 build/release/bin/bert_reader_bench
add_executable(bert_reader_bench bert_reader_bench.cc)
target_link_libraries(bert_reader_bench PRIVATE motley_train motley_hdf5 motley_flags)

# build/release/bin/checkpoint_bench DIRECTORY
add_executable(checkpoint_bench checkpoint_bench.cc)
target_link_libraries(checkpoint_bench PRIVATE motley_checkpoint motley_flags)
