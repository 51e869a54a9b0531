#include "io/bert_set.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
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

// As NVIDIA's scripts name them, and HetSeq finds them: all in one directory.
TEST_F(BertSet, words_of_a_name_tell_the_subset) {
  for (const char* name :
       {"wikicorpus_en_training_0.hdf5", "wikicorpus_en_training_1.hdf5", "wikicorpus_en_test_0.hdf5",
        "books-dev.h5", "books.validation.h5", "contest_0.h5", "retrain_0.h5", "my_mine_0.h5"})
    touch(name);
  EXPECT_EQ(find_bert_subset(data(), "train"),
            (Paths{in("wikicorpus_en_training_0.hdf5"), in("wikicorpus_en_training_1.hdf5")}));
  EXPECT_EQ(find_bert_subset(data(), "test"), (Paths{in("wikicorpus_en_test_0.hdf5")}));
  EXPECT_EQ(find_bert_subset(data(), "valid"), (Paths{in("books-dev.h5"), in("books.validation.h5")}));
  EXPECT_EQ(find_bert_subset(data(), "dev"), (Paths{in("books-dev.h5")}));
  EXPECT_EQ(find_bert_subset(data(), "eval"), Paths{});
  for (const char* name : {"wikicorpus_en_training_0.hdf5", "wikicorpus_en_training_1.hdf5"})
    fs::remove(in(name));
  EXPECT_EQ(find_bert_subset(data(), "train", {"mine"}), (Paths{in("contest_0.h5"), in("retrain_0.h5")}))
      << "what names no subset is for training";
  touch("train.hdf5");
  EXPECT_EQ(find_bert_subset(data(), "train"), (Paths{in("train.hdf5")}));
}

TEST_F(BertSet, what_a_killed_process_leaves_is_no_shard) {
  for (const char* name : {"a.h5", ".tmp-training-00000.h5", "s/.tmp-training-00001.h5", "s/b.h5"})
    touch(name);
  EXPECT_EQ(find_bert_subset(data(), "train"), (Paths{in("a.h5")}));
  EXPECT_EQ(find_bert_subset(data(), "s"), (Paths{in("s/b.h5")}));
}

TEST_F(BertSet, shards_that_number_themselves_must_all_be_there) {
  touch("training-00000-of-00003.h5");
  touch("training-00002-of-00003.h5");
  const std::string sentence =
      "{} has {} of the {} files {}-...-of-{}; expected all: what made them was interrupted, or some were "
      "removed";
  test::expect_error(ExitCode::input, fmt::format(fmt::runtime(sentence), data(), 2, 3, "training", 3),
                     [&] { find_bert_subset(data(), "train"); });
  touch("training-00001-of-00003.h5");
  EXPECT_EQ(find_bert_subset(data(), "train").size(), 3u);
  touch("test/x-1-of-2.hdf5");
  test::expect_error(ExitCode::input, fmt::format(fmt::runtime(sentence), in("test"), 1, 2, "x", 2),
                     [&] { find_bert_subset(data(), "test"); });
  EXPECT_EQ(find_bert_subset(in("training-00002-of-00003.h5"), "train").size(), 1u)
      << "who names files gets these";
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
  test::expect_error(
      ExitCode::input,
      fmt::format("{} has no subset valid; expected {}, HDF5 files in {}, or some with \"valid\" or "
                  "\"validation\" or \"dev\" in their names",
                  data(), in("valid.h5"), in("valid")),
      [&] { bert_subset_paths(data(), "valid"); });
  touch("x.h5");
  test::expect_error(
      ExitCode::input,
      "--data " + in("x.h5") + " is not a directory, so it has no subset valid; files are the subset train",
      [&] { bert_subset_paths(in("x.h5"), "valid"); });
  test::expect_error(ExitCode::input, "--data \",\" names no file; expected one before a comma",
                     [&] { bert_subset_paths(",", "train"); });
}

TEST_F(BertSet, the_same_file_twice_is_refused) {
  touch("x.h5");
  fs::create_symlink("x.h5", in("y.h5"));
  for (const std::string& other : {in("x.h5"), in("y.h5"), in("./x.h5")}) {
    test::expect_error(
        ExitCode::input,
        fmt::format("--data has the same file twice, as {} and as {}; expected each once", in("x.h5"), other),
        [&] { find_bert_subset(in("x.h5") + "," + other, "train"); });
  }
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

TEST_F(BertSet, shards_of_different_vocabularies_are_refused) {
  test::write_shard(in("a.h5"), {});
  test::write_shard(in("b.h5"), {.vocab_xxh3 = "0123456789abcdef"});
  test::write_shard(in("c.h5"), {.vocab_xxh3 = "fedcba9876543210"});
  EXPECT_EQ(describe_bert_set({in("a.h5")}, 0, {}).vocab_xxh3, "");
  const RowSource source = describe_bert_set({in("a.h5"), in("b.h5"), in("b.h5")}, 0, {});
  EXPECT_EQ(RowSource::from_json(source.to_json()).vocab_xxh3, "0123456789abcdef");
  test::expect_error(ExitCode::input,
                     fmt::format("{} and {} were made with different vocabularies (their `vocab_xxh3` are "
                                 "0123456789abcdef and fedcba9876543210); expected one in a run",
                                 in("b.h5"), in("c.h5")),
                     [&] {
                       describe_bert_set({in("a.h5"), in("b.h5"), in("c.h5")}, 0, {});
                     });
}

// One chunk of each data set is written.
TEST_F(BertSet, a_file_that_claims_more_samples_than_it_holds_is_refused) {
  constexpr hsize_t rows = hsize_t{1} << 40;
  {
    test::Hdf5File file(in("a.h5"));
    const std::vector<hsize_t> extents[] = {{rows, 8}, {rows}};
    const std::int8_t one = 1;
    for (const char* name : {"input_ids", "input_mask", "segment_ids", "next_sentence_labels"}) {
      const bool flat = std::string(name) == "next_sentence_labels";
      const std::vector<hsize_t>& shape = extents[flat ? 1 : 0];
      const std::vector<hsize_t> chunk(shape.size(), 8), first(shape.size(), 0), some(shape.size(), 1);
      file.add(name, shape, H5T_STD_I8LE, H5T_NATIVE_INT8, nullptr, {.chunk = chunk, .gzip_level = 1});
      const Hdf5Handle dataset(H5Dopen2(file.id(), name, H5P_DEFAULT), H5Dclose);
      const Hdf5Handle space(H5Dget_space(dataset.get()), H5Sclose), memory(H5Screate(H5S_SCALAR), H5Sclose);
      H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, first.data(), nullptr, some.data(), nullptr);
      H5Dwrite(dataset.get(), H5T_NATIVE_INT8, memory.get(), space.get(), H5P_DEFAULT, &one);
    }
  }
  test::expect_error(ExitCode::input,
                     in("a.h5") +
                         ": data set `input_ids` has the shape [1099511627776, 8], and the file does not "
                         "hold that much of it; expected all samples to be there",
                     [&] { describe_bert_set({in("a.h5")}, 0, {}); });
}

