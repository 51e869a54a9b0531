// What was probably meant by a name that does not exist.
#pragma once

#include <string>
#include <vector>

namespace motley {

// The word at the smallest edit distance, when it is near enough to be a slip; empty otherwise.
std::string nearest_word(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace motley
