#include "simt.h"

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <algorithm>
#include <array>
#include <bit>
#include <exception>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#include "races.h"

namespace motley::sim {

const ThreadPlace* place = nullptr;
std::uint64_t block_number = 0;

namespace {

constexpr int warp_size = 32;
constexpr std::size_t stack_bytes = 256 << 10;

std::string at(const std::source_location& where) {
  const std::string file = where.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(where.line());
}

bool same(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

enum class State : std::uint8_t { fresh, ready, at_exchange, at_barrier, done };

struct Lane {
  ThreadPlace place;
  State state = State::fresh;
  int fiber = -1;  // in the pool
  // At an exchange.
  Exchange kind = Exchange::sync;
  unsigned mask = 0;
  std::uint64_t value = 0;
  int argument = 0;
  std::source_location where;
};

struct Stack {
  const void* bottom = nullptr;
  std::size_t size = 0;
};

// AddressSanitizer must know of each change of stacks, before and after. `saved` belongs to the stack that is
// left; null where it is left for good.
#if defined(__SANITIZE_ADDRESS__)
void leave_for(const Stack& stack, void** saved) {
  __sanitizer_start_switch_fiber(saved, stack.bottom, stack.size);
}
void arrive(void* saved, Stack* from = nullptr) {
  Stack other;
  __sanitizer_finish_switch_fiber(saved, &other.bottom, &other.size);
  if (from != nullptr) *from = other;
}
#else
void leave_for(const Stack&, void**) {}
void arrive(void*, Stack* = nullptr) {}
#endif

// A fiber that runs lanes, one after the other, each to its end.
struct Fiber {
  boost::context::fiber context;
  Stack stack;
  const std::function<void()>* body = nullptr;
  std::exception_ptr failure;

  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  // Unwinds it from where it waits.
  ~Fiber() {
    void* saved = nullptr;
    leave_for(stack, &saved);
    context = {};
    arrive(saved);
  }
  // Runs it until it goes back.
  void resume() {
    void* saved = nullptr;
    leave_for(stack, &saved);
    context = std::move(context).resume();
    arrive(saved);
  }
};

// Stacks with a page below them that nobody may touch, and a note of where they are.
struct NotedStack {
  boost::context::protected_fixedsize_stack stacks{stack_bytes};
  Stack* note;

  boost::context::stack_context allocate() {
    const auto made = stacks.allocate();
    *note = {static_cast<std::byte*>(made.sp) - made.size, made.size};
    return made;
  }
  void deallocate(boost::context::stack_context& made) noexcept { stacks.deallocate(made); }
};

class Executor {
 public:
  void run(const Grid& grid, const std::function<void()>& body, std::uint64_t order);
  void suspend(State state);
  Lane& lane() { return *running_; }
  bool in_kernel() const { return running_ != nullptr; }
  void* shared_memory() { return shared_.get(); }

 private:
  using Order = std::mt19937_64;
  void run_block(const Grid& grid, const uint3& block, const std::function<void()>& body, Order& order);
  void run_warp(const Grid& grid, std::size_t warp, const std::function<void()>& body, Order& order);
  void resume(Lane& lane, const std::function<void()>& body);
  bool complete_exchange(const Grid& grid, std::span<Lane> warp);
  void release_barrier(const Grid& grid);
  int free_fiber();
  void to_main();
  std::string name(const Grid& grid, const Lane& lane) const;
  void make_shared(std::size_t bytes);

  void see(std::size_t first, std::size_t lanes, unsigned mask);

  std::vector<Lane> lanes_;
  // For races: by thread, how far it knows each lane of its warp to have come, counted in calls of __syncwarp.
  std::vector<std::array<std::uint32_t, warp_size>> seen_;
  std::uint32_t barriers_ = 0;  // that the block has passed
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<int> free_;
  boost::context::fiber main_;
  Stack main_stack_;
  Lane* running_ = nullptr;
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> shared_;
};

Executor& executor() {
  static Executor one;
  return one;
}

int Executor::free_fiber() {
  if (free_.empty()) {
    auto fiber = std::make_unique<Fiber>();
    Fiber* const self = fiber.get();
    fiber->context = boost::context::fiber(
        std::allocator_arg, NotedStack{.note = &self->stack}, [this, self](boost::context::fiber&& main) {
          arrive(nullptr, &main_stack_);
          main_ = std::move(main);
          struct Leave {
            const Stack& to;
            ~Leave() { leave_for(to, nullptr); }
          };
          const Leave at_the_end{main_stack_};
          for (;;) {
            try {
              (*self->body)();
            } catch (const boost::context::detail::forced_unwind&) {
              throw;
            } catch (...) {
              self->failure = std::current_exception();
            }
            running_->state = State::done;
            to_main();
          }
          return std::move(main_);
        });
    fibers_.push_back(std::move(fiber));
    free_.push_back(static_cast<int>(fibers_.size()) - 1);
  }
  const int fiber = free_.back();
  free_.pop_back();
  return fiber;
}

// Out of a fiber, until it is resumed, or unwound, which comes as an exception.
void Executor::to_main() {
  void* saved = nullptr;
  leave_for(main_stack_, &saved);
  try {
    main_ = std::move(main_).resume();
  } catch (...) {
    arrive(saved, &main_stack_);
    throw;
  }
  arrive(saved, &main_stack_);
}

// Runs a lane until it ends or waits.
void Executor::resume(Lane& lane, const std::function<void()>& body) {
  if (lane.fiber < 0) lane.fiber = free_fiber();
  Fiber& fiber = *fibers_[static_cast<std::size_t>(lane.fiber)];
  fiber.body = &body;
  lane.state = State::ready;
  running_ = &lane;
  place = &lane.place;
  if (!seen_.empty()) {
    const auto index = static_cast<std::size_t>(&lane - lanes_.data());
    races::run_thread({static_cast<std::uint32_t>(index), barriers_, seen_[index].data()});
  }
  fiber.resume();
  running_ = nullptr;
  place = nullptr;
  if (lane.state == State::done) {
    free_.push_back(lane.fiber);
    lane.fiber = -1;
    if (fiber.failure) std::rethrow_exception(std::exchange(fiber.failure, nullptr));
  }
}

void Executor::suspend(State state) {
  Lane* const self = running_;
  self->state = state;
  to_main();
  running_ = self;
  place = &self->place;
}

std::string Executor::name(const Grid& grid, const Lane& lane) const {
  const ThreadPlace& p = lane.place;
  return std::string("kernel ") + grid.kernel + ", block (" + std::to_string(p.block.x) + ", " +
         std::to_string(p.block.y) + ", " + std::to_string(p.block.z) + "), thread (" +
         std::to_string(p.thread.x) + ", " + std::to_string(p.thread.y) + ", " + std::to_string(p.thread.z) +
         ")";
}

// Lets the lanes of one exchange go on when all have come. False: somebody is still on the way.
bool Executor::complete_exchange(const Grid& grid, std::span<Lane> warp) {
  for (Lane& first : warp) {
    if (first.state != State::at_exchange) continue;
    const unsigned mask = first.mask;
    const auto own = static_cast<std::size_t>(&first - warp.data());
    if ((mask >> own & 1u) == 0) {
      throw Violation(name(grid, first) + ": takes part in an exchange at " + at(first.where) +
                      " whose mask leaves it out");
    }
    bool complete = true;
    for (std::size_t i = 0; i < warp_size; ++i) {
      if ((mask >> i & 1u) == 0) continue;
      if (i >= warp.size()) {
        throw Violation(name(grid, first) + ": the mask of the exchange at " + at(first.where) +
                        " names lanes that the block does not have");
      }
      const Lane& other = warp[i];
      if (other.state == State::done || other.state == State::at_barrier) {
        throw Violation(name(grid, first) + ": waits at " + at(first.where) + " for lane " +
                        std::to_string(i) + ", which " +
                        (other.state == State::done ? "has ended" : "waits at a barrier"));
      }
      if (other.state != State::at_exchange) {
        complete = false;
        break;
      }
      if (other.mask != mask) {
        complete = false;  // of another group of lanes, which may come here later
        break;
      }
      if (other.kind != first.kind || !same(other.where, first.where)) {
        throw Violation(name(grid, first) + ": exchanges at " + at(first.where) + " while lane " +
                        std::to_string(i) + " exchanges at " + at(other.where));
      }
    }
    if (!complete) continue;
    if (first.kind == Exchange::sync) see(static_cast<std::size_t>(warp.data() - lanes_.data()), warp.size(), mask);
    std::array<std::uint64_t, warp_size> values{};
    std::uint64_t ballot = 0;
    for (std::size_t i = 0; i < warp.size(); ++i) {
      if ((mask >> i & 1u) == 0) continue;
      values[i] = warp[i].value;
      ballot |= (warp[i].value & 1u) << i;
    }
    for (int i = 0; i < static_cast<int>(warp.size()); ++i) {
      if ((mask >> i & 1u) == 0) continue;
      Lane& lane = warp[static_cast<std::size_t>(i)];
      int source = i;
      switch (lane.kind) {
        case Exchange::shuffle:
          source = lane.argument & (warp_size - 1);
          break;
        case Exchange::shuffle_xor:
          source = i ^ lane.argument;
          break;
        case Exchange::shuffle_down:
          source = i + lane.argument < warp_size ? i + lane.argument : i;
          break;
        case Exchange::shuffle_up:
          source = i - lane.argument >= 0 ? i - lane.argument : i;
          break;
        case Exchange::ballot:
        case Exchange::sync:
          break;
      }
      if (source < 0 || source >= warp_size || (mask >> source & 1u) == 0) {
        throw Violation(name(grid, lane) + ": reads at " + at(lane.where) + " from lane " +
                        std::to_string(source) + ", which takes no part");
      }
      lane.value = lane.kind == Exchange::ballot ? ballot : values[static_cast<std::size_t>(source)];
      lane.state = State::ready;
    }
    return true;
  }
  return false;
}

// Lanes of a warp that __syncwarp brings together: each sees what the others have.
void Executor::see(std::size_t first, std::size_t lanes, unsigned mask) {
  if (seen_.empty()) return;
  std::array<std::uint32_t, warp_size> all{};
  for (std::size_t i = 0; i < lanes; ++i) {
    if ((mask >> i & 1u) == 0) continue;
    for (std::size_t j = 0; j < warp_size; ++j) all[j] = std::max(all[j], seen_[first + i][j]);
  }
  for (std::size_t i = 0; i < lanes; ++i) {
    if ((mask >> i & 1u) == 0) continue;
    seen_[first + i] = all;
    ++seen_[first + i][i];
  }
}

// As far as it can: until each lane has ended or waits at a barrier.
void Executor::run_warp(const Grid& grid, std::size_t warp, const std::function<void()>& body,
                        Order& order) {
  const std::size_t first = warp * warp_size, size = std::min<std::size_t>(warp_size, lanes_.size() - first);
  const std::span<Lane> lanes(&lanes_[first], size);
  std::array<std::size_t, warp_size> sequence;
  for (std::size_t i = 0; i < size; ++i) sequence[i] = i;
  for (;;) {
    std::shuffle(sequence.begin(), sequence.begin() + static_cast<std::ptrdiff_t>(size), order);
    for (std::size_t i = 0; i < size; ++i) {
      Lane& lane = lanes[sequence[i]];
      if (lane.state == State::fresh || lane.state == State::ready) resume(lane, body);
    }
    bool waits = false;
    for (const Lane& lane : lanes) waits = waits || lane.state == State::at_exchange;
    if (!waits) return;
    if (!complete_exchange(grid, lanes)) {
      for (const Lane& lane : lanes) {
        if (lane.state == State::at_exchange) {
          throw Violation(name(grid, lane) + ": waits for ever in the exchange at " + at(lane.where) +
                          ": the lanes of its mask named other masks");
        }
      }
    }
  }
}

void Executor::release_barrier(const Grid& grid) {
  const Lane* waiting = nullptr;
  for (const Lane& lane : lanes_)
    if (lane.state == State::at_barrier) waiting = &lane;
  for (Lane& lane : lanes_) {
    if (lane.state == State::done) {
      throw Violation(name(grid, lane) + ": has ended without the barrier at " + at(waiting->where) +
                      " where others wait");
    }
    if (!same(lane.where, waiting->where)) {
      throw Violation(name(grid, lane) + ": waits at the barrier at " + at(lane.where) +
                      " while others wait at " + at(waiting->where));
    }
    lane.state = State::ready;
  }
  ++barriers_;
}

void Executor::make_shared(std::size_t bytes) {
  // Exactly as long as asked for, so that AddressSanitizer sees its end.
  void* memory = nullptr;
  if (::posix_memalign(&memory, 16, std::max<std::size_t>(16, bytes)) != 0) throw std::bad_alloc();
  shared_.reset(static_cast<std::byte*>(memory));
  races::add_shared(memory, bytes);
  std::memset(shared_.get(), 0xff, std::max<std::size_t>(16, bytes));
}

void Executor::run_block(const Grid& grid, const uint3& block, const std::function<void()>& body,
                         Order& order) {
  const dim3& size = grid.threads;
  lanes_.assign(static_cast<std::size_t>(size.x) * size.y * size.z, Lane{});
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const auto linear = static_cast<unsigned>(i);
    lanes_[i].place = {{linear % size.x, linear / size.x % size.y, linear / (size.x * size.y)},
                       block,
                       size,
                       grid.blocks};
  }
  ++block_number;
  seen_.assign(races::on() ? lanes_.size() : 0, {});
  for (std::size_t i = 0; i < seen_.size(); ++i) seen_[i][i % warp_size] = 1;
  barriers_ = 0;
  races::begin_block();
  make_shared(grid.shared_bytes);
  std::vector<std::size_t> warps((lanes_.size() + warp_size - 1) / warp_size);
  for (std::size_t i = 0; i < warps.size(); ++i) warps[i] = i;
  for (;;) {
    std::shuffle(warps.begin(), warps.end(), order);
    for (const std::size_t warp : warps) run_warp(grid, warp, body, order);
    const bool all_done =
        std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.state == State::done; });
    if (all_done) return;
    release_barrier(grid);
  }
}

