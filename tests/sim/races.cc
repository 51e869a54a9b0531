#include "races.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <new>
#include <utility>

#include "simt.h"

namespace motley::sim::races {
namespace {

constexpr std::size_t most_memory = std::size_t{64} << 30;
constexpr std::uint32_t warp_size = 32, thread_bits = 10;

// An access. Blocks are numbered through, from 1; a piece of work that is no grid counts as one.
struct Record {
  std::uint32_t block = 0;  // 0: none
  std::uint32_t thread_and_barriers = 0;
  std::uint32_t lane_clock = 0;
  std::uint32_t place = 0;  // in the program, from where its code is loaded

  std::uint32_t thread() const { return thread_and_barriers & ((1u << thread_bits) - 1); }
  std::uint32_t barriers() const { return thread_and_barriers >> thread_bits; }
  bool same_time(const Record& other) const {
    return block == other.block && thread_and_barriers == other.thread_and_barriers &&
           lane_clock == other.lane_clock;
  }
};

// What a byte keeps.
struct Cell {
  Record write;
  std::array<Record, 2> reads;
};

struct Work {
  std::string name;
  std::uint32_t first_block = 0;
  std::size_t stream = 0;
  std::uint32_t clock = 0;
};

struct SharedMemory {
  std::uintptr_t begin = 0, end = 0;
  Cell* cells = nullptr;
};

struct Detector {
  bool on = false;
  std::uintptr_t code = 0;  // where the program is loaded
  std::string program;
  Clocks host;

  bool running = false;
  Record now;                            // of the thread that runs, but for the place
  const std::uint32_t* lanes = nullptr;  // null: of no kernel
  Clocks seen;
  std::uint32_t settled = 0;  // every block up to this one comes before what runs
  std::vector<Work> works;
  std::vector<std::vector<std::uint32_t>> first_blocks;  // by stream, by clock

  std::uintptr_t memory = 0;
  Cell* cells = nullptr;
  std::vector<SharedMemory> shared;  // of the block that runs
  std::map<std::uintptr_t, std::vector<Cell>> static_cells;

