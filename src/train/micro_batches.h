// How many samples this rank runs at once: as many as its memory holds, and no more than it is told to.
//
// The largest micro-batch follows from the backend's memory limit and from what the task says it takes, and
// is corrected by trying: what runs out of memory is run again in halves. The size decides how a share is cut
// and nothing else (law 1). Memory is taken when a share needs it, so that it grows with the shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/error.h"
#include "kernels/backend.h"
#include "train/task.h"

namespace motley::train {

class MicroBatches {
 public:
  // cap >= 1: --max-sentences or less. To be made when all else that the rank holds for good (parameters,
  // optimizer state) has been allocated. Throws OutOfMemory when there is no room for one sample.
  MicroBatches(Backend& backend, Task& task, std::int64_t cap, bool training);

  // What the task says that micro-batches of so many samples take beside its parameters.
  std::size_t bytes_for(std::int64_t samples) const { return task_.memory_bytes(samples, training_); }
  // Samples of the largest micro-batch that is believed to fit, cap at most.
  std::int64_t largest() const { return largest_; }

  // The sizes that a share of n samples is run as (balance::micro_batches), with memory reserved for them.
  // Views of the task's activations are no longer valid. Throws OutOfMemory when there is none for one
  // sample.
  std::vector<std::int64_t> prepare(std::int64_t n);
  // The same for a share that cannot be cut, of n samples or none. Throws OutOfMemory when it does not fit.
  void prepare_whole(std::int64_t n);
  // Lowers largest() to what `pass`, of that many samples, can be run with: it takes working memory that the task does not
  // know of. Throws OutOfMemory when that is nothing.
  void settle_whole(const std::function<void(std::int64_t samples)>& pass);
  // A pass ran out of memory: less is reserved, and the share is to be prepared and run again from its
  // beginning. Warns; throws OutOfMemory when it was one sample already, or when `why` came from prepare(),
  // which has tried all.
  void halve(const OutOfMemory& why);

  // Whether a pass of the size last prepared has been done in the memory now reserved: another one then finds
  // its working memory as well.
  bool tried() const { return tried_ >= prepared_; }
  void mark_tried();

  // Another memory limit from now on; gives memory back at once, with a warning, when it is too much for it.
  // Throws OutOfMemory when there is no room for one sample.
  void set_limit(std::size_t bytes);

 private:
  std::int64_t largest_within_limit() const;
  void require_one() const;
  void reserve(std::int64_t samples);
  // The size to go on with after `samples` did not fit; no less than `held`, which did.
  std::int64_t smaller(std::int64_t samples, std::int64_t held, const OutOfMemory& why);
  void warn(const char* why, std::int64_t from, std::int64_t to) const;

  Backend& backend_;
  Task& task_;
  std::int64_t cap_;
  bool training_;
  std::int64_t largest_ = 0;
  std::int64_t prepared_ = 0;  // the larger size of the last share
  std::int64_t tried_ = 0;     // largest size that was run in the memory now reserved
};

}  // namespace motley::train
