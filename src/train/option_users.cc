#include "train/option_users.h"

#include <algorithm>

namespace motley::train {
namespace {

const OptionUsers* find(std::span<const OptionUsers> table, const std::string& option) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const OptionUsers& entry) { return entry.option == option; });
  return found == table.end() ? nullptr : &*found;
}

}  // namespace

std::string users_text(std::span<const OptionUsers> table, const std::string& option) {
  const OptionUsers* const users = find(table, option);
  std::string text;
  for (std::size_t i = 0; users != nullptr && i < users->choices.size(); ++i) {
    text += i == 0 ? "" : i + 1 == users->choices.size() ? " or " : ", ";
    text += users->choices[i];
  }
  return text;
}

bool is_used(std::span<const OptionUsers> table, const std::string& option, const std::string& choice) {
  const OptionUsers* const users = find(table, option);
  return users == nullptr ||
         std::find(users->choices.begin(), users->choices.end(), choice) != users->choices.end();
}

}  // namespace motley::train
