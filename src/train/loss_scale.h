// The factor that keeps gradients in the range of float16: the loss is multiplied by it before its gradient is
// formed, and the summed gradient divided by it.
//
// By itself it follows the rule of PyTorch's torch.amp.GradScaler with its defaults: it starts at 65536, is
// halved at a step whose gradient is not finite, which is then skipped by all ranks, and doubled after 2000
// steps in a row that were.
#pragma once

#include <cstdint>
#include <string>

#include "core/json.h"

namespace motley::train {

class LossScale {
 public:
  // No scale: the factor 1, and a gradient that is not finite is not its affair.
  LossScale() = default;
  // `fixed` > 0: that factor for ever; 0: by itself.
  explicit LossScale(double fixed);

  bool active() const { return active_; }
  // It changes, and a step that is not finite is part of finding it.
  bool moves() const { return active_ && !fixed_; }
  double factor() const { return factor_; }
  // Steps that were skipped since the beginning of the run.
  std::int64_t skipped() const { return skipped_; }

  // After a step: whether its gradient was finite. False: no smaller factor can help; a fixed one never says so.
  bool note(bool finite);

  Json to_json() const;
  // Of the run that this one continues; `where` names the file. Error(checkpoint).
  void restore(const Json& state, const std::string& where);

 private:
  bool active_ = false, fixed_ = false;
  double factor_ = 1;
  std::int64_t finite_in_a_row_ = 0, skipped_ = 0;
};

}  // namespace motley::train
