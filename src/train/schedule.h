// HetSeq's learning-rate schedule: linear warm-up, then polynomial decay.
#pragma once

#include <cstdint>

#include "train/options.h"

namespace motley::train {

// The rate of step `step` (counts from 1) in epoch `epoch` (counts from 1). As in HetSeq (and fairseq, from
// which it comes) the rate of a step follows from the updates done before it, u = step - 1:
//   base = lr[min(epoch, rates) - 1]
//   u <= warmup (warmup > 0):  base * u / warmup          (so the first step of a warm-up has rate 0)
//   u >= total:                end
//   else:                      (base - end) * (1 - (u - warmup) / (total - warmup))^power + end
double learning_rate(const ScheduleOptions& options, std::int64_t step, int epoch);

}  // namespace motley::train
