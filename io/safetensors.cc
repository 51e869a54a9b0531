#include "io/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "core/descriptor.h"
#include "core/files.h"
#include "core/json.h"

namespace motley::io {
namespace {

constexpr std::uint64_t prefix_bytes = 8;
constexpr std::uint64_t header_bytes_limit = 100'000'000;  // the reference implementation's
constexpr std::uint64_t alignment = 64;
constexpr const char* metadata_key = "__metadata__";

struct DTypeName {
  DType dtype;
  const char* name;
};
constexpr DTypeName dtype_names[] = {{DType::f32, "F32"},   {DType::f64, "F64"}, {DType::f16, "F16"},
                                     {DType::bf16, "BF16"}, {DType::u8, "U8"},   {DType::i8, "I8"},
                                     {DType::u16, "U16"},   {DType::i16, "I16"}, {DType::u32, "U32"},
                                     {DType::i32, "I32"},   {DType::u64, "U64"}, {DType::i64, "I64"}};

const char* file_name_of(DType dtype) {
  for (const auto& entry : dtype_names) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "?";
}

std::optional<DType> dtype_named(const std::string& name) {
  for (const auto& entry : dtype_names) {
    if (name == entry.name) return entry.dtype;
  }
  return std::nullopt;
}

std::uint64_t size_of_file(const Descriptor& file, const std::string& path, ExitCode code) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(code, "cannot read {}: {}", path, system_message(errno));
  if (!S_ISREG(status.st_mode)) {
    fail(code, "{} is {}; a safetensors file was expected", path,
         S_ISDIR(status.st_mode) ? "a directory" : "not a regular file");
  }
  return static_cast<std::uint64_t>(status.st_size);
}

std::string make_header(std::span<const SafetensorsEntry> tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[metadata_key] = metadata;
  std::uint64_t offset = 0;
  for (const SafetensorsEntry& tensor : tensors) {
    MOTLEY_CHECK(tensor.name != metadata_key && !header.contains(tensor.name));
    const std::uint64_t bytes = static_cast<std::uint64_t>(tensor.shape.elements()) * size_of(tensor.dtype);
    MOTLEY_CHECK(tensor.data != nullptr || bytes == 0);
    nlohmann::ordered_json shape = nlohmann::ordered_json::array();
    for (int i = 0; i < tensor.shape.rank(); ++i) shape.push_back(tensor.shape[i]);
    header[tensor.name] = {{"dtype", file_name_of(tensor.dtype)},
                           {"shape", std::move(shape)},
                           {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.append((alignment - (prefix_bytes + text.size()) % alignment) % alignment, ' ');
  return text;
}

// Parses a header that comes from who knows where: JSON's own rules, and no key twice in one object, which
// JSON parsers let pass and which would let two readers see two different files.
Json parse_header(const std::string& text, const std::string& where, ExitCode code) {
  constexpr int deepest = 3;  // { "tensor": { "shape": [ ...
  std::vector<std::set<std::string>> keys;
  const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      fail(code, "{}: the header names {} twice", where,
           parsed.dump(-1, ' ', true, Json::error_handler_t::replace));
    }
    if (depth > deepest) fail(code, "{}: the header is nested deeper than a safetensors header is", where);
    return true;
  };
  try {
    return Json::parse(text, callback);
  } catch (const Json::exception& error) {
    fail(code, "{}: the header is not JSON: {}", where, error.what());
  }
}

// What is wrong with one tensor of a header is said in the same way everywhere.
struct TensorErrors {
  const std::string& where;
  const std::string& name;
  ExitCode code;

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    motley::fail(code, "{}: tensor \"{}\": {}", where, name,
                 fmt::format(format, std::forward<Args>(args)...));
  }
};

std::uint64_t to_extent(const Json& value, const TensorErrors& errors) {
  const bool fits =
      value.is_number_unsigned() &&
      value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!fits) errors.fail("has {} where a whole number was expected", value.dump());
  return value.get<std::uint64_t>();
}

