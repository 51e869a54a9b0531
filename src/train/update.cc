#include "train/update.h"

namespace motley::train {

Update::Update(Backend& backend, std::int64_t sums, const ParameterStore& store, Optimizer& optimizer,
               double clip_norm)
    : backend_(backend), store_(store), optimizer_(optimizer), clip_norm_(static_cast<float>(clip_norm)) {
  const auto before = static_cast<std::size_t>(sums);
  memory_ = Buffer(backend, (before + 3) * sizeof(double));
  sums_ = memory_.view(DType::f64, Shape{sums});
  sum_squares_ = memory_.view(DType::f64, Shape{1}, before * sizeof(double));
  count_ = memory_.view(DType::f64, Shape{1}, (before + 1) * sizeof(double));
  scale_and_norm_ = memory_.view(DType::f32, Shape{2}, (before + 2) * sizeof(double));
}

double Update::norm(double divisor) {
  backend_.copy_to_device(count_.data, &divisor, sizeof(double));
  backend_.sum_squares(store_.gradients(), sum_squares_);
  backend_.gradient_scale(sum_squares_, count_, clip_norm_, scale_and_norm_);
  backend_.copy_to_host(host_, scale_and_norm_.data, sizeof(host_));
  if (world_ != nullptr) {
    world_->broadcast(host_, sizeof(host_), 0, "the norm of the gradient");
    backend_.copy_to_device(scale_and_norm_.data, host_, sizeof(host_));
  }
  return host_[1];
}

void Update::step(double lr, std::int64_t step) {
  optimizer_.step(lr, step, scale_and_norm_);
}

}  // namespace motley::train
