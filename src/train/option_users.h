// Options that only some of the choices of another option use, such as those of one optimizer.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace motley::train {

struct OptionUsers {
  const char* option;
  std::vector<const char*> choices;
};

// "sgd", or "adam, adamw or lamb"; empty: an option that is not in the table, which all use.
std::string users_text(std::span<const OptionUsers> table, const std::string& option);
bool is_used(std::span<const OptionUsers> table, const std::string& option, const std::string& choice);

}  // namespace motley::train
