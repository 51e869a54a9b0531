// Races on the simulated device: two accesses to a byte of which one is a write, by threads of a grid or by pieces
// of work on streams that nothing puts in order. In one order of execution everything is seen that does not depend
// on the order, as ThreadSanitizer does it: by what happens before what, not by results.
//
// Kernels, and the stand-ins of cuBLAS and cuDNN, are compiled with -fsanitize=thread, which makes the compiler call a
// function before each access; races.cc has these functions instead of the sanitizer's library, which knows nothing
// of blocks and streams. In a program without such objects nothing here does anything.
//
// What puts accesses in order:
//
//  * within a block, __syncthreads; within a warp also __syncwarp, for the lanes of its mask. Not shuffles and
//    votes: the CUDA C++ Programming Guide gives them no order of memory.
//  * nothing between blocks of a grid;
//  * between pieces of work, the stream that both are on, an event that one stream records and the other waits for, and
//    the host where it waits for the first before it starts the second.
//
// A byte keeps its last write and two reads, of different blocks or warps where there are such. So a race is missed
// only where a third lane of one warp has read and __syncwarp left it out, and where the host's threads hand work to
// each other without a wait: they count as one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace motley::sim::races {

// Whether objects that are looked at are part of this program.
bool on();

// How far each stream, by its index, had come when something happened.
using Clocks = std::vector<std::uint32_t>;
void join(Clocks& into, const Clocks& from);
// Of the host: all that it has waited for.
Clocks& host();

// A piece of work begins on stream `index`, after `seen`, its own place included.
void begin_work(const std::string& name, std::size_t index, const Clocks& seen);
// And ends. Throws Violation when it raced.
void end_work();
// Or ends by an exception of its own.
void abandon_work();

// The thread that runs now. `lanes`: what it has seen of each lane of its warp by __syncwarp.
struct Thread {
  std::uint32_t index = 0;     // in the block
  std::uint32_t barriers = 0;  // that the block has passed
  const std::uint32_t* lanes = nullptr;
};
void begin_block();
void run_thread(const Thread& thread);

// Device memory: where it begins, and a part of it that is allocated anew.
void set_memory(const void* begin);
void forget(const void* pointer, std::size_t bytes);
// Shared memory of the block that runs.
void add_shared(const void* begin, std::size_t bytes);

// An access by what no compiler sees, such as a copy.
void range(const void* pointer, std::size_t bytes, bool write);

}  // namespace motley::sim::races
