#include "kernels/row_groups.h"

#include <algorithm>

namespace motley {

void group_rows(std::span<const std::int32_t> index, HostRowGroups& out, std::int32_t skip) {
  const auto at = [&](std::int32_t place) { return index[static_cast<std::size_t>(place)]; };
  out.sources.clear();
  for (std::size_t i = 0; i < index.size(); ++i) {
    if (index[i] != skip) out.sources.push_back(static_cast<std::int32_t>(i));
  }
  std::sort(out.sources.begin(), out.sources.end(),
            [&](std::int32_t a, std::int32_t b) { return at(a) != at(b) ? at(a) < at(b) : a < b; });
  out.rows.clear();
  out.starts.clear();
  for (std::size_t i = 0; i < out.sources.size(); ++i) {
    const std::int32_t row = at(out.sources[i]);
    if (!out.rows.empty() && out.rows.back() == row) continue;
    out.rows.push_back(row);
    out.starts.push_back(static_cast<std::int32_t>(i));
  }
  out.starts.push_back(static_cast<std::int32_t>(out.sources.size()));
}

}  // namespace motley
