#include "train/task.h"

#include <new>

namespace motley::train {

void Task::reserve(Backend& backend, std::int64_t micro_batch, bool training) {
  MOTLEY_CHECK(micro_batch >= 1);
  release_memory();
  reserved_ = 0;
  reserved_bytes_ = 0;
  const std::size_t before = backend.allocated_bytes();
  try {
    take_memory(backend, micro_batch, training);
  } catch (const std::bad_alloc&) {
    release_memory();
    throw OutOfMemory(fmt::format("the host has no memory for micro-batches of {} samples", micro_batch));
  } catch (...) {
    release_memory();
    throw;
  }
  reserved_ = micro_batch;
  reserved_bytes_ = backend.allocated_bytes() - before;
}

void Task::allocate(Backend& backend, std::int64_t micro_batch, bool training) {
  allocate_parameters(backend, training);
  reserve(backend, micro_batch, training);
}

}  // namespace motley::train
