// The end of a step: divides the summed gradient by its count, clips it, and steps the optimizer.
#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "kernels/buffer.h"
#include "train/optimizer.h"

namespace motley::train {

class Update {
 public:
  // All must be allocated and outlive this object. `sums`: how many a batch is judged by (Task::sums).
  // clip_norm <= 0: no clipping.
  Update(Backend& backend, std::int64_t sums, const ParameterStore& store, Optimizer& optimizer,
         double clip_norm);

  // Where ranks have devices of several kinds, which round sums differently, rank 0's norm is that of all.
  void follow_rank_0(const comm::Communicator& world) { world_ = &world; }

  // Float64 [sums], in device memory.
  View sums() const { return sums_; }

  // Norm of the gradient arena / divisor, before clipping. Collective after follow_rank_0.
  double norm(double divisor);
  // Steps on the gradient that norm() was last asked of. `step` counts from 1.
  void step(double lr, std::int64_t step);

 private:
  Backend& backend_;
  const ParameterStore& store_;
  Optimizer& optimizer_;
  float clip_norm_;
  const comm::Communicator* world_ = nullptr;
  float host_[2] = {};  // scale and norm
  Buffer memory_;
  View sums_, sum_squares_, count_, scale_and_norm_;
};

}  // namespace motley::train
