#include "io/bert_pack.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "bert_files.h"
#include "core/files.h"
#include "io/bert_set.h"
#include "io/bert_shard_file.h"
#include "io/bert_values.h"
#include "support/paths.h"

namespace motley::io {
namespace {

std::vector<std::byte> packed_records(const RowSource& packed) {
  std::vector<std::byte> records(packed.rows * packed.bert->row_bytes());
  Descriptor(packed.path, 0, ExitCode::input)
      .read_at(packed.fields[0].file_offset, records.data(), records.size());
  return records;
}

class BertPack : public ::testing::Test {
 protected:
  // The shards as motley data pack describes them.
  RowSource make_shards(const std::vector<test::ShardForm>& forms) const {
    std::vector<std::string> paths;
    for (const test::ShardForm& form : forms) {
      paths.push_back((directory.path() / fmt::format("{}.h5", paths.size())).string());
      test::write_shard(paths.back(), form);
    }
    return describe_bert_set(paths, 0, {});
  }

  // As `ranks` ranks do it, one after the other; the largest id that any of them saw.
  std::uint64_t pack(const RowSource& source, DType id, int ranks) const {
    BertLayout layout = *source.bert;
    layout.id = id;
    const std::uint64_t offset = create_packed_bert(out, layout, source.rows);
    std::uint64_t largest = 0;
    for (int rank = ranks; rank-- > 0;) {
      BertPacker packer(source, out, offset, id);
      for (const ShardBlock& block : blocks_of_rank(source, rank, ranks)) packer.pack(block);
      packer.finish();
      largest = std::max(largest, packer.largest_id());
    }
    return largest;
  }

  test::TemporaryDirectory directory;
  std::string out = (directory.path() / "packed.h5").string();
};

TEST_F(BertPack, blocks_are_divided_among_ranks_without_gap_or_overlap) {
  RowSource source;
  source.shards = {{"a", 3000, 1024}, {"b", 1, 1}, {"c", 2048, 1024}};
  source.rows = 5049;
  for (const int ranks : {1, 2, 3, 5, 11}) {
    std::uint64_t next = 0, most = 0, least = 100;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto blocks = blocks_of_rank(source, rank, ranks);
      most = std::max<std::uint64_t>(most, blocks.size()),
      least = std::min<std::uint64_t>(least, blocks.size());
      for (const ShardBlock& block : blocks) {
        EXPECT_EQ(block.first_in_set, next);
        const std::uint64_t before = block.shard == 0 ? 0 : block.shard == 1 ? 3000 : 3001;
        EXPECT_EQ(before + block.first, next);
        next += block.rows;
      }
    }
    EXPECT_EQ(next, 5049u) << ranks;
    EXPECT_LE(most - least, 1u);
  }
}

TEST_F(BertPack, packed_records_are_those_of_the_shards_whoever_packed_them) {
  const RowSource source = make_shards({{.rows = 2500, .two_dimensions = {{1024, 5}, 1}},
                                        {.rows = 7, .first = 2500},
                                        {.rows = 1100, .first = 2507, .two_dimensions = {{1024, 16}, 1}}});
  std::string first;
  for (const int ranks : {1, 2, 5}) {
    EXPECT_LT(pack(source, DType::u16, ranks), 1000u);
    const RowSource packed = describe_bert_set({out}, 0, {1000, 2, 512});
    ASSERT_EQ(packed.rows, source.rows);
    ASSERT_EQ(packed.bert, (BertLayout{16, 4, DType::u16}));
    const auto records = packed_records(packed);
    for (std::uint64_t row = 0; row < packed.rows; ++row)
      ASSERT_NO_FATAL_FAILURE(
          test::expect_record(*packed.bert, records.data() + row * packed.bert->row_bytes(), row));
    const std::string bytes = read_file(out, ExitCode::input);
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << ranks << " ranks made another file than one";
  }
}

TEST_F(BertPack, samples_that_are_not_masked_pack_into_four_members) {
  const RowSource source = make_shards({{.rows = 30, .predictions = 0}});
  pack(source, DType::u16, 1);
  const RowSource packed = describe_bert_set({out}, 0, {});
  EXPECT_EQ(packed.bert, (BertLayout{16, 0, DType::u16}));
  test::expect_record(*packed.bert, packed_records(packed).data() + 29 * packed.bert->row_bytes(), 29);
}

TEST_F(BertPack, an_id_that_needs_more_than_two_bytes_is_noticed) {
  const RowSource source =
      make_shards({{.rows = 30, .spoil = [](const std::string& name, std::vector<std::int64_t>& values) {
                      if (name == "masked_lm_ids") values[29 * 4 + 3] = 65536;
                    }}});
  EXPECT_EQ(pack(source, DType::u16, 2), 65536u);
  EXPECT_EQ(pack(source, DType::u32, 2), 65536u);
  const RowSource packed = describe_bert_set({out}, 0, {});
  std::int32_t ids[4];
  unpack(*packed.bert, packed_records(packed).data() + 29 * packed.bert->row_bytes(), {.masked_lm_ids = ids});
  EXPECT_EQ(ids[3], 65536);
}

// --- Files made by h5py (tests/golden/io.py) --------------------------------------------------------------

std::int64_t golden_value(std::string_view member, std::int64_t row, std::int64_t column) {
  if (member == "input_ids") return (row * 131 + column * 17) % 30522;
  if (member == "input_mask") return column < 1 + row % 32 ? 1 : 0;
  if (member == "segment_ids") return column >= row % 7 + 3 ? 1 : 0;
  if (member == "masked_lm_positions") return (row + column * 3) % (1 + row % 32);
  if (member == "masked_lm_ids") return (row * 977 + column) % 30522;
  return row % 3 == 0 ? 1 : 0;
}

void expect_golden(const BertLayout& layout, const std::vector<std::byte>& records) {
  for (std::int64_t row = 0; row < 300; ++row) {
    for (const BertMember& member : members_of(layout)) {
      std::vector<std::int32_t> values(member.length);
      unpack_member(member, records.data() + static_cast<std::size_t>(row) * layout.row_bytes(),
                    values.data());
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(values[i], golden_value(member.name, row, static_cast<std::int64_t>(i)))
            << member.name << "[" << i << "] of row " << row;
    }
  }
}

TEST(BertGolden, shards_that_h5py_wrote_are_read) {
  const std::string path = test::source_path("golden/io_bert_shard.h5").string();
  const RowSource source = describe_bert_set({path}, 0, {30522, 2, 512});
  ASSERT_EQ(source.bert, (BertLayout{32, 5, DType::u16}));
  ASSERT_EQ(source.rows, 300u);
  std::vector<std::byte> records(300 * source.bert->row_bytes());
  BertShardFile(path, 300, *source.bert, source.limits).decode(0, 300, records.data());
  expect_golden(*source.bert, records);
}

TEST(BertGolden, structured_arrays_that_h5py_wrote_are_packed_files) {
  const std::string path = test::source_path("golden/io_bert_packed.h5").string();
  const RowSource source = describe_bert_set({path}, 0, {30522, 2, 512});
  ASSERT_TRUE(source.packed());
  ASSERT_EQ(source.bert, (BertLayout{32, 5, DType::u16}));
  expect_golden(*source.bert, packed_records(source));
  const BertValues values = read_bert_values(source, 300);
  EXPECT_EQ(values.smallest_id, 0u);
  EXPECT_EQ(values.largest_id, 30521u);
  EXPECT_EQ(values.tokens, 4830u);  // sum of input_mask, by NumPy
}

}  // namespace
}  // namespace motley::io
