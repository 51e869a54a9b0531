#include "io/bert_pack.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "core/error.h"
#include "io/bert_shard_file.h"

namespace motley::io {
namespace {

// The largest of the ids of a member; the member is of 32-bit ids.
std::uint32_t largest_of(const BertMember& member, const std::byte* row) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < member.length; ++i) {
    std::uint32_t value;
    std::memcpy(&value, row + member.offset + i * sizeof(value), sizeof(value));
    largest = std::max(largest, value);
  }
  return largest;
}

// A record with 32-bit ids as one with 16-bit ids.
void narrow_record(const std::vector<BertMember>& wide, const std::vector<BertMember>& narrow,
                   const std::byte* from, std::byte* to) {
  for (std::size_t m = 0; m < wide.size(); ++m) {
    const std::byte* source = from + wide[m].offset;
    std::byte* out = to + narrow[m].offset;
    if (wide[m].dtype == narrow[m].dtype) {
      std::memcpy(out, source, wide[m].length * size_of(wide[m].dtype));
      continue;
    }
    for (std::size_t i = 0; i < wide[m].length; ++i)
      std::memcpy(out + 2 * i, source + 4 * i, 2);  // little-endian
  }
}

}  // namespace

std::vector<ShardBlock> blocks_of_rank(const RowSource& source, int rank, int ranks) {
  std::uint64_t count = 0;
  for (const Shard& shard : source.shards) count += (shard.rows + shard.block_rows - 1) / shard.block_rows;
  const auto begin_of = [&](int of) {
    return count * static_cast<std::uint64_t>(of) / static_cast<std::uint64_t>(ranks);
  };
  const std::uint64_t begin = begin_of(rank), end = begin_of(rank + 1);
  std::vector<ShardBlock> blocks;
  std::uint64_t index = 0, first_of_shard = 0;
  for (std::size_t i = 0; i < source.shards.size(); ++i) {
    const Shard& shard = source.shards[i];
    for (std::uint64_t row = 0; row < shard.rows; row += shard.block_rows, ++index) {
      if (index >= begin && index < end)
        blocks.push_back({i, row, std::min(shard.block_rows, shard.rows - row), first_of_shard + row});
    }
    first_of_shard += shard.rows;
  }
  return blocks;
}

BertPacker::BertPacker(const RowSource& source, const std::string& file, std::uint64_t offset, DType id)
    : source_(source), packed_(source.bert.value()), file_(file, O_WRONLY, ExitCode::input), offset_(offset) {
  MOTLEY_CHECK(packed_.id == DType::u32 && !source.shards.empty());
  packed_.id = id;
}

BertPacker::~BertPacker() = default;

void BertPacker::pack(const ShardBlock& block) {
  try {
    decode_and_write(block);
  } catch (const std::bad_alloc&) {
    fail(ExitCode::device, "{}: the memory of this machine ran out at {} rows that are decoded together",
         source_.shards[block.shard].path, block.rows);
  }
}

void BertPacker::decode_and_write(const ShardBlock& block) {
  const BertLayout& layout = *source_.bert;
  if (!shard_ || open_shard_ != block.shard) {
    const Shard& shard = source_.shards[block.shard];
    shard_ = std::make_unique<BertShardFile>(shard.path, shard.rows, layout, source_.limits);
    open_shard_ = block.shard;
  }
  const std::size_t wide_bytes = layout.row_bytes(), bytes = packed_.row_bytes();
  wide_.resize(block.rows * wide_bytes);
  shard_->decode(block.first, block.rows, wide_.data());

  const std::vector<BertMember> wide = members_of(layout), narrow = members_of(packed_);
  for (std::uint64_t row = 0; row < block.rows; ++row) {
    for (const BertMember& member : wide) {
      if (member.dtype == DType::u32)
        largest_id_ =
            std::max<std::uint64_t>(largest_id_, largest_of(member, wide_.data() + row * wide_bytes));
    }
  }
  const std::byte* records = wide_.data();
  if (packed_.id == DType::u16) {
    if (largest_id_ > static_cast<std::uint64_t>(largest_u16)) return;
    narrow_.resize(block.rows * bytes);
    for (std::uint64_t row = 0; row < block.rows; ++row)
      narrow_record(wide, narrow, wide_.data() + row * wide_bytes, narrow_.data() + row * bytes);
    records = narrow_.data();
  }
  file_.write_at(offset_ + block.first_in_set * bytes, records, block.rows * bytes);
}

}  // namespace motley::io
