#include "failing_memory.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int> until_failure{0};  // 0: none is to fail
thread_local bool spared = false;

}  // namespace

namespace motley::test {

void spare_this_thread() {
  spared = true;
}

void fail_allocation(int number) {
  until_failure = number;
}

bool allocation_failed() {
  return until_failure.exchange(0) == 0;
}

}  // namespace motley::test

void* operator new(std::size_t bytes) {
  if (!spared && until_failure.load() > 0 && until_failure.fetch_sub(1) == 1) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
