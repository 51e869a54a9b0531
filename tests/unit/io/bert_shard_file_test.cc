#include "io/bert_shard_file.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bert_files.h"
#include "core/files.h"
#include "io/bert_shard_header.h"
#include "support/paths.h"

namespace motley::io {
namespace {

constexpr BertLimits limits{test::bert_vocabulary, 2, 512};

class BertShardFileOn : public ::testing::Test {
 protected:
  // Decodes the blocks of `block` rows of a shard in a scattered order, and compares every value.
  void expect_decoded(const test::ShardForm& form, std::uint64_t block, DType id = DType::u16) {
    test::write_shard(path, form);
    const BertLayout layout{static_cast<std::int64_t>(form.tokens),
                            static_cast<std::int64_t>(form.predictions), id};
    BertShardFile shard(path, form.rows, layout, limits);
    const std::uint64_t blocks = (form.rows + block - 1) / block;
    for (std::uint64_t i = 0; i < blocks; ++i) {
      const std::uint64_t first =
          (i * 7 + 3) % blocks * block;  // 7 and the numbers of blocks have no common factor
      const std::uint64_t count = std::min(block, form.rows - first);
      std::vector<std::byte> records(count * layout.row_bytes(), std::byte{0xEE});
      shard.decode(first, count, records.data());
      for (std::uint64_t row = 0; row < count; ++row) {
        ASSERT_NO_FATAL_FAILURE(
            test::expect_record(layout, records.data() + row * layout.row_bytes(), form.first + first + row));
      }
    }
  }

  test::TemporaryDirectory directory;
  std::string path = (directory.path() / "shard.h5").string();
};

using BertShardFileTest = BertShardFileOn;

// Chunks that divide neither rows nor columns, and blocks that cut through them.
TEST_F(BertShardFileTest, gzip_chunks_of_a_few_columns) {
  expect_decoded({.rows = 100, .first = 40, .two_dimensions = {{25, 3}, 4}, .one_dimension = {{33}, 4}}, 25);
  expect_decoded({.rows = 103, .two_dimensions = {{25, 5}, 1}, .one_dimension = {{103}, 9}}, 30);
}

TEST_F(BertShardFileTest, the_shuffle_filter_with_and_without_gzip) {
  expect_decoded({.two_dimensions = {{30, 7}, 4}, .one_dimension = {{30}, 4}, .shuffle = true}, 30);
  expect_decoded({.two_dimensions = {{30, 7}}, .one_dimension = {{30}}, .shuffle = true}, 30);
}

TEST_F(BertShardFileTest, every_integer_type) {
  for (const hid_t ids : {H5T_STD_I16LE, H5T_STD_U16LE, H5T_STD_I32LE, H5T_STD_U32LE, H5T_STD_I64LE,
                          H5T_STD_U64LE, H5T_STD_I32BE, H5T_STD_I64BE}) {
    for (const hid_t flags : {H5T_STD_I8LE, H5T_STD_U8LE, H5T_STD_I64LE}) {
      for (const DType id : {DType::u16, DType::u32}) {
        expect_decoded({.rows = 20, .ids = ids, .flags = flags, .two_dimensions = {{8, 16}, 1}}, 8, id);
        expect_decoded({.rows = 20, .ids = ids, .flags = flags}, 8, id);
      }
    }
  }
}

TEST_F(BertShardFileTest, contiguous_and_plain_chunks) {
  expect_decoded({}, 17);
  expect_decoded({.two_dimensions = {{9, 4}}}, 17);
}

TEST_F(BertShardFileTest, samples_that_are_not_masked_have_four_members) {
  expect_decoded({.predictions = 0, .two_dimensions = {{30, 7}, 4}}, 30);
}

// Rows that were never written have the fill value, 0, and no chunk in the file.
TEST_F(BertShardFileTest, chunks_that_are_not_in_the_file_hold_zeros) {
  test::write_shard(path, {.rows = 40, .without = "segment_ids"});
  {
    const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    const hsize_t extents[] = {40, 16}, chunk[] = {10, 16}, some[] = {10, 16}, none[] = {0, 0};
    const Hdf5Handle space(H5Screate_simple(2, extents, nullptr), H5Sclose);
    const Hdf5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_chunk(creation.get(), 2, chunk);
    H5Pset_deflate(creation.get(), 1);
    const Hdf5Handle dataset(H5Dcreate2(file.get(), "segment_ids", H5T_STD_I8LE, space.get(), H5P_DEFAULT,
                                        creation.get(), H5P_DEFAULT),
                             H5Dclose);
    const Hdf5Handle memory(H5Screate_simple(2, some, nullptr), H5Sclose);
    H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, none, nullptr, some, nullptr);
    const std::vector<std::int8_t> ones(160, 1);
    H5Dwrite(dataset.get(), H5T_NATIVE_INT8, memory.get(), space.get(), H5P_DEFAULT, ones.data());
  }
  const BertLayout layout{16, 4, DType::u16};
  BertShardFile shard(path, 40, layout, limits);
  std::vector<std::byte> records(40 * layout.row_bytes(), std::byte{0xEE});
  shard.decode(0, 40, records.data());
  for (std::size_t row = 0; row < 40; ++row) {
    for (std::size_t i = 0; i < 16; ++i) {
      ASSERT_EQ(std::to_integer<int>(records[row * layout.row_bytes() + layout.segment_ids() + i]),
                row < 10 ? 1 : 0);
    }
  }
}

TEST_F(BertShardFileTest, blocks_are_layers_of_chunks_of_at_least_1024_rows) {
  const auto block_rows = [&](std::uint64_t rows, const test::Layout& lies) {
    test::write_shard(path, {.rows = rows, .tokens = 4, .predictions = 0, .two_dimensions = lies});
    return describe_bert_shard(open_hdf5(path).get(), path).block_rows;
  };
  EXPECT_EQ(block_rows(4000, {{1563, 2}}), 1563u);
  EXPECT_EQ(block_rows(4000, {{100, 2}}), 1100u);
  EXPECT_EQ(block_rows(4000, {}), 2048u);
  EXPECT_EQ(block_rows(50, {{7, 2}}), 50u);
}

// --- What is wrong ----------------------------------------------------------------------------------------

class WrongBertShardFile : public BertShardFileOn {
 protected:
  void expect_refused(const test::ShardForm& form, const std::string& sentence) {
    test::write_shard(path, form);
    const Hdf5Handle file = open_hdf5(path);
    test::expect_error(ExitCode::input, path + sentence, [&] { describe_bert_shard(file.get(), path); });
  }

