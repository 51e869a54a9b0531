#include "train/model_directory.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>

#include "core/bfloat16.h"
#include "core/error.h"
#include "core/files.h"
#include "core/float16.h"
#include "core/json.h"

namespace motley::train {
namespace {

namespace fs = std::filesystem;

constexpr ExitCode code = ExitCode::input;
constexpr const char* model_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";

bool is_parameter_type(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

std::string type_text(const io::SafetensorsEntry& entry) {
  return fmt::format("{} {}", name_of(entry.dtype), entry.shape.to_string());
}

std::vector<std::byte> bytes_of(const io::SafetensorsFile& file, const io::SafetensorsEntry& entry) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(entry.shape.elements()) * size_of(entry.dtype));
  file.read(entry, bytes);
  return bytes;
}

void read_floats(const io::SafetensorsFile& file, const io::SafetensorsEntry& entry, std::span<float> out) {
  if (entry.dtype == DType::f32) {
    file.read(entry, std::as_writable_bytes(out));
    return;
  }
  const std::vector<std::byte> bytes = bytes_of(file, entry);
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, &bytes[2 * i], sizeof bits);
    out[i] = entry.dtype == DType::f16 ? to_float(F16{bits}) : to_float(Bf16{bits});
  }
}

std::vector<float> floats_of(const io::SafetensorsFile& file, const io::SafetensorsEntry& entry) {
  std::vector<float> values(static_cast<std::size_t>(entry.shape.elements()));
  read_floats(file, entry, values);
  return values;
}

template <class T>
bool counts_up(const std::vector<std::byte>& bytes) {
  for (std::size_t i = 0; i * sizeof(T) < bytes.size(); ++i) {
    T value = 0;
    std::memcpy(&value, &bytes[i * sizeof(T)], sizeof value);
    if (value != static_cast<T>(i)) return false;
  }
  return true;
}

std::string join(const std::vector<std::string>& items, const char* separator = ", ") {
  return fmt::format("{}", fmt::join(items, separator));
}

bool is_step_count(const std::string& name, const io::SafetensorsEntry& entry, const NameRules& rules) {
  return entry.dtype == DType::i64 && entry.shape.elements() == 1 &&
         std::any_of(rules.step_counts.begin(), rules.step_counts.end(),
                     [&](const std::string& ending) { return name.ends_with(ending); });
}

}  // namespace

bool ModelDirectory::is_one(const fs::path& path) {
  std::error_code error;
  return fs::exists(path / model_name, error) || fs::exists(path / index_name, error);
}

ModelDirectory::ModelDirectory(const fs::path& path) : path_(path) {
  std::error_code error;
  if (fs::exists(path / model_name, error)) {
    files_.push_back(std::make_unique<io::SafetensorsFile>(path / model_name, code));
  } else if (fs::exists(path / index_name, error)) {
    open_index(path / index_name);
  } else {
    fail(code, "{} has no {} and no {}; expected a Hugging Face model that was saved as safetensors",
         path.string(), model_name, index_name);
  }
}

// The files that together are one model; each must hold the tensors that the index says, and no others.
void ModelDirectory::open_index(const fs::path& index) {
  const std::string where = index.string();
  const Json json = parse_json(read_file(index, code), where, code);
  const auto places = json_get<std::map<std::string, std::string>>(json, "weight_map", where, code);
  std::set<std::string> names;
  for (const auto& [tensor, file] : places) names.insert(file);
  std::map<std::string, std::string> found;
  for (const std::string& name : names) {
    if (name.empty() || name.find('/') != std::string::npos) {
      fail(code, "{}: the \"weight_map\" names the file \"{}\"; expected a name beside it", where, name);
    }
    files_.push_back(std::make_unique<io::SafetensorsFile>(index.parent_path() / name, code));
    for (const io::SafetensorsEntry& tensor : files_.back()->tensors()) {
      const auto [first, is_new] = found.emplace(tensor.name, name);
      if (!is_new)
        fail(code, "{}: tensor \"{}\" is in {} and in {}", where, tensor.name, first->second, name);
    }
  }
  std::vector<std::string> wrong;
  for (const auto& [tensor, file] : places) {
    const auto at = found.find(tensor);
    if (at == found.end() || at->second != file) wrong.push_back(fmt::format("{} (not in {})", tensor, file));
  }
  for (const auto& [tensor, file] : found) {
    if (!places.contains(tensor))
      wrong.push_back(fmt::format("{} (in {}, but not in the index)", tensor, file));
  }
  if (!wrong.empty()) fail(code, "{}: the \"weight_map\" does not fit the files: {}", where, join(wrong));
}

// All tensors under the names that they have here.
ModelDirectory::Tensors ModelDirectory::by_name(const NameRules& rules,
                                                std::vector<std::string>& twice) const {
  const auto begins = [](const std::string& name, const std::vector<std::string>& beginnings) {
    return std::any_of(beginnings.begin(), beginnings.end(),
                       [&](const std::string& beginning) { return name.starts_with(beginning); });
  };
  Tensors tensors;
  for (const auto& file : files_) {
    for (const io::SafetensorsEntry& entry : file->tensors()) {
      std::string name = entry.name;
      if (begins(name, rules.beheaded)) name = rules.prefix + name;
      for (const NameRules::Ending& ending : rules.endings) {
        if (!name.ends_with(ending.old_one)) continue;
        name = name.substr(0, name.size() - ending.old_one.size()) + ending.now;
        break;
      }
      const auto [first, is_new] = tensors.emplace(name, Tensor{file.get(), &entry});
      if (!is_new) twice.push_back(fmt::format("{} (as {})", first->second.entry->name, entry.name));
    }
  }
  return tensors;
}

