// Equal indices brought together, on the host: see RowGroups in kernels/backend.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace motley {

struct HostRowGroups {
  std::vector<std::int32_t> rows, starts, sources;  // as in RowGroups
  std::vector<std::int32_t> counts;                 // working memory of group_rows
};

// index[i] >= 0; those equal to `skip` are left out. O(m + largest index) for m indices; the result is a function
// of the indices alone.
void group_rows(std::span<const std::int32_t> index, HostRowGroups& out, std::int32_t skip = -1);

}  // namespace motley