  // `value` in place of the one at `index` of data set `name`.
  void expect_wrong_value(const std::string& name, std::size_t index, std::int64_t value,
                          const std::string& sentence,
                          test::ShardForm form = {.ids = H5T_STD_I64LE, .flags = H5T_STD_I64LE}) {
    form.spoil = [&](const std::string& at, std::vector<std::int64_t>& values) {
      if (at == name) values.at(index) = value;
    };
    for (const bool compressed : {false, true}) {
      if (compressed) form.two_dimensions = {{30, 5}, 1}, form.one_dimension = {{30}, 1};
      test::write_shard(path, form);
      const BertLayout layout{16, 4, DType::u16};
      BertShardFile shard(path, 100, layout, limits);
      std::vector<std::byte> records(60 * layout.row_bytes());
      shard.decode(0, 20, records.data());  // the wrong row is not among these
      test::expect_error(ExitCode::input, path + ": row " + sentence,
                         [&] { shard.decode(20, 60, records.data()); });
    }
  }
};

TEST_F(WrongBertShardFile, a_data_set_is_missing) {
  for (const char* name :
       {"input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids"}) {
    test::write_shard(path, {.without = name});
    const Hdf5Handle file = open_hdf5(path);
    test::expect_error_with(
        ExitCode::input,
        {fmt::format("{} has no data set `{}`; it has `", path, name), "`next_sentence_labels`"},
        [&] { describe_bert_shard(file.get(), path); });
  }
  expect_refused(
      {.predictions = 0, .without = "next_sentence_labels"},
      " has no data set `next_sentence_labels`; it has `input_ids`, `input_mask` and `segment_ids`");
}

TEST_F(WrongBertShardFile, a_shape_is_another) {
  test::Hdf5File file(path);
  const std::vector<std::int32_t> zeros(1000);
  const auto add = [&](const char* name, const std::vector<hsize_t>& extents, hid_t type = H5T_STD_I32LE) {
    file.add(name, extents, type, H5T_NATIVE_INT32, zeros.data());
  };
  const auto expect = [&](const std::string& sentence) {
    test::expect_error(ExitCode::input, path + sentence, [&] { describe_bert_shard(file.id(), path); });
  };
  add("input_ids", {10, 0});
  expect(": data set `input_ids` has the shape [10, 0]; expected 1 to 65536 tokens per sample");
  file.remove("input_ids");
  add("input_ids", {10, 8});
  add("input_mask", {10, 9});
  expect(": data set `input_mask` has the shape [10, 9]; expected [10, 8], the shape of `input_ids`");
  file.remove("input_mask");
  add("input_mask", {9, 8});
  expect(": `input_ids` has 10 samples and `input_mask` has 9; expected as many");
  file.remove("input_mask");
  add("input_mask", {10});
  expect(": data set `input_mask` has the shape [10]; expected two dimensions [samples, numbers per sample]");
  file.remove("input_mask");
  add("input_mask", {10, 8}, H5T_IEEE_F32LE);
  expect(": data set `input_mask` holds float32; expected an integer type");
  file.remove("input_mask");
  add("input_mask", {10, 8});
  add("segment_ids", {10, 8});
  add("masked_lm_positions", {10, 9});
  add("masked_lm_ids", {10, 9});
  expect(": data set `masked_lm_positions` has the shape [10, 9]; expected 1 to 8 per sample");
  file.remove("masked_lm_positions");
  add("masked_lm_positions", {10, 3});
  expect(
      ": data set `masked_lm_ids` has the shape [10, 9]; expected [10, 3], the shape of "
      "`masked_lm_positions`");
  file.remove("masked_lm_ids");
  add("masked_lm_ids", {10, 3});
  add("next_sentence_labels", {10, 1});
  expect(": data set `next_sentence_labels` has the shape [10, 1]; expected one dimension [samples]");
}

TEST_F(WrongBertShardFile, there_are_no_samples) {
  expect_refused({.rows = 0}, ": data set `input_ids` is empty; expected at least one sample");
}

TEST_F(WrongBertShardFile, it_has_changed_since_it_was_described) {
  test::write_shard(path, {.rows = 30});
  test::expect_error(
      ExitCode::input,
      path +
          " has 30 samples of 16 tokens and 4 predictions here; 30 of 32 and 4 were expected: is it "
          "the same file on all machines?",
      [&] {
        BertShardFile(path, 30, {32, 4, DType::u16}, limits);
      });
}

TEST_F(WrongBertShardFile, a_value_is_out_of_range) {
  expect_wrong_value("input_ids", 42 * 16 + 5, 1000,
                     "42: `input_ids`[5] is 1000; expected 0 to 999 (the vocabulary has 1000 entries)");
  expect_wrong_value("input_ids", 42 * 16 + 15, -1,
                     "42: `input_ids`[15] is -1; expected 0 to 999 (the vocabulary has 1000 entries)");
  expect_wrong_value("masked_lm_ids", 20 * 4, 70000,
                     "20: `masked_lm_ids`[0] is 70000; expected 0 to 999 (the vocabulary has 1000 entries)");
  expect_wrong_value("masked_lm_positions", 79 * 4 + 3, 16,
                     "79: `masked_lm_positions`[3] is 16; expected 0 to 15 (the samples have 16 tokens)");
  expect_wrong_value("input_mask", 30 * 16, 2, "30: `input_mask`[0] is 2; expected 0 or 1");
  expect_wrong_value("segment_ids", 30 * 16 + 1, 2,
                     "30: `segment_ids`[1] is 2; expected 0 or 1 (the network knows 2 segments)");
  expect_wrong_value("next_sentence_labels", 66, -128, "66: `next_sentence_labels` is -128; expected 0 or 1",
                     {.flags = H5T_STD_I8LE});
  expect_wrong_value("next_sentence_labels", 66, 256, "66: `next_sentence_labels` is 256; expected 0 or 1");
}

TEST_F(WrongBertShardFile, a_mask_does_not_fit_the_rest) {
  const BertLayout layout{16, 4, DType::u16};
  std::vector<std::byte> records(100 * layout.row_bytes());
  const auto expect = [&](const auto& spoil, const std::string& sentence) {
    test::write_shard(path, {.spoil = spoil});
    BertShardFile shard(path, 100, layout, limits);
    shard.decode(20, 30, records.data());  // the wrong row is not among these
    test::expect_error(ExitCode::input, path + ": row " + sentence,
                       [&] { shard.decode(50, 50, records.data()); });
  };
  using Values = std::vector<std::int64_t>;
  expect(
      [](const std::string& name, Values& values) {
        if (name == "input_mask") std::fill_n(values.begin() + 70 * 16, 16, 0);
      },
      "70: `input_mask` has no token; expected at least one");
  expect(
      [](const std::string& name, Values& values) {
        if (name == "masked_lm_positions") values[71 * 4 + 2] = 9;  // the row has 9 tokens
        if (name == "masked_lm_ids") values[71 * 4 + 2] = 5;
      },
      "71: `masked_lm_positions`[2] is 9, where `input_mask` is 0; expected a token there");
}

TEST_F(WrongBertShardFile, a_value_is_beyond_the_id_type) {
  test::write_shard(path, {.spoil = [](const std::string& name, std::vector<std::int64_t>& values) {
                      if (name == "input_ids") values[3] = 65536;
                    }});
  std::vector<std::byte> records(100 * BertLayout{16, 4, DType::u32}.row_bytes());
  BertShardFile narrow(path, 100, {16, 4, DType::u16}, {});
  test::expect_error(
      ExitCode::input,
      path + ": row 0: `input_ids`[3] is 65536; expected 0 to 65535 (ids are stored as uint16)",
      [&] { narrow.decode(0, 100, records.data()); });
  const BertLayout wide{16, 4, DType::u32};
  BertShardFile(path, 100, wide, {}).decode(0, 100, records.data());
  std::int32_t ids[16];
  unpack_member(members_of(wide)[0], records.data(), ids);
  EXPECT_EQ(ids[3], 65536);
}

// A byte of a compressed chunk is turned; zlib's checksum, or its format, catches it.
TEST_F(WrongBertShardFile, a_chunk_is_damaged) {
  test::write_shard(path, {.rows = 300, .two_dimensions = {{300, 4}, 6}, .one_dimension = {{300}, 6}});
  const BertLayout layout{16, 4, DType::u16};
  std::string bytes = read_file(path, ExitCode::input);
  std::vector<std::byte> records(300 * layout.row_bytes());
  std::uint64_t at = 0, length = 0;
  {
    const Hdf5Handle file = open_hdf5(path);
    const Hdf5Handle dataset(H5Dopen2(file.get(), "input_ids", H5P_DEFAULT), H5Dclose);
    const hsize_t offset[] = {0, 8};
    hsize_t size = 0;
    haddr_t address = 0;
    unsigned mask = 0;
    ASSERT_GE(H5Dget_chunk_info_by_coord(dataset.get(), offset, &mask, &address, &size), 0);
    at = address, length = size;
  }
  for (const std::uint64_t byte : {std::uint64_t{0}, length / 2, length - 1}) {
    std::string damaged = bytes;
    damaged[at + byte] = static_cast<char>(damaged[at + byte] ^ 0x55);
    test::write_bytes(path, damaged);
    BertShardFile shard(path, 300, layout, limits);
    test::expect_error_with(ExitCode::input, {path + ": data set `input_ids`: a chunk is damaged: "},
                            [&] { shard.decode(0, 300, records.data()); });
  }
}

TEST_F(WrongBertShardFile, the_file_is_cut_short) {
  test::write_shard(path, {.rows = 300, .two_dimensions = {{300, 4}, 6}});
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  test::expect_error_with(ExitCode::input, {path + ": HDF5 cannot open it: "}, [&] {
    BertShardFile(path, 300, {16, 4, DType::u16}, limits);
  });
}

}  // namespace
}  // namespace motley::io
