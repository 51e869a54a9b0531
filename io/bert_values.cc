#include "io/bert_values.h"

#include <fcntl.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "core/descriptor.h"
#include "core/error.h"
#include "io/bert_check.h"
#include "io/bert_shard_file.h"

namespace motley::io {
namespace {

constexpr std::uint64_t rows_at_once = 4096;

void add(const RowSource& source, const std::byte* records, std::uint64_t rows, BertValues& values) {
  const BertLayout& layout = *source.bert;
  std::vector<std::int32_t> ids(layout.tokens()), mask(layout.tokens());
  for (std::uint64_t row = 0; row < rows; ++row) {
    unpack(layout, records + row * layout.row_bytes(), {.input_ids = ids, .input_mask = mask});
    for (const std::int32_t id : ids) {
      const std::uint64_t value = static_cast<std::uint32_t>(id);
      values.smallest_id = std::min(values.smallest_id, value);
      values.largest_id = std::max(values.largest_id, value);
    }
    values.tokens += static_cast<std::uint64_t>(std::count(mask.begin(), mask.end(), 1));
  }
}

void read_packed(const RowSource& source, std::uint64_t first, std::uint64_t count, Window& window) {
  const Descriptor file(source.path, O_RDONLY, ExitCode::input);
  window.rows = count;
  window.ids.resize(count);
  std::iota(window.ids.begin(), window.ids.end(), first);
  file.read_at(source.fields[0].file_offset + first * source.bert->row_bytes(), window.fields[0].data(),
               count * source.bert->row_bytes());
  check_bert_rows(source, window);
}

}  // namespace

BertValues read_bert_values(const RowSource& source, std::uint64_t rows) {
  MOTLEY_CHECK(source.bert && source.shards.size() <= 1 && rows <= source.rows);
  std::unique_ptr<BertShardFile> shard;
  std::uint64_t step = rows_at_once;
  if (!source.shards.empty()) {
    const Shard& described = source.shards[0];
    shard = std::make_unique<BertShardFile>(described.path, described.rows, *source.bert, source.limits);
    step = described.block_rows;
  }
  BertValues values;
  values.smallest_id = std::numeric_limits<std::uint64_t>::max();
  Window window;
  window.fields.emplace_back(step * source.bert->row_bytes());
  for (std::uint64_t first = 0; first < rows; first += step) {
    const std::uint64_t count = std::min(step, rows - first);
    if (shard) {
      shard->decode(first, count, window.fields[0].data());
    } else {
      read_packed(source, first, count, window);
    }
    add(source, window.fields[0].data(), count, values);
  }
  return values;
}

}  // namespace motley::io