// Which tensor of the files is which parameter, and all that is wrong with that.
struct ModelDirectory::Matching {
  std::vector<std::string> missing, unknown, other, unequal, twice, absent;
  std::vector<Tensor> sources;  // one per wanted tensor; none for what is absent

  void match(std::span<const io::SafetensorsEntry> wanted, const NameRules& rules, Tensors& tensors);
  void find_absent(std::span<const io::SafetensorsEntry> wanted, const NameRules& rules);
  void check_rest(const NameRules& rules, const Tensors& all, const Tensors& rest);
  void require_fit(const fs::path& path) const;
};

// Takes what it finds out of `tensors`.
void ModelDirectory::Matching::match(std::span<const io::SafetensorsEntry> wanted, const NameRules& rules,
                                     Tensors& tensors) {
  for (const io::SafetensorsEntry& entry : wanted) {
    auto at = tensors.find(entry.name);
    for (const NameRules::Tie& tie : rules.ties) {
      if (at == tensors.end() && tie.to == entry.name) at = tensors.find(tie.name);
    }
    if (at == tensors.end()) {
      sources.emplace_back();
      continue;
    }
    sources.push_back(at->second);
    const io::SafetensorsEntry& found = *at->second.entry;
    if (found.shape != entry.shape || !is_parameter_type(found.dtype)) {
      other.push_back(fmt::format("{} (is {}, should be float32, float16 or bfloat16 {})", found.name,
                                  type_text(found), entry.shape.to_string()));
    }
    tensors.erase(at);
  }
}

// What is missing as a whole part may be.
void ModelDirectory::Matching::find_absent(std::span<const io::SafetensorsEntry> wanted,
                                           const NameRules& rules) {
  std::vector<bool> allowed(wanted.size(), false);
  for (const NameRules::Part& part : rules.optional_parts) {
    std::vector<std::string> names;
    bool is_absent = true;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i].name.starts_with(part.prefix)) continue;
      names.push_back(wanted[i].name);
      is_absent = is_absent && sources[i].entry == nullptr;
    }
    if (names.empty() || !is_absent) continue;
    absent.push_back(fmt::format("{} ({})", part.what, join(names)));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i].name.starts_with(part.prefix)) allowed[i] = true;
    }
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (sources[i].entry == nullptr && !allowed[i]) missing.push_back(wanted[i].name);
  }
}

// What is no parameter must be a known companion of one, and say nothing new.
void ModelDirectory::Matching::check_rest(const NameRules& rules, const Tensors& all, const Tensors& rest) {
  for (const auto& [name, tensor] : rest) {
    const io::SafetensorsEntry& entry = *tensor.entry;
    const auto tie =
        std::find_if(rules.ties.begin(), rules.ties.end(),
                     [&, &wanted = name](const NameRules::Tie& known) { return known.name == wanted; });
    const bool is_counter =
        std::find(rules.counters.begin(), rules.counters.end(), name) != rules.counters.end();
    if (tie != rules.ties.end() && all.contains(tie->to)) {
      const Tensor& twin = all.at(tie->to);
      const bool comparable = is_parameter_type(entry.dtype) && is_parameter_type(twin.entry->dtype) &&
                              entry.shape == twin.entry->shape;
      const auto same_bits = [&] {
        const std::vector<float> a = floats_of(*tensor.file, entry), b = floats_of(*twin.file, *twin.entry);
        return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
      };
      if (!comparable || !same_bits())
        unequal.push_back(fmt::format("{} (to {})", entry.name, twin.entry->name));
    } else if (is_counter) {
      const bool counts =
          (entry.dtype == DType::i64 && counts_up<std::int64_t>(bytes_of(*tensor.file, entry))) ||
          (entry.dtype == DType::i32 && counts_up<std::int32_t>(bytes_of(*tensor.file, entry)));
      if (!counts) unequal.push_back(fmt::format("{} (to 0, 1, 2, ...)", entry.name));
    } else if (!is_step_count(name, entry, rules)) {
      unknown.push_back(entry.name);
    }
  }
}

void ModelDirectory::Matching::require_fit(const fs::path& path) const {
  std::vector<std::string> parts;
  const auto add = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) parts.push_back(fmt::format("{}: {}", what, join(names)));
  };
  add("missing", missing);
  add("unknown", unknown);
  add("of another shape or type", other);
  add("not equal", unequal);
  add("there twice", twice);
  if (!parts.empty()) {
    fail(code, "{} does not hold the parameters of this network; {}", path.string(), join(parts, "; "));
  }
}

std::vector<std::string> ModelDirectory::read(std::span<const io::SafetensorsEntry> wanted,
                                              const NameRules& rules) const {
  Matching matching;
  const Tensors all = by_name(rules, matching.twice);
  Tensors rest = all;
  matching.match(wanted, rules, rest);
  matching.find_absent(wanted, rules);
  matching.check_rest(rules, all, rest);
  matching.require_fit(path_);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Tensor& source = matching.sources[i];
    if (source.entry == nullptr) continue;
    auto* const out = static_cast<float*>(const_cast<void*>(wanted[i].data));
    read_floats(*source.file, *source.entry, {out, static_cast<std::size_t>(wanted[i].shape.elements())});
  }
  return matching.absent;
}

}  // namespace motley::train
