// Text that people have written.
#pragma once

#include <cstddef>
#include <string_view>

namespace motley {

// Without the white space at both ends.
inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view space = " \t\n\r\v\f";
  const std::size_t first = text.find_first_not_of(space);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(space) - first + 1);
}

}  // namespace motley
