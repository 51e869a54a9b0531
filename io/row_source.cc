#include "io/row_source.h"

#include <algorithm>
#include <utility>

#include "core/json.h"

namespace motley::io {
namespace {

constexpr DType all_dtypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::u8,  DType::i8,
                                DType::u16, DType::i16, DType::u32, DType::i32,  DType::u64, DType::i64};

DType dtype_named(const std::string& name) {
  for (const DType dtype : all_dtypes) {
    if (name_of(dtype) == name) return dtype;
  }
  fail(ExitCode::internal, "a row source names the type \"{}\", which does not exist", name);
}

constexpr const char* where = "a row source";

template <class T>
T get(const Json& object, const char* key) {
  return json_get<T>(object, key, where, ExitCode::internal);
}

// A path is bytes, not text; JSON is text. Invalid UTF-8 would not survive, so it goes as numbers.
std::vector<std::uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string get_bytes(const Json& object, const char* key) {
  const auto bytes = get<std::vector<std::uint8_t>>(object, key);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

bool RowSource::packed() const {
  return std::all_of(fields.begin(), fields.end(), [](const Field& field) { return field.packed; });
}

std::string RowSource::to_json() const {
  Json list = Json::array();
  for (const Field& field : fields) {
    Json row = Json::array();
    for (int i = 0; i < field.row.rank(); ++i) row.push_back(field.row[i]);
    list.push_back({{"name", field.name},
                    {"dtype", name_of(field.dtype)},
                    {"row", row},
                    {"packed", field.packed},
                    {"file_offset", field.file_offset},
                    {"why_unpacked", bytes_of(field.why_unpacked)}});
  }
  return Json{{"path", bytes_of(path)}, {"rows", rows}, {"fields", list}}.dump();
}

RowSource RowSource::from_json(const std::string& text) {
  const Json json = parse_json(text, where, ExitCode::internal);
  RowSource source;
  source.path = get_bytes(json, "path");
  source.rows = get<std::uint64_t>(json, "rows");
  for (const Json& entry : get<Json>(json, "fields")) {
    Field field;
    field.name = get<std::string>(entry, "name");
    field.dtype = dtype_named(get<std::string>(entry, "dtype"));
    for (const auto extent : get<std::vector<std::int64_t>>(entry, "row")) field.row.append(extent);
    field.packed = get<bool>(entry, "packed");
    field.file_offset = get<std::uint64_t>(entry, "file_offset");
    field.why_unpacked = get_bytes(entry, "why_unpacked");
    source.fields.push_back(std::move(field));
  }
  return source;
}

}  // namespace motley::io
