#include "models/memory_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace motley {
namespace {

// What GPU libraries want at most.
constexpr std::size_t alignment_bytes = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

}  // namespace

int MemoryPlan::add(const Extent& size, int step, std::vector<int> places) {
  MOTLEY_CHECK(tensors_.empty() || tensors_.back().first <= step);
  tensors_.push_back({size, step, step, std::move(places), 0});
  return static_cast<int>(tensors_.size()) - 1;
}

void MemoryPlan::use(int tensor, int step) {
  Tensor& used = tensors_.at(static_cast<std::size_t>(tensor));
  MOTLEY_CHECK(step >= used.first);
  used.last = std::max(used.last, step);
}

void MemoryPlan::join() {
  cells_.clear();
  std::vector<bool> replaced(tensors_.size(), false);
  for (Tensor& tensor : tensors_) {
    const auto place = std::find_if(tensor.places.begin(), tensor.places.end(), [&](int other) {
      const auto index = static_cast<std::size_t>(other);
      return !replaced[index] && tensors_[index].last == tensor.first;
    });
    if (place == tensor.places.end()) {
      tensor.cell = cells_.size();
      cells_.push_back({{tensor.size}, tensor.first, tensor.last});
      continue;
    }
    replaced[static_cast<std::size_t>(*place)] = true;
    tensor.cell = tensors_[static_cast<std::size_t>(*place)].cell;
    Cell& cell = cells_[tensor.cell];
    cell.sizes.push_back(tensor.size);
    cell.last = std::max(cell.last, tensor.last);
  }
}

std::size_t MemoryPlan::Cell::bytes(std::int64_t n) const {
  std::size_t largest = 0;
  for (const Extent& size : sizes) largest = std::max(largest, size.bytes(n));
  return aligned(largest);
}

MemoryPlan::Layout MemoryPlan::lay_out(std::int64_t n) const {
  struct Placed {
    std::size_t begin = 0, end = 0;
    std::size_t cell = 0;
  };
  std::vector<std::size_t> sizes, order(cells_.size()), begins(cells_.size());
  for (const Cell& cell : cells_) sizes.push_back(cell.bytes(n));
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  Layout layout;
  std::vector<Placed> placed;  // by where they begin
  for (const std::size_t index : order) {
    const Cell& cell = cells_[index];
    std::size_t begin = 0;
    for (const Placed& other : placed) {
      if (cells_[other.cell].last < cell.first || cells_[other.cell].first > cell.last) continue;
      if (begin + sizes[index] <= other.begin) break;
      begin = std::max(begin, other.end);
    }
    begins[index] = begin;
    layout.bytes = std::max(layout.bytes, begin + sizes[index]);
    const Placed here{begin, begin + sizes[index], index};
    placed.insert(std::upper_bound(placed.begin(), placed.end(), here,
                                   [](const Placed& a, const Placed& b) { return a.begin < b.begin; }),
                  here);
  }
  for (const Tensor& tensor : tensors_) layout.offsets.push_back(begins[tensor.cell]);
  return layout;
}

}  // namespace motley
