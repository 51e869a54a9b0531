#include "train/micro_batches.h"

#include <algorithm>

#include "balance/shares.h"
#include "core/log.h"
#include "core/units.h"

namespace motley::train {

MicroBatches::MicroBatches(Backend& backend, Task& task, std::int64_t cap, bool training)
    : backend_(backend), task_(task), cap_(cap), training_(training), largest_(largest_within_limit()) {
  MOTLEY_CHECK(cap >= 1);
  require_one();
}

// By the estimate alone; 0 when it leaves no room for one sample.
std::int64_t MicroBatches::largest_within_limit() const {
  const std::size_t limit = backend_.device().memory_limit_bytes;
  const std::size_t others = backend_.allocated_bytes() - task_.reserved_bytes();
  const auto fits = [&](std::int64_t samples) {
    return others <= limit && bytes_for(samples) <= limit - others;
  };
  // Bytes grow with samples. Doubling first keeps those that are asked for within twice the limit, so that a
  // cap beyond all bounds does not make them overflow.
  std::int64_t fitting = 0, too_many = 1;
  while (fits(too_many)) {
    fitting = too_many;
    if (fitting == cap_) return cap_;
    too_many = fitting > cap_ / 2 ? cap_ : 2 * fitting;
  }
  while (too_many - fitting > 1) {
    const std::int64_t middle = fitting + (too_many - fitting) / 2;
    (fits(middle) ? fitting : too_many) = middle;
  }
  return fitting;
}

void MicroBatches::require_one() const {
  if (largest_ >= 1) return;
  throw OutOfMemory(fmt::format(
      "out of memory: one sample at a time needs {} beside the {} that this rank holds already, and the "
      "limit is {}",
      in_units(bytes_for(1)), in_units(backend_.allocated_bytes() - task_.reserved_bytes()),
      in_units(backend_.device().memory_limit_bytes)));
}

std::vector<std::int64_t> MicroBatches::prepare(std::int64_t n) {
  for (;;) {
    std::vector<std::int64_t> sizes = balance::micro_batches(n, largest_);
    prepared_ = sizes.empty() ? 0 : sizes.front();
    if (prepared_ <= task_.reserved()) return sizes;
    reserve(prepared_);
  }
}

void MicroBatches::prepare_whole(std::int64_t n) {
  if (n > largest_)
    throw OutOfMemory(fmt::format("out of memory: this rank holds {} sample(s), which take {}", largest_,
                                  in_units(bytes_for(largest_))));
  const std::int64_t samples = std::max<std::int64_t>(n, 1);
  if (samples > task_.reserved()) task_.reserve(backend_, samples, training_);
}

void MicroBatches::settle_whole(const std::function<void(std::int64_t samples)>& pass) {
  for (;;) {
    try {
      prepare_whole(largest_);
      return pass(largest_);
    } catch (const OutOfMemory& why) {
      if (largest_ == 1) throw OutOfMemory(fmt::format("{}; that was for one sample", why.what()));
      largest_ -= std::max<std::int64_t>(1, largest_ / 16);
      backend_.release_scratch();
      task_.reserve(backend_, largest_, training_);
    }
  }
}

void MicroBatches::halve(const OutOfMemory& why) {
  const std::int64_t held = task_.reserved();
  if (held == 0) throw OutOfMemory(why);
  reserve(smaller(held, 0, why));
}

void MicroBatches::mark_tried() {
  tried_ = std::max(tried_, prepared_);
}

void MicroBatches::set_limit(std::size_t bytes) {
  const bool more = bytes > backend_.device().memory_limit_bytes;
  backend_.set_memory_limit(bytes);
  std::int64_t fitting = largest_within_limit();
  if (fitting == 0) {
    backend_.release_scratch();  // it may have grown with larger micro-batches
    tried_ = 0;
    fitting = largest_within_limit();
  }
  // A higher limit is worth another try of what did not fit before.
  largest_ = more ? fitting : std::min(largest_, fitting);
  require_one();
  const std::int64_t held = task_.reserved();
  if (held <= largest_ && backend_.allocated_bytes() <= bytes) return;
  const std::int64_t samples = std::min(held, largest_);
  warn(fmt::format("the memory limit is now {}", in_units(bytes)).c_str(), held, samples);
  reserve(samples);
}

void MicroBatches::reserve(std::int64_t samples) {
  const std::int64_t held = task_.reserved();
  tried_ = 0;
  for (;;) {
    try {
      return task_.reserve(backend_, samples, training_);
    } catch (const OutOfMemory& error) {
      samples = smaller(samples, held, error);
    }
  }
}

std::int64_t MicroBatches::smaller(std::int64_t samples, std::int64_t held, const OutOfMemory& why) {
  if (samples == 1) throw OutOfMemory(fmt::format("{}; that was for one sample at a time", why.what()));
  largest_ = samples / 2;
  if (held < samples) largest_ = std::max(largest_, held);
  warn(why.what(), samples, largest_);
  backend_.release_scratch();  // it may have grown with larger micro-batches
  return largest_;
}

void MicroBatches::warn(const char* why, std::int64_t from, std::int64_t to) const {
  log::warn("{}: going on with {} sample(s) at a time, which take {}, instead of {}, which take {}", why, to,
            in_units(bytes_for(to)), from, in_units(bytes_for(from)));
}

}  // namespace motley::train
