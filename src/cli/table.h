// Rows of cells as text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace motley::cli {

// Columns are as wide as their widest cell. `alignment` has an l (left) or r (right) per column; columns
// beyond are numbers, set to the right.
std::string table(const std::vector<std::vector<std::string>>& rows, std::string_view alignment = "l");

}  // namespace motley::cli