void Executor::run(const Grid& grid, const std::function<void()>& body, std::uint64_t order_seed) {
  Order order(order_seed);
  const std::uint64_t count = std::uint64_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z;
  std::vector<std::uint64_t> blocks(count);
  for (std::uint64_t i = 0; i < count; ++i) blocks[i] = i;
  std::shuffle(blocks.begin(), blocks.end(), order);
  try {
    for (const std::uint64_t i : blocks) {
      const uint3 block{static_cast<unsigned>(i % grid.blocks.x),
                        static_cast<unsigned>(i / grid.blocks.x % grid.blocks.y),
                        static_cast<unsigned>(i / (std::uint64_t{grid.blocks.x} * grid.blocks.y))};
      run_block(grid, block, body, order);
    }
  } catch (...) {
    // Lanes that wait will never go on: their fibers are unwound.
    running_ = nullptr;
    place = nullptr;
    free_.clear();
    fibers_.clear();
    throw;
  }
}

}  // namespace

void run_grid(const Grid& grid, const std::function<void()>& body, std::uint64_t order) {
  executor().run(grid, body, order);
}

void barrier(const std::source_location& where) {
  Executor& on = executor();
  on.lane().where = where;
  on.suspend(State::at_barrier);
}

std::uint64_t exchange(Exchange kind, unsigned mask, std::uint64_t value, int argument,
                       const std::source_location& where) {
  Lane& lane = executor().lane();
  lane.kind = kind;
  lane.mask = mask;
  lane.value = value;
  lane.argument = argument;
  lane.where = where;
  executor().suspend(State::at_exchange);
  return lane.value;
}

void begin_shared(void* array, std::size_t bytes) {
  std::memset(array, 0xff, bytes);
  races::add_shared(array, bytes);
}

void* dynamic_shared_memory() {
  return executor().shared_memory();
}

}  // namespace motley::sim
