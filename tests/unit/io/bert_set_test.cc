#include "io/bert_set.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "bert_files.h"
#include "io/bert_check.h"
#include "io/bert_pack.h"
#include "support/paths.h"

namespace motley::io {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<std::string>;

class BertSet : public ::testing::Test {
 protected:
  std::string in(const std::string& name) const { return (directory.path() / name).string(); }
  void touch(const std::string& name) const {
    fs::create_directories(fs::path(in(name)).parent_path());
    test::write_bytes(in(name), "");
  }
  std::string data() const { return directory.path().string(); }
  test::TemporaryDirectory directory;
};

// --- Which files ------------------------------------------------------------------------------------------

TEST_F(BertSet, a_subset_is_its_file_or_else_its_directory_or_else_the_directory_itself) {
  for (const char* name : {"b.h5", "a.hdf5", "valid.h5", "test.h5", "mine.h5", "notes.txt"}) touch(name);
  EXPECT_EQ(find_bert_subset(data(), "train", {"mine"}), (Paths{in("a.hdf5"), in("b.h5")}));
  EXPECT_EQ(find_bert_subset(data(), "train"), (Paths{in("a.hdf5"), in("b.h5"), in("mine.h5")}));
  EXPECT_EQ(find_bert_subset(data(), "valid"), (Paths{in("valid.h5")}));
  EXPECT_EQ(find_bert_subset(data(), "dev"), Paths{});
  touch("train/2.h5");
  touch("train/10.h5");
  EXPECT_EQ(find_bert_subset(data(), "train"), (Paths{in("train/10.h5"), in("train/2.h5")}));
  touch("train.h5");
  EXPECT_EQ(find_bert_subset(data(), "train"), (Paths{in("train.h5")}));
}

TEST_F(BertSet, files_are_the_subset_train) {
  touch("x.h5");
  touch("a,b.h5");
  EXPECT_EQ(find_bert_subset(in("x.h5"), "train"), (Paths{in("x.h5")}));
  EXPECT_EQ(find_bert_subset(in("x.h5") + "," + in("y.h5"), "train"), (Paths{in("x.h5"), in("y.h5")}));
  EXPECT_EQ(find_bert_subset(in("a,b.h5"), "train"), (Paths{in("a,b.h5")}))
      << "a name may have a comma in it";
  EXPECT_EQ(find_bert_subset(in("x.h5"), "valid"), Paths{});
}

TEST_F(BertSet, what_is_not_there_is_said) {
  test::expect_error(
      ExitCode::input,
      "--data " + in("none") +
          " does not exist; expected a directory, an HDF5 file or several with commas between them",
      [&] { find_bert_subset(in("none"), "train"); });
  fs::create_directory(in("train"));
  test::expect_error(ExitCode::input,
                     in("train") + " has no HDF5 files; expected names that end in .h5 or .hdf5",
                     [&] { find_bert_subset(data(), "train"); });
  test::expect_error(ExitCode::input,
                     fmt::format("{} has no subset valid; expected {} or {} with HDF5 files", data(),
                                 in("valid.h5"), in("valid")),
                     [&] { bert_subset_paths(data(), "valid"); });
  touch("x.h5");
  test::expect_error(
      ExitCode::input,
      "--data " + in("x.h5") + " is not a directory, so it has no subset valid; files are the subset train",
      [&] { bert_subset_paths(in("x.h5"), "valid"); });
}

// --- What is in them --------------------------------------------------------------------------------------

TEST_F(BertSet, shards_follow_each_other) {
  test::write_shard(in("a.h5"), {.rows = 30, .first = 0, .two_dimensions = {{10, 4}, 1}});
  test::write_shard(in("b.h5"), {.rows = 5, .first = 30});
  test::write_shard(in("c.h5"), {.rows = 20, .first = 35});
  const RowSource source = RowSource::from_json(
      describe_bert_set({in("a.h5"), in("b.h5"), in("c.h5")}, 0, {1000, 2, 512}).to_json());
  EXPECT_EQ(source.rows, 55u);
  EXPECT_EQ(source.shards,
            (std::vector<Shard>{{in("a.h5"), 30, 30}, {in("b.h5"), 5, 5}, {in("c.h5"), 20, 20}}));
  EXPECT_EQ(source.bert, (BertLayout{16, 4, DType::u16}));
  EXPECT_EQ(source.limits, (BertLimits{1000, 2, 512}));
  ASSERT_EQ(source.fields.size(), 1u);
  EXPECT_EQ(source.fields[0].row_bytes(), source.bert->row_bytes());
  EXPECT_FALSE(source.packed());
  EXPECT_EQ(source.where(0), in("a.h5") + ": row 0");
  EXPECT_EQ(source.where(30), in("b.h5") + ": row 0");
  EXPECT_EQ(source.where(54), in("c.h5") + ": row 19");
  EXPECT_EQ(describe_bert_set({in("a.h5"), in("b.h5"), in("c.h5")}, 2, {}).rows, 35u);
  EXPECT_EQ(describe_bert_set({in("a.h5"), in("b.h5")}, 7, {}).rows, 35u);
}

TEST_F(BertSet, ids_take_two_bytes_where_the_vocabulary_lets_them) {
  test::write_shard(in("a.h5"), {});
  EXPECT_EQ(describe_bert_set({in("a.h5")}, 0, {65536, 2, 512}).bert->id, DType::u16);
  EXPECT_EQ(describe_bert_set({in("a.h5")}, 0, {65537, 2, 512}).bert->id, DType::u32);
  EXPECT_EQ(describe_bert_set({in("a.h5")}, 0, {}).bert->id, DType::u32);
}

TEST_F(BertSet, files_that_do_not_belong_together_are_refused) {
  test::write_shard(in("a.h5"), {});
  test::write_shard(in("b.h5"), {.tokens = 32});
  test::write_shard(in("c.h5"), {.predictions = 5});
  test::write_shard(in("d.h5"), {.predictions = 0});
  test::expect_error(
      ExitCode::input,
      fmt::format("{}: `input_ids` has samples of 32 tokens, and those of {} have 16; expected one "
                  "sequence length in a run",
                  in("b.h5"), in("a.h5")),
      [&] {
        describe_bert_set({in("a.h5"), in("b.h5")}, 0, {});
      });
  for (const auto& [name, count] : {std::pair{"c.h5", 5}, std::pair{"d.h5", 0}}) {
    test::expect_error(
        ExitCode::input,
        fmt::format("{}: `masked_lm_positions` has {} positions per sample, and {} has 4 (0: none at "
                    "all); expected as many in a run",
                    in(name), count, in("a.h5")),
        [&] {
          describe_bert_set({in("a.h5"), in(name)}, 0, {});
        });
  }
  test::expect_error(ExitCode::input,
                     in("a.h5") + ": `input_ids` has samples of 16 tokens; the network takes at most 12",
                     [&] {
                       describe_bert_set({in("a.h5")}, 0, {1000, 2, 12});
                     });
}

// --- Packed -----------------------------------------------------------------------------------------------

TEST_F(BertSet, a_packed_file_is_known_by_its_members) {
  for (const BertLayout& layout :
       {BertLayout{128, 20, DType::u16}, BertLayout{16, 1, DType::u32}, BertLayout{1, 0, DType::u16}}) {
    const std::uint64_t offset = create_packed_bert(in("p.h5"), layout, 1000);
    const RowSource source = describe_bert_set({in("p.h5")}, 0, {1000, 2, 512});
    EXPECT_EQ(source.bert, layout);
    EXPECT_EQ(source.rows, 1000u);
    EXPECT_TRUE(source.packed());
    EXPECT_TRUE(source.shards.empty());
    EXPECT_EQ(source.fields[0].file_offset, offset);
    EXPECT_EQ(source.fields[0].row_bytes(), layout.row_bytes());
    EXPECT_GE(fs::file_size(in("p.h5")), offset + 1000 * layout.row_bytes());
  }
  test::expect_error(
      ExitCode::input,
      in("p.h5") + " is a packed file, and one of 2; expected one packed file alone, or shards", [&] {
        describe_bert_set({in("p.h5"), in("p.h5")}, 0, {});
      });
}

// Compound types that differ from a record in one thing.
TEST_F(BertSet, records_of_another_form_are_refused) {
  const BertLayout layout{16, 4, DType::u16};
  const auto expect = [&](const std::vector<BertMember>& members, std::size_t bytes,
                          const std::string& sentence) {
    {
      test::Hdf5File file(in("p.h5"));
      const Hdf5Handle compound(H5Tcreate(H5T_COMPOUND, bytes), H5Tclose);
      for (const BertMember& member : members) {
        const hid_t element = member.dtype == DType::u8    ? H5T_STD_U8LE
                              : member.dtype == DType::u16 ? H5T_STD_U16LE
                                                           : H5T_STD_I32LE;
        const hsize_t length = member.length;
        const Hdf5Handle array(H5Tarray_create2(element, 1, &length), H5Tclose);
        H5Tinsert(compound.get(), std::string(member.name).c_str(), member.offset,
                  member.array ? array.get() : element);
      }
      const std::vector<char> records(10 * bytes);
      file.add("samples", {10}, compound.get(), compound.get(), records.data());
    }
    test::expect_error(ExitCode::input, in("p.h5") + ": data set `samples` " + sentence,
                       [&] { describe_bert_set({in("p.h5")}, 0, {}); });
  };
  const std::vector<BertMember> right = members_of(layout);
  auto wrong = right;
  wrong[1].name = "mask";
  expect(wrong, layout.row_bytes(),
         "has the member `mask` (uint8 [16] at byte 32); expected `input_mask` (uint8 [16] at byte 32)");
  wrong = right;
  wrong[2].dtype = DType::i32, wrong[2].length = 4;
  expect(wrong, layout.row_bytes(),
         "has the member `segment_ids` (another type [4] at byte 48); expected `segment_ids` (uint8 [16] at "
         "byte 48)");
  wrong = right;
  wrong.pop_back();
  expect(wrong, layout.row_bytes(), "has no member `next_sentence_labels` (uint8 at byte 80)");
  wrong = right;
  for (BertMember& member : wrong) member.offset += 1;
  expect(wrong, layout.row_bytes() + 1,
         "has the member `input_ids` (uint16 [16] at byte 1); expected `input_ids` (uint16 [16] at byte 0)");
  expect(right, layout.row_bytes() + 3, "has records of 6 members and 84 bytes; expected 6 and 81");
}

TEST_F(BertSet, packed_files_without_records_or_in_chunks_are_refused) {
  const auto add = [&](const std::vector<hsize_t>& extents, const test::Layout& lies) {
    const std::vector<std::int32_t> zeros(16);
    test::Hdf5File(in("p.h5")).add("samples", extents, H5T_STD_I32LE, H5T_NATIVE_INT32, zeros.data(), lies);
  };
  add({16}, {});
  test::expect_error(
      ExitCode::input,
      in("p.h5") + ": data set `samples` holds int32; expected records as `motley data pack` writes them",
      [&] { describe_bert_set({in("p.h5")}, 0, {}); });
  create_packed_bert(in("p.h5"), {16, 4, DType::u16}, 100);
  fs::resize_file(in("p.h5"), fs::file_size(in("p.h5")) - 50);
  test::expect_error_with(ExitCode::input, {in("p.h5") + ": HDF5 cannot open it: "},
                          [&] { describe_bert_set({in("p.h5")}, 0, {}); });
}

TEST_F(BertSet, values_of_packed_records_are_looked_at) {
  RowSource source;
  source.path = "p.h5";
  source.rows = 100;
  source.bert = BertLayout{4, 2, DType::u16};
  source.limits = {1000, 2, 512};
  const std::size_t row_bytes = source.bert->row_bytes();
  Window window;
  window.rows = 2;
  window.ids = {70, 17};
  const auto expect = [&](std::size_t byte, int value, const std::string& sentence) {
    window.fields = {std::vector<std::byte>(2 * row_bytes)};
    check_bert_rows(source, window);
    window.fields[0][row_bytes + byte] = static_cast<std::byte>(value);
    test::expect_error(ExitCode::input, "p.h5: row 17: " + sentence,
                       [&] { check_bert_rows(source, window); });
  };
  const BertLayout& layout = *source.bert;
  expect(2 * 2 + 1, 4, "`input_ids`[2] is 1024; expected 0 to 999 (the vocabulary has 1000 entries)");
  expect(layout.input_mask() + 3, 2, "`input_mask`[3] is 2; expected 0 or 1");
  expect(layout.segment_ids(), 9, "`segment_ids`[0] is 9; expected 0 or 1 (the network knows 2 segments)");
  expect(layout.masked_lm_positions() + 2, 4,
         "`masked_lm_positions`[1] is 4; expected 0 to 3 (the samples have 4 tokens)");
  expect(layout.masked_lm_ids() + 1, 255,
         "`masked_lm_ids`[0] is 65280; expected 0 to 999 (the vocabulary has 1000 entries)");
  expect(layout.next_sentence_labels(), 3, "`next_sentence_labels` is 3; expected 0 or 1");
  source.limits = {};
  window.fields = {std::vector<std::byte>(2 * row_bytes)};
  window.fields[0][0] = window.fields[0][1] = std::byte{255};
  check_bert_rows(source, window);  // without limits, every id that the record holds is right
}

}  // namespace
}  // namespace motley::io
