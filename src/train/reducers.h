// The sums over ranks that this run needs, of gradients and of statistics: by MPI, by NCCL, or by both where some ranks
// have GPUs.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/gradient_reducer.h"
#include "comm/small_sum.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"

namespace motley::train {

// What a bucket of gradients is at most: --bucket-cap-mb, but small enough that a small model has several buckets,
// too. With one there is nothing to overlap.
std::size_t gradient_bucket_bytes(double cap_mb, std::size_t elements);

// Sums float32 arenas of `elements` in the memory of each rank's backend. `wire`: "fp32", or "bf16" for sums of
// gradients rounded to bfloat16, half as many bytes. Collective; all ranks give the same elements, bucket_bytes
// and wire.
std::unique_ptr<comm::GradientReducer> make_reducer(const comm::Communicator& world, Backend& backend,
                                                    std::size_t elements, std::size_t bucket_bytes,
                                                    const std::string& wire);

// Sums of up to `most_values` float64 in the memory of each rank's backend; null with one rank, which has nothing to add.
// Collective; all ranks give the same most_values.
std::unique_ptr<comm::SmallSum> make_small_sum(const comm::Communicator& world, Backend& backend,
                                               std::size_t most_values);

}  // namespace motley::train