  std::string found;
};

Detector& detector() {
  static auto* const one = new Detector;
  return *one;
}

const Work& work_of(std::uint32_t block) {
  const auto& works = detector().works;
  const auto after = std::upper_bound(works.begin(), works.end(), block,
                                      [](std::uint32_t b, const Work& work) { return b < work.first_block; });
  return *std::prev(after);
}

// Whether `before`, which was made before now, is in order with what runs now.
bool in_order(const Record& before) {
  const Detector& d = detector();
  if (before.block <= d.settled) return true;
  if (before.block == d.now.block) {
    if (before.thread() == d.now.thread() || before.barriers() < d.now.barriers()) return true;
    return before.thread() / warp_size == d.now.thread() / warp_size &&
           before.lane_clock <= d.lanes[before.thread() % warp_size];
  }
  if (before.block >= d.works.back().first_block) return false;  // another block of the grid
  const Work& work = work_of(before.block);
  return work.stream < d.seen.size() && work.clock <= d.seen[work.stream];
}

std::string line_of(std::uint32_t place) {
  const Detector& d = detector();
  char command[4200];
  // The call lies before the address that it returns to.
  std::snprintf(command, sizeof(command), "addr2line -e '%s' 0x%x 2>/dev/null", d.program.c_str(), place - 1);
  std::string line;
  if (std::FILE* const output = ::popen(command, "r")) {
    std::array<char, 512> text{};
    if (std::fgets(text.data(), static_cast<int>(text.size()), output) != nullptr) line = text.data();
    ::pclose(output);
  }
  line = line.substr(0, line.find_first_of(" \n"));
  return line.empty() || line[0] == '?' ? "code at " + std::to_string(place)
                                        : line.substr(line.rfind('/') + 1);
}

void report(const Record& before, bool before_writes, std::uint32_t place, bool writes,
            std::uintptr_t address, bool in_shared) {
  Detector& d = detector();
  if (!d.found.empty()) return;
  const Work& theirs = work_of(before.block);
  const Work& mine = d.works.back();
  const auto verb = [](bool write) { return write ? "writes" : "reads"; };
  d.found = "a race in " + std::string(in_shared ? "shared" : "global") + " memory at byte " +
            std::to_string(address - (in_shared ? 0 : d.memory)) + ": " + mine.name + ", thread " +
            std::to_string(d.now.thread()) + ", " + verb(writes) + " at " + line_of(place) + " what ";
  if (before.block == d.now.block) {
    d.found += "thread " + std::to_string(before.thread()) + " of the same block ";
  } else if (&theirs == &mine) {
    d.found += "thread " + std::to_string(before.thread()) + " of another block ";
  } else {
    d.found += theirs.name + ", which no event or stream puts before it, ";
  }
  d.found += std::string(verb(before_writes)) + " at " + line_of(before.place);
}

void note_read(Cell& cell, const Record& me) {
  auto& reads = cell.reads;
  for (Record& read : reads) {
    if (read.block == 0 || (read.block == me.block && read.thread() == me.thread())) {
      read = me;
      return;
    }
  }
  for (Record& read : reads) {
    if (in_order(read)) {
      read = me;
      return;
    }
  }
  if (reads[0].block != reads[1].block) return;
  const std::uint32_t warp = reads[0].thread() / warp_size;
  const bool one_warp = reads[1].thread() / warp_size == warp;
  if (me.block != reads[0].block || (one_warp && me.thread() / warp_size != warp)) reads[1] = me;
}

void access(Cell* cells, std::uintptr_t address, std::size_t bytes, bool write, std::uint32_t place,
            bool in_shared) {
  const Detector& d = detector();
  Record me = d.now;
  me.place = place;
  for (Cell* cell = cells; cell != cells + bytes; ++cell) {
    // What other blocks have left in shared memory belongs to nobody.
    if (in_shared && cell->write.block != me.block) cell->write = {};
    if (in_shared)
      for (Record& read : cell->reads)
        if (read.block != me.block) read = {};
    const std::uintptr_t at = address + static_cast<std::size_t>(cell - cells);
    if (!write) {
      if (cell->reads[0].same_time(me)) continue;
      if (cell->write.block != 0 && !in_order(cell->write))
        report(cell->write, true, place, false, at, in_shared);
      note_read(*cell, me);
      continue;
    }
    if (cell->write.same_time(me) && cell->reads[0].block == 0 && cell->reads[1].block == 0) continue;
    if (cell->write.block != 0 && !in_order(cell->write))
      report(cell->write, true, place, true, at, in_shared);
    for (Record& read : cell->reads) {
      if (read.block != 0 && !in_order(read)) report(read, false, place, true, at, in_shared);
      read = {};
    }
    cell->write = me;
  }
}

void access(const void* pointer, std::size_t bytes, bool write, const void* returns_to) {
  Detector& d = detector();
  if (!d.running) return;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const auto place = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(returns_to) - d.code);
  if (address - d.memory < most_memory) {
    access(d.cells + (address - d.memory), address, bytes, write, place, false);
    return;
  }
  for (const SharedMemory& shared : d.shared) {
    if (address - shared.begin < shared.end - shared.begin) {
      access(shared.cells + (address - shared.begin), address, std::min(bytes, shared.end - address), write,
             place, true);
      return;
    }
  }
}

// All that comes before the first block, on any stream, that what runs has not seen.
std::uint32_t settled_before(const Clocks& seen) {
  std::uint32_t settled = std::numeric_limits<std::uint32_t>::max();
  const auto& all = detector().first_blocks;
  for (std::size_t stream = 0; stream < all.size(); ++stream) {
    const std::size_t next = stream < seen.size() ? seen[stream] + 1 : 1;
    // The clock counts from 1.
    if (next - 1 < all[stream].size()) settled = std::min(settled, all[stream][next - 1] - 1);
  }
  return settled;
}

}  // namespace

bool on() {
  return detector().on;
}