Shape parse_shape(const Json& json, const TensorErrors& errors) {
  if (!json.is_array()) errors.fail("its shape is {}; a list of extents was expected", json.dump());
  if (json.size() > static_cast<std::size_t>(Shape::max_rank)) {
    errors.fail("has {} dimensions; at most {} were expected", json.size(), Shape::max_rank);
  }
  Shape shape;
  for (const Json& extent : json) shape.append(static_cast<std::int64_t>(to_extent(extent, errors)));
  return shape;
}

// None when the product, or a part of it on the way, does not fit the integers that Shape counts in.
std::optional<std::uint64_t> bytes_of(const Shape& shape, DType dtype) {
  auto bytes = static_cast<std::int64_t>(size_of(dtype));
  for (int i = 0; i < shape.rank(); ++i) {
    if (__builtin_mul_overflow(bytes, shape[i], &bytes)) return std::nullopt;
  }
  return static_cast<std::uint64_t>(bytes);
}

// An entry and the end of its bytes; offsets count from the end of the header.
struct ParsedTensor {
  SafetensorsEntry entry;
  std::uint64_t end = 0;
};

ParsedTensor parse_tensor(const std::string& where, const std::string& name, const Json& json,
                          std::uint64_t data_bytes, ExitCode code) {
  const TensorErrors errors{where, name, code};
  const bool has_all = json.is_object() && json.size() == 3 && json.contains("dtype") &&
                       json.contains("shape") && json.contains("data_offsets");
  if (!has_all) errors.fail("its entry is not exactly dtype, shape and data_offsets");
  if (!json["dtype"].is_string()) errors.fail("its dtype is {}; a name was expected", json["dtype"].dump());
  const auto type_name = json["dtype"].get<std::string>();
  const std::optional<DType> dtype = dtype_named(type_name);
  if (!dtype) errors.fail("its dtype is \"{}\", which motley does not know", type_name);

  ParsedTensor tensor;
  tensor.entry = {name, *dtype, parse_shape(json["shape"], errors), nullptr, 0};
  const Json& range = json["data_offsets"];
  if (!range.is_array() || range.size() != 2)
    errors.fail("its data_offsets are {}; two numbers were expected", range.dump());
  tensor.entry.offset = to_extent(range[0], errors);
  tensor.end = to_extent(range[1], errors);
  if (tensor.entry.offset > tensor.end || tensor.end > data_bytes) {
    errors.fail("its bytes are {} to {}; a range inside the {} bytes of data was expected",
                tensor.entry.offset, tensor.end, data_bytes);
  }
  const std::optional<std::uint64_t> expected = bytes_of(tensor.entry.shape, *dtype);
  if (expected != tensor.end - tensor.entry.offset) {
    errors.fail("has {} bytes; {} {} takes {}", tensor.end - tensor.entry.offset, type_name,
                tensor.entry.shape.to_string(),
                expected ? std::to_string(*expected) : "more than can be counted");
  }
  return tensor;
}

