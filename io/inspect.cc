#include "io/inspect.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.h"
#include "core/units.h"
#include "io/bert_set.h"
#include "io/bert_values.h"
#include "io/dataset_info.h"
#include "io/hdf5.h"
#include "io/image_set.h"
#include "io/integer_column.h"

namespace motley::io {
namespace {

constexpr int deepest_group = 8;  // a file may link a group into itself
constexpr std::size_t classes_shown_at_most = 100;
// A few bytes of HDF5 can claim 2^63 rows.
constexpr std::uint64_t rows_read_at_most = 100'000'000;
constexpr std::uint64_t records_read_at_most = 1'000'000;

// " among the first 100000000 samples" when that is not all of them.
std::string among_the_first(std::uint64_t rows, const char* what) {
  return rows > rows_read_at_most ? fmt::format(" among the first {} {}", rows_read_at_most, what) : "";
}

// "values 0 to 9"; nothing to say about what is not a column of integers.
std::string describe_values(hid_t dataset, const std::string& path, const DatasetInfo& info) {
  if (!info.is_integer() || info.extents.size() != 1 || info.extents[0] == 0) return {};
  if (!info.missing_filter.empty() || !info.written) return {};
  std::string text;
  const auto describe = [&]<class T>(T) {
    std::optional<T> smallest, largest;
    visit_blocks_as<T>(dataset, fmt::format("{}, data set `{}`", path, info.name), 0,
                       std::min(info.extents[0], rows_read_at_most),
                       [&](std::uint64_t, std::span<const T> values) {
                         const auto [low, high] = std::minmax_element(values.begin(), values.end());
                         smallest = smallest ? std::min(*smallest, *low) : *low;
                         largest = largest ? std::max(*largest, *high) : *high;
                       });
    text = fmt::format(", values {} to {}{}", *smallest, *largest, among_the_first(info.extents[0], "rows"));
  };
  if (info.dtype == DType::u64) {
    describe(std::uint64_t{});
  } else {
    describe(std::int64_t{});
  }
  return text;
}

void describe_group(hid_t group, hid_t file, const std::string& path, const std::string& prefix, int depth,
                    std::string& text) {
  for (const std::string& name : link_names(group)) {
    const std::string full_name = prefix + name;
    const Hdf5Handle object(H5Oopen(group, name.c_str(), H5P_DEFAULT), H5Oclose);
    if (!object.valid()) {
      text += fmt::format("  {}: a link to something that is not there\n", full_name);
    } else if (H5Iget_type(object.get()) == H5I_GROUP && depth < deepest_group) {
      describe_group(object.get(), file, path, full_name + "/", depth + 1, text);
    } else if (H5Iget_type(object.get()) == H5I_DATASET) {
      const DatasetInfo info = describe_dataset(object.get(), file, path, full_name);
      text +=
          fmt::format("  {}: {} {}, {}, {} in the file{}\n", full_name, info.type, info.shape(), info.layout,
                      in_units(info.stored_bytes), describe_values(object.get(), path, info));
    }
  }
}

std::string describe_labels(const ImageSet& set, hid_t file) {
  const std::string where = set.source.path + ", data set `labels`";
  const Hdf5Handle dataset(MOTLEY_HDF5(where, ExitCode::input, H5Dopen2(file, "labels", H5P_DEFAULT)),
                           H5Dclose);
  // Keys that sort as numbers whatever their sign: negative ones first.
  std::map<std::pair<bool, std::uint64_t>, std::uint64_t> samples_of;
  const auto count = [&](std::uint64_t, const auto& labels) {
    for (const auto label : labels)
      ++samples_of[{std::cmp_greater_equal(label, 0), static_cast<std::uint64_t>(label)}];
  };
  visit_integers(dataset.get(), set.source.fields.at(1).dtype, where, 0,
                 std::min(set.source.rows, rows_read_at_most), count);

  std::string text = fmt::format("{} labels{}; samples per label:", samples_of.size(),
                                 among_the_first(set.source.rows, "samples"));
  std::size_t shown = 0;
  for (const auto& [key, samples] : samples_of) {
    if (shown++ == classes_shown_at_most) {
      text += fmt::format(" and {} more", samples_of.size() - classes_shown_at_most);
      break;
    }
    const auto& [not_negative, bits] = key;
    text += not_negative ? fmt::format(" {}:{}", bits, samples)
                         : fmt::format(" {}:{}", static_cast<std::int64_t>(bits), samples);
  }
  return text;
}

std::string describe_image_use(const std::string& path, hid_t file) {
  const ImageSet set = describe_image_set(path);
  std::string text = fmt::format(
      "motley reads it as an image set: {} samples of {} x {} pixels x {} channels, {}\n", set.source.rows,
      set.height, set.width, set.channels, set.source.packed() ? "packed" : "not packed");
  for (const Field& field : set.source.fields) {
    if (!field.packed)
      text += fmt::format("  `{}` is {}, so it is read through HDF5, which is slower\n", field.name,
                          field.why_unpacked);
  }
  return text + "  " + describe_labels(set, file) + "\n";
}

std::string describe_bert_use(const std::string& path) {
  const RowSource source = describe_bert_set({path}, 0, {});
  const BertLayout& layout = *source.bert;
  std::string text = fmt::format("motley reads it as {}: {} samples of {} tokens",
                                 source.packed() ? "packed BERT samples" : "a shard of BERT samples",
                                 source.rows, layout.seq_length);
  text += layout.predictions > 0 ? fmt::format(" and {} predictions", layout.predictions) : ", not masked";
  text += source.packed() ? fmt::format(", ids {}\n", name_of(layout.id))
                          : fmt::format(", decoded in blocks of {}\n", source.shards[0].block_rows);
  const std::uint64_t rows = std::min(source.rows, records_read_at_most);
  const BertValues values = read_bert_values(source, rows);
  text += fmt::format("  token ids {} to {}, {:.1f} tokens per sample{}", values.smallest_id,
                      values.largest_id, static_cast<double>(values.tokens) / static_cast<double>(rows),
                      rows < source.rows ? fmt::format(" among the first {} samples", rows) : "");
  return text + "\n";
}

std::string describe_use(const std::string& path, hid_t file) {
  const bool bert =
      H5Lexists(file, "samples", H5P_DEFAULT) > 0 || H5Lexists(file, "input_ids", H5P_DEFAULT) > 0;
  try {
    return bert ? describe_bert_use(path) : describe_image_use(path, file);
  } catch (const Error& error) {
    return fmt::format("motley cannot read it as {}: {}\n", bert ? "BERT samples" : "an image set",
                       error.what());
  }
}

}  // namespace

std::string inspect(const std::string& path) {
  const Hdf5Lock lock;
  const Hdf5Handle file = open_hdf5(path);
  std::string datasets;
  describe_group(file.get(), file.get(), path, "", 0, datasets);
  if (datasets.empty()) datasets = "  no data sets\n";
  return path + "\n" + datasets + describe_use(path, file.get());
}

}  // namespace motley::io
