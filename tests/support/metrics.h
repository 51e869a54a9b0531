// What a run left in metrics.jsonl.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace motley::test {

inline std::vector<nlohmann::json> metrics_of(const std::filesystem::path& run) {
  std::ifstream file(run / "metrics.jsonl");
  if (!file) throw std::runtime_error(run.string() + " has no metrics.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

// The values of `field` in the lines that have `marker`.
inline std::vector<double> values_of(const std::filesystem::path& run, const char* field,
                                     const char* marker) {
  std::vector<double> values;
  for (const nlohmann::json& line : metrics_of(run)) {
    if (line.contains(marker)) values.push_back(line[field].get<double>());
  }
  return values;
}

}  // namespace motley::test
