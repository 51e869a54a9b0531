// Which tensors of a pass share memory, found from when each is used. Pure arithmetic: no device, no memory.
//
// Time is counted in steps. A tensor lives from the step that writes it to the last that uses it. Tensors first join
// in cells: one that is written in the step in which another is used for the last time may take its place, where the
// operation allows it. Cells are then placed by first fit in order of size (Pisarchyk, Lee, "Efficient memory
// management for deep neural net inference", 2020, "greedy by size for offset calculation").
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/layer.h"

namespace motley {

class MemoryPlan {
 public:
  // A tensor written at `step`; steps of successive calls do not decrease. It may take the place of the first of
  // `places` (tensors used at that step) that is not used later. Returns its index.
  int add(const Extent& size, int step, std::vector<int> places = {});
  // The tensor is read or added to at `step`.
  void use(int tensor, int step);
  // When all tensors and uses are known.
  void join();

  struct Layout {
    std::vector<std::size_t> offsets;  // of each tensor
    std::size_t bytes = 0;
  };
  // For n samples.
  Layout lay_out(std::int64_t n) const;

 private:
  struct Tensor {
    Extent size;
    int first = 0, last = 0;
    std::vector<int> places;
    std::size_t cell = 0;
  };
  struct Cell {
    std::vector<Extent> sizes;
    int first = 0, last = 0;

    std::size_t bytes(std::int64_t n) const;
  };
  std::vector<Tensor> tensors_;
  std::vector<Cell> cells_;
};

}  // namespace motley
