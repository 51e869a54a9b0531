#include "cli/table.h"

#include <fmt/format.h>

#include <algorithm>

namespace motley::cli {

std::string table(const std::vector<std::vector<std::string>>& rows, std::string_view alignment) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const bool left = c < alignment.size() && alignment[c] == 'l';
      const std::string padding(widths[c] - row[c].size(), ' ');
      line += fmt::format("{}{}", c == 0 ? "" : "  ", left ? row[c] + padding : padding + row[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace motley::cli