// The tensors must tile the data: no overlap, no hole, nothing left over.
void check_tiling(const std::string& where, const std::vector<ParsedTensor>& sorted, std::uint64_t data_bytes,
                  ExitCode code) {
  std::uint64_t end = 0;
  for (const ParsedTensor& tensor : sorted) {
    if (tensor.entry.offset != end) {
      TensorErrors{where, tensor.entry.name, code}.fail(
          "its bytes begin at {}; expected {}, where {}", tensor.entry.offset, end,
          tensor.entry.offset < end ? "the tensor before it ends: they overlap"
                                    : "the one before it ends: there is a hole");
    }
    end = tensor.end;
  }
  if (end != data_bytes) {
    fail(code, "{}: has {} bytes of data; the tensors in its header take {}", where, data_bytes, end);
  }
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const SafetensorsEntry> tensors,
                       const std::map<std::string, std::string>& metadata, ExitCode code) {
  std::string header;
  try {
    header = make_header(tensors, metadata);
  } catch (const Json::exception& error) {
    fail(code, "cannot write {}: a name is not UTF-8 text: {}", path.string(), error.what());
  }
  const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC, code);
  try {
    std::array<std::uint8_t, prefix_bytes> prefix{};
    for (std::size_t i = 0; i < prefix.size(); ++i)
      prefix[i] = static_cast<std::uint8_t>(header.size() >> (8 * i));
    file.write_all(prefix.data(), prefix.size());
    file.write_all(header.data(), header.size());
    for (const SafetensorsEntry& tensor : tensors) {
      file.write_all(tensor.data,
                     static_cast<std::uint64_t>(tensor.shape.elements()) * size_of(tensor.dtype));
    }
    file.sync();
  } catch (const Error&) {
    ::unlink(path.c_str());
    throw;
  }
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, ExitCode code)
    : path_(path), code_(code) {
  const std::string where = path.string();
  const Descriptor file(path, O_RDONLY, code);
  const std::uint64_t file_bytes = size_of_file(file, where, code);
  if (file_bytes < prefix_bytes) {
    fail(code, "{}: has {} bytes; a safetensors file has at least {}", where, file_bytes, prefix_bytes);
  }
  std::array<std::uint8_t, prefix_bytes> prefix{};
  file.read_at(0, prefix.data(), prefix.size());
  std::uint64_t header_bytes = 0;
  for (std::size_t i = 0; i < prefix.size(); ++i)
    header_bytes |= static_cast<std::uint64_t>(prefix[i]) << (8 * i);
  if (header_bytes > header_bytes_limit) {
    fail(code, "{}: announces a header of {} bytes; at most {} were expected: is it a safetensors file?",
         where, header_bytes, header_bytes_limit);
  }
  if (header_bytes > file_bytes - prefix_bytes) {
    fail(code, "{}: announces a header of {} bytes, but only {} follow: the file was cut short", where,
         header_bytes, file_bytes - prefix_bytes);
  }
  std::string text(header_bytes, '\0');
  file.read_at(prefix_bytes, text.data(), header_bytes);
  if (!text.starts_with('{'))
    fail(code, "{}: the header does not begin with '{{': is it a safetensors file?", where);

  const Json header = parse_header(text, where, code);
  const std::uint64_t data_begin = prefix_bytes + header_bytes, data_bytes = file_bytes - data_begin;
  std::vector<ParsedTensor> parsed;
  for (const auto& [name, json] : header.items()) {
    if (name != metadata_key) {
      parsed.push_back(parse_tensor(where, name, json, data_bytes, code));
      continue;
    }
    const bool texts = json.is_object() && std::all_of(json.begin(), json.end(),
                                                       [](const Json& value) { return value.is_string(); });
    if (!texts) fail(code, "{}: \"{}\" is not a map from text to text", where, metadata_key);
    metadata_ = json.get<std::map<std::string, std::string>>();
  }
  // Empty tensors sort before the one that begins where they are.
  std::sort(parsed.begin(), parsed.end(), [](const ParsedTensor& a, const ParsedTensor& b) {
    return std::tie(a.entry.offset, a.end) < std::tie(b.entry.offset, b.end);
  });
  check_tiling(where, parsed, data_bytes, code);
  for (ParsedTensor& tensor : parsed) {
    tensor.entry.offset += data_begin;
    tensors_.push_back(std::move(tensor.entry));
  }
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const SafetensorsEntry& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

void SafetensorsFile::read(const SafetensorsEntry& entry, std::span<std::byte> out) const {
  MOTLEY_CHECK(out.size() == static_cast<std::uint64_t>(entry.shape.elements()) * size_of(entry.dtype));
  const Descriptor file(path_, O_RDONLY, code_);
  file.read_at(entry.offset, out.data(), out.size());
}

}  // namespace motley::io
