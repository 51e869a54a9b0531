// Lets an allocation by operator new fail.
#pragma once

namespace motley::test {

// Allocations of the calling thread do not count and never fail.
void spare_this_thread();
// The `number`-th allocation from now on in all other threads, counted from 1, finds no memory.
void fail_allocation(int number);
// Whether it has come to that; ends the counting.
bool allocation_failed();

}  // namespace motley::test