// What is in the chunks does not matter before they are decoded.
TEST_F(BertSet, chunks_too_large_for_any_memory_are_refused) {
  constexpr hsize_t rows = hsize_t{1} << 27;
  {
    test::Hdf5File file(in("a.h5"));
    const std::string bytes(4 << 20, 'x');
    for (const char* name : {"input_ids", "input_mask", "segment_ids", "next_sentence_labels"}) {
      const bool flat = std::string(name) == "next_sentence_labels";
      const std::vector<hsize_t> shape = flat ? std::vector<hsize_t>{rows} : std::vector<hsize_t>{rows, 16};
      const std::vector<hsize_t> first(shape.size(), 0);
      file.add(name, shape, H5T_STD_I8LE, H5T_NATIVE_INT8, nullptr, {.chunk = shape, .gzip_level = 1});
      const Hdf5Handle dataset(H5Dopen2(file.id(), name, H5P_DEFAULT), H5Dclose);
      ASSERT_GE(H5Dwrite_chunk(dataset.get(), H5P_DEFAULT, 0, first.data(), bytes.size(), bytes.data()), 0);
    }
  }
  test::expect_error(
      ExitCode::input,
      in("a.h5") +
          ": data set `input_ids` lies in chunks of [134217728, 16], gzip 1, so that 134217728 "
          "samples have to be decoded together; expected chunks of at most 88556026 samples",
      [&] { describe_bert_set({in("a.h5")}, 0, {}); });
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

TEST_F(BertSet, a_packed_file_says_its_vocabulary) {
  create_packed_bert(in("p.h5"), {16, 4, DType::u16}, 10, "0123456789abcdef");
  EXPECT_EQ(describe_bert_set({in("p.h5")}, 0, {}).vocab_xxh3, "0123456789abcdef");
}

// HDF5 itself would crash when the process ends.
TEST_F(BertSet, a_packed_file_that_cannot_become_that_large_is_an_input_error) {
  const BertLayout layout{16, 4, DType::u16};
  test::expect_error(
      ExitCode::input,
      fmt::format("cannot write {}: 1152921504606846976 samples of 81 bytes are more than a file "
                  "can hold",
                  in("p.h5")),
      [&] { create_packed_bert(in("p.h5"), layout, std::uint64_t{1} << 60); });
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit low = before;
  low.rlim_cur = 100'000;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  test::expect_error(ExitCode::input, "cannot write " + in("p.h5") + ": File too large",
                     [&] { create_packed_bert(in("p.h5"), layout, 10'000); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
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
  const auto right = [&] {
    std::vector<std::byte> rows(2 * row_bytes);
    for (const std::size_t row : {0, 1})
      rows[row * row_bytes + source.bert->input_mask() + 1] =
          rows[row * row_bytes + source.bert->input_mask()] = std::byte{1};
    return rows;
  };
  const auto expect = [&](std::size_t byte, int value, const std::string& sentence) {
    window.fields = {right()};
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
  // Two tokens, and two places that are none.
  window.fields = {right()};
  window.fields[0][row_bytes + layout.masked_lm_positions() + 2] = std::byte{2};
  check_bert_rows(source, window);  // the prediction is not used
  window.fields[0][row_bytes + layout.masked_lm_ids() + 2] = std::byte{9};
  test::expect_error(
      ExitCode::input,
      "p.h5: row 17: `masked_lm_positions`[1] is 2, where `input_mask` is 0; expected a token there",
      [&] { check_bert_rows(source, window); });
  window.fields = {std::vector<std::byte>(2 * row_bytes)};
  test::expect_error(ExitCode::input, "p.h5: row 70: `input_mask` has no token; expected at least one",
                     [&] { check_bert_rows(source, window); });
  source.limits = {};
  window.fields = {right()};
  window.fields[0][0] = window.fields[0][1] = std::byte{255};
  check_bert_rows(source, window);  // without limits, every id that the record holds is right
}

}  // namespace
}  // namespace motley::io
