// Learning-rate schedules: HetSeq's polynomial decay, PyTorch's cosine and steps, each after a linear warm-up.
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
// cosine and step are the closed forms of PyTorch's CosineAnnealingLR, StepLR and MultiStepLR after t of its steps, times
// u / warmup where u < warmup. By epochs t = epoch - 1; by updates t = u, of cosine u - warmup.
//   cosine:  end + (base - end) * (1 + cos(pi t / T)) / 2, T = epochs or total - warmup; end from T on
//   step:    base * gamma^(falls until t): t / step_size, or the milestones that t has reached
double learning_rate(const ScheduleOptions& options, std::int64_t step, int epoch);

}  // namespace motley::train
