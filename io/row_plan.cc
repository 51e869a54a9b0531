#include "io/row_plan.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace motley::io {

SortedRows sort_rows(std::span<const std::uint64_t> asked) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> order(asked.size());
  for (std::size_t i = 0; i < asked.size(); ++i) order[i] = {asked[i], i};
  std::sort(order.begin(), order.end());
  SortedRows sorted;
  sorted.rows.reserve(asked.size());
  sorted.first.reserve(asked.size() + 1);
  sorted.places.reserve(asked.size());
  for (const auto& [row, place] : order) {
    if (sorted.rows.empty() || sorted.rows.back() != row) {
      sorted.rows.push_back(row);
      sorted.first.push_back(sorted.places.size());
    }
    sorted.places.push_back(place);
  }
  sorted.first.push_back(sorted.places.size());
  return sorted;
}

void SortedRows::scatter(std::size_t index, const std::byte* source, std::size_t row_bytes,
                         std::byte* out) const {
  for (std::size_t i = first[index]; i < first[index + 1]; ++i) {
    std::memcpy(out + places[i] * row_bytes, source, row_bytes);
  }
}

std::vector<ReadPass> plan_passes(std::span<const std::uint64_t> sorted, std::uint64_t row_bytes,
                                  std::uint64_t gap_bytes, std::uint64_t pass_bytes) {
  std::vector<ReadPass> passes;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::uint64_t offset = sorted[i] * row_bytes;
    const std::uint64_t end_of_last =
        passes.empty() ? 0 : passes.back().blocks.back().offset + passes.back().blocks.back().bytes;
    const bool near = !passes.empty() && offset - end_of_last <= gap_bytes;
    const std::uint64_t grows_by = near ? offset - end_of_last + row_bytes : row_bytes;
    if (passes.empty() || passes.back().bytes + grows_by > pass_bytes) {
      passes.push_back({i, {0}, {{offset, row_bytes}}, row_bytes});
      continue;
    }
    ReadPass& pass = passes.back();
    pass.bytes += grows_by;
    pass.landing.push_back(pass.bytes - row_bytes);
    if (near) {
      pass.blocks.back().bytes += grows_by;
    } else {
      pass.blocks.push_back({offset, row_bytes});
    }
  }
  return passes;
}

}  // namespace motley::io