void join(Clocks& into, const Clocks& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

Clocks& host() {
  return detector().host;
}

void begin_work(const std::string& name, std::size_t index, const Clocks& seen) {
  Detector& d = detector();
  if (!d.on) return;
  d.running = true;
  d.seen = seen;
  ++block_number;
  const auto first = static_cast<std::uint32_t>(block_number);
  d.settled = std::min(settled_before(seen), first - 1);
  d.works.push_back({name, first, index, seen[index]});
  if (d.first_blocks.size() <= index) d.first_blocks.resize(index + 1);
  d.first_blocks[index].push_back(first);
  d.now = {};
  d.now.block = first;
  d.lanes = nullptr;
  d.shared.clear();
}

void abandon_work() {
  Detector& d = detector();
  d.running = false;
  d.found.clear();
}

void end_work() {
  Detector& d = detector();
  d.running = false;
  if (d.found.empty()) return;
  const std::string found = std::exchange(d.found, {});
  throw Violation(found);
}

void begin_block() {
  Detector& d = detector();
  d.now.block = static_cast<std::uint32_t>(block_number);
  d.shared.clear();
}

void run_thread(const Thread& thread) {
  Detector& d = detector();
  d.now.thread_and_barriers = thread.barriers << thread_bits | thread.index;
  d.now.lane_clock = thread.lanes[thread.index % warp_size];
  d.lanes = thread.lanes;
}

void set_memory(const void* begin) {
  Detector& d = detector();
  if (!d.on) return;
  void* const cells = ::mmap(nullptr, most_memory * sizeof(Cell), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (cells == MAP_FAILED) throw std::bad_alloc();
  d.cells = static_cast<Cell*>(cells);
  d.memory = reinterpret_cast<std::uintptr_t>(begin);
}

void forget(const void* pointer, std::size_t bytes) {
  const Detector& d = detector();
  if (!d.on) return;
  const std::size_t first = reinterpret_cast<std::uintptr_t>(pointer) - d.memory;
  if (first + bytes > most_memory) throw Violation("more device memory than races are looked for in");
  // Whole pages are given back, which leaves zeros.
  constexpr std::uintptr_t page = 4096;
  const auto begin = reinterpret_cast<std::uintptr_t>(d.cells + first), end = begin + bytes * sizeof(Cell);
  const std::uintptr_t pages_begin = std::min((begin + page - 1) / page * page, end),
                       pages_end = std::max(end / page * page, pages_begin);
  std::memset(reinterpret_cast<void*>(begin), 0, pages_begin - begin);
  ::madvise(reinterpret_cast<void*>(pages_begin), pages_end - pages_begin, MADV_DONTNEED);
  std::memset(reinterpret_cast<void*>(pages_end), 0, end - pages_end);
}

void add_shared(const void* begin, std::size_t bytes) {
  Detector& d = detector();
  if (!d.on) return;
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  std::vector<Cell>& cells = d.static_cells[address];
  if (cells.size() < bytes) cells.resize(bytes);
  d.shared.push_back({address, address + bytes, cells.data()});
}

void range(const void* pointer, std::size_t bytes, bool write) {
  access(pointer, bytes, write, __builtin_return_address(0));
}

}  // namespace motley::sim::races

// --- What the compiler calls, under names that it chooses ----------------------------------------------------------

#if !defined(__SANITIZE_THREAD__)
#define MOTLEY_ACCESS(name, bytes, write)                                           \
  void name(void* pointer) {                                                        \
    motley::sim::races::access(pointer, bytes, write, __builtin_return_address(0)); \
  }
#define MOTLEY_ACCESSES(bytes)                              \
  MOTLEY_ACCESS(__tsan_read##bytes, bytes, false)           \
  MOTLEY_ACCESS(__tsan_write##bytes, bytes, true)           \
  MOTLEY_ACCESS(__tsan_unaligned_read##bytes, bytes, false) \
  MOTLEY_ACCESS(__tsan_unaligned_write##bytes, bytes, true)

extern "C" {

MOTLEY_ACCESSES(1)
MOTLEY_ACCESSES(2)
MOTLEY_ACCESSES(4)
MOTLEY_ACCESSES(8)
MOTLEY_ACCESSES(16)

void __tsan_read_range(void* pointer, std::size_t bytes) {
  motley::sim::races::access(pointer, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void* pointer, std::size_t bytes) {
  motley::sim::races::access(pointer, bytes, true, __builtin_return_address(0));
}
// Objects of the host, and calls, are none of our business.
void __tsan_vptr_update(void**, void*) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
// That of a static variable of the host which is initialised when it is first used.
unsigned char __tsan_atomic8_load(const volatile void* pointer, int) {
  return __atomic_load_n(static_cast<const volatile unsigned char*>(pointer), __ATOMIC_SEQ_CST);
}

// Each object that is looked at calls it when the program starts.
void __tsan_init() {
  auto& d = motley::sim::races::detector();
  if (d.on) return;
  d.on = true;
  Dl_info info;
  if (::dladdr(reinterpret_cast<void*>(&__tsan_init), &info) == 0) return;
  d.code = reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  d.program = std::filesystem::read_symlink("/proc/self/exe").string();
}

}  // extern "C"
#endif
