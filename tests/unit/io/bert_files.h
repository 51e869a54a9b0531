// Made-up BERT shards for tests: every value is known from its row and column.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "io/bert_record.h"
#include "io/hdf5_text.h"
#include "test_files.h"

namespace motley::test {

// How a shard is made, and what is wrong with it.
struct ShardForm {
  std::uint64_t rows = 100;
  std::uint64_t first = 0;  // the number of its first row in the whole set
  hsize_t tokens = 16, predictions = 4;
  hid_t ids = H5T_STD_I32LE, flags = H5T_STD_I8LE;  // types in the file
  Layout two_dimensions = {}, one_dimension = {};
  bool shuffle = false;
  std::string without = {};     // a data set that is left out
  std::string vocab_xxh3 = {};  // left out when empty
  std::function<void(const std::string& name, std::vector<std::int64_t>& values)> spoil =
      {};  // changes what is written
};

constexpr std::int64_t bert_vocabulary = 1000;

// The value at `column` of row `row` of the whole set.
inline std::int64_t bert_value(std::string_view member, std::uint64_t row, std::uint64_t column,
                               std::uint64_t tokens) {
  const std::uint64_t mixed = (row * 2654435761U + column * 40503U) >> 3;
  if (member == "input_ids") return static_cast<std::int64_t>(mixed % bert_vocabulary);
  if (member == "input_mask") return column < tokens - row % tokens ? 1 : 0;
  if (member == "segment_ids") return column >= (row * 3) % tokens ? 1 : 0;
  if (member == "masked_lm_positions")
    return static_cast<std::int64_t>((column * 5 + row) % (tokens - row % tokens));
  if (member == "masked_lm_ids") return static_cast<std::int64_t>((mixed >> 2) % bert_vocabulary);
  return static_cast<std::int64_t>(row / 3 % 2);
}

inline void write_shard(const std::string& path, const ShardForm& form) {
  Hdf5File file(path);
  if (!form.vocab_xxh3.empty())
    io::write_text_attribute(file.id(), path, io::vocabulary_attribute, form.vocab_xxh3, ExitCode::internal);
  io::BertLayout layout{static_cast<std::int64_t>(form.tokens), static_cast<std::int64_t>(form.predictions)};
  for (const io::BertMember& member : io::members_of(layout)) {
    const std::string name(member.name);
    if (name == form.without) continue;
    std::vector<std::int64_t> values;
    for (std::uint64_t row = 0; row < form.rows; ++row) {
      for (std::size_t column = 0; column < member.length; ++column)
        values.push_back(bert_value(name, form.first + row, column, form.tokens));
    }
    std::vector<hsize_t> extents = {form.rows};
    if (member.array) extents.push_back(member.length);
    if (form.spoil) form.spoil(name, values);
    const bool wide = name == "input_ids" || name.starts_with("masked_lm");
    Layout lies = member.array ? form.two_dimensions : form.one_dimension;
    for (std::size_t i = 0; i < lies.chunk.size(); ++i) lies.chunk[i] = std::min(lies.chunk[i], extents[i]);
    lies.shuffle = form.shuffle;
    file.add(name.c_str(), extents, wide ? form.ids : form.flags, H5T_NATIVE_INT64, values.data(), lies);
  }
}

// Whether `record` is row `row` of the whole set.
inline void expect_record(const io::BertLayout& layout, const std::byte* record, std::uint64_t row) {
  for (const io::BertMember& member : io::members_of(layout)) {
    std::vector<std::int32_t> values(member.length);
    io::unpack_member(member, record, values.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], bert_value(member.name, row, i, layout.tokens()))
          << member.name << "[" << i << "] of row " << row;
    }
  }
}

}  // namespace motley::test
