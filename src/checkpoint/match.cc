#include "checkpoint/match.h"

#include <fmt/ranges.h>

#include <map>
#include <vector>

#include "core/error.h"

namespace motley::checkpoint {
namespace {

using Entries = std::map<std::string, const io::SafetensorsEntry*>;

Entries by_name(std::span<const io::SafetensorsEntry> entries) {
  Entries result;
  for (const io::SafetensorsEntry& entry : entries) result.emplace(entry.name, &entry);
  return result;
}

std::string type_text(const io::SafetensorsEntry& entry) {
  return fmt::format("{} {}", name_of(entry.dtype), entry.shape.to_string());
}

}  // namespace

void require_same_tensors(const std::string& file, std::span<const io::SafetensorsEntry> found,
                          std::span<const io::SafetensorsEntry> wanted) {
  const Entries in_file = by_name(found);
  const Entries in_model = by_name(wanted);
  std::vector<std::string> missing, other, unknown;
  for (const auto& [name, entry] : in_model) {
    const auto match = in_file.find(name);
    if (match == in_file.end()) {
      missing.push_back(name);
    } else if (match->second->shape != entry->shape || match->second->dtype != entry->dtype) {
      other.push_back(
          fmt::format("{} (is {}, should be {})", name, type_text(*match->second), type_text(*entry)));
    }
  }
  for (const auto& [name, entry] : in_file) {
    if (!in_model.contains(name)) unknown.push_back(name);
  }
  std::vector<std::string> parts;
  if (!missing.empty()) parts.push_back(fmt::format("missing: {}", fmt::join(missing, ", ")));
  if (!unknown.empty()) parts.push_back(fmt::format("unknown: {}", fmt::join(unknown, ", ")));
  if (!other.empty()) parts.push_back(fmt::format("of another shape: {}", fmt::join(other, ", ")));
  if (parts.empty()) return;
  fail(ExitCode::checkpoint, "{} does not hold the tensors of this model; {}", file, fmt::join(parts, "; "));
}

}  // namespace motley::checkpoint
