#include "kernels/row_groups.h"

#include <algorithm>

namespace motley {

// Counting sort, which keeps the order of equal indices.
void group_rows(std::span<const std::int32_t> index, HostRowGroups& out, std::int32_t skip) {
  std::int32_t last = -1;
  for (const std::int32_t row : index) last = row == skip ? last : std::max(last, row);
  out.counts.assign(static_cast<std::size_t>(last + 1), 0);
  for (const std::int32_t row : index)
    if (row != skip) ++out.counts[static_cast<std::size_t>(row)];
  out.rows.clear();
  out.starts.clear();
  std::int32_t total = 0;
  for (std::size_t row = 0; row < out.counts.size(); ++row) {
    const std::int32_t count = out.counts[row];
    if (count == 0) continue;
    out.rows.push_back(static_cast<std::int32_t>(row));
    out.starts.push_back(total);
    out.counts[row] = total;  // from here on: where the row's next source goes
    total += count;
  }
  out.starts.push_back(total);
  out.sources.resize(static_cast<std::size_t>(total));
  for (std::size_t i = 0; i < index.size(); ++i) {
    if (index[i] == skip) continue;
    std::int32_t& next = out.counts[static_cast<std::size_t>(index[i])];
    out.sources[static_cast<std::size_t>(next++)] = static_cast<std::int32_t>(i);
  }
}

}  // namespace motley
