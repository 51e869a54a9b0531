// Sums gradients over ranks while the backward pass is still running.
//
// The gradient arena is laid out in the order in which the backward pass finishes parameters, and is cut into
// buckets. When the backward pass has finished everything up to some element it says so by ready_up_to(), and
// every bucket that lies wholly below is summed beside what follows.
//
// The sums have the same bits on every rank, and for the same arena, buckets and ranks the same bits in every
// run, whenever the buckets become ready: each is summed by one call on its own, in an order that derives
// from the number of ranks and of elements.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/view.h"

namespace motley::comm {

class GradientReducer {
 public:
  // `bucket_bytes`: no bucket is larger, except that the last may be up to half as large again rather than
  // leave a tiny one behind, and that no bucket is smaller than 16 elements; buckets are cut at multiples of
  // 16 elements. `dtype` is what is summed: float32, or bfloat16, whose sums are rounded after each addition.
  GradientReducer(std::size_t elements, std::size_t bucket_bytes, DType dtype);
  virtual ~GradientReducer() = default;
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  std::size_t elements() const { return bucket_ends_.empty() ? 0 : bucket_ends_.back(); }
  DType dtype() const { return dtype_; }
  std::size_t buckets() const { return bucket_ends_.size(); }
  // bucket_ends()[i]: one past the last element of bucket i.
  std::span<const std::size_t> bucket_ends() const { return bucket_ends_; }
  std::size_t bucket_begin(std::size_t bucket) const { return bucket == 0 ? 0 : bucket_ends_[bucket - 1]; }

  // Starts a step over `gradients`, elements() of dtype(), which this object sums in place. The step before
  // must be finished, or nothing of it sent().
  virtual void begin(View gradients) = 0;
  // The first `elements` gradients are final on this rank; never fewer than said before in this step. Never
  // blocks.
  virtual void ready_up_to(std::size_t elements) = 0;
  // Whether a bucket of this step may be with other ranks. As long as none is, begin() starts the step anew.
  virtual bool sent() const = 0;
  // Marks everything as ready, waits until all buckets are summed, and returns the seconds it blocked. Throws
  // Error(communication) when the deadline passes, naming the bucket; the object is of no use after that, and
  // the gradients must live until the process ends (see Communicator).
  virtual double finish() = 0;

 protected:
  // Buckets that lie wholly in the first `ready` elements.
  std::size_t whole_buckets(std::size_t ready) const;

 private:
  std::vector<std::size_t> bucket_ends_;
  DType dtype_;
};

}  // namespace motley::comm
