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

constexpr const char* origin = "a row source";

template <class T>
T get(const Json& object, const char* key) {
  return json_get<T>(object, key, origin, ExitCode::internal);
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

std::string RowSource::where(std::uint64_t row) const {
  std::uint64_t left = row;
  for (const Shard& shard : shards) {
    if (left < shard.rows) return fmt::format("{}: row {}", shard.path, left);
    left -= shard.rows;
  }
  return fmt::format("{}: row {}", path, row);
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
  Json files = Json::array();
  for (const Shard& shard : shards)
    files.push_back({{"path", bytes_of(shard.path)}, {"rows", shard.rows}, {"block_rows", shard.block_rows}});
  Json json{{"path", bytes_of(path)}, {"rows", rows}, {"fields", list}, {"shards", files}};
  if (images)
    json["images"] = {{"classes", images->classes}, {"mean", images->mean}, {"deviation", images->deviation}};
  if (bert) {
    json["bert"] = {{"seq_length", bert->seq_length},
                    {"predictions", bert->predictions},
                    {"id", name_of(bert->id)},
                    {"vocab_size", limits.vocab_size},
                    {"type_vocab_size", limits.type_vocab_size},
                    {"max_position", limits.max_position},
                    {"vocab_xxh3", bytes_of(vocab_xxh3)}};
  }
  return json.dump();
}

RowSource RowSource::from_json(const std::string& text) {
  const Json json = parse_json(text, origin, ExitCode::internal);
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
  for (const Json& entry : get<Json>(json, "shards")) {
    source.shards.push_back({get_bytes(entry, "path"), get<std::uint64_t>(entry, "rows"),
                             get<std::uint64_t>(entry, "block_rows")});
  }
  if (json.contains("images")) {
    const Json images = get<Json>(json, "images");
    source.images = {get<std::int64_t>(images, "classes"), get<std::vector<double>>(images, "mean"),
                     get<std::vector<double>>(images, "deviation")};
  }
  if (!json.contains("bert")) return source;
  const Json bert = get<Json>(json, "bert");
  source.bert = {get<std::int64_t>(bert, "seq_length"), get<std::int64_t>(bert, "predictions"),
                 dtype_named(get<std::string>(bert, "id"))};
  source.limits = {get<std::int64_t>(bert, "vocab_size"), get<std::int64_t>(bert, "type_vocab_size"),
                   get<std::int64_t>(bert, "max_position")};
  source.vocab_xxh3 = get_bytes(bert, "vocab_xxh3");
  return source;
}

}  // namespace motley::io
