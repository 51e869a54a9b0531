#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "core/files.h"
#include "support/paths.h"
#include "test_files.h"

namespace motley::io {
namespace {

using test::expect_error;
using test::expect_error_with;

constexpr ExitCode code = ExitCode::checkpoint;

std::string prefix(std::uint64_t header_bytes) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header_bytes >> (8 * i));
  return bytes;
}

template <class T>
std::vector<T> read_as(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  if (entry == nullptr) throw std::runtime_error("no tensor " + name);
  std::vector<T> values(static_cast<std::size_t>(entry->shape.elements()));
  file.read(*entry, std::as_writable_bytes(std::span(values)));
  return values;
}

class Safetensors : public ::testing::Test {
 protected:
  const test::TemporaryDirectory directory_;
  const std::filesystem::path path_ = directory_.path() / "model.safetensors";

  void write(const std::string& header, const std::string& data = "") const {
    write_file(path_, prefix(header.size()) + header + data, code);
  }

  void expect_refused(const std::string& sentence_after_path) const {
    expect_error(code, path_.string() + sentence_after_path, [this] { SafetensorsFile(path_, code); });
  }
};

TEST_F(Safetensors, what_is_written_is_read_back_in_order_and_aligned) {
  const std::vector<float> floats = {1.5F, -2, 3, 4, 5, 6};
  const std::vector<std::uint16_t> halves = {0x3c00, 0xc000, 0x7bff};
  const std::vector<std::int64_t> longs = {-1, 1LL << 40};
  const std::vector<SafetensorsEntry> tensors = {
      {"z \"quoted\" \xc3\xa4", DType::f32, {2, 3}, floats.data(), 0},
      {"a.half", DType::bf16, {3}, halves.data(), 0},
      {"empty", DType::f32, {0, 5}, nullptr, 0},
      {"m.scalar", DType::i64, {}, &longs[1], 0},
      {"m.longs", DType::i64, {2}, longs.data(), 0}};
  write_safetensors(path_, tensors, {{"format", "pt"}, {"step", "17"}}, code);

  const SafetensorsFile file(path_, code);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"step", "17"}}));
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(file.tensors()[i].name, tensors[i].name);
    EXPECT_EQ(file.tensors()[i].dtype, tensors[i].dtype);
    EXPECT_EQ(file.tensors()[i].shape, tensors[i].shape);
  }
  EXPECT_EQ(file.tensors()[0].offset % 64, 0U);
  EXPECT_EQ(read_as<float>(file, tensors[0].name), floats);
  EXPECT_EQ(read_as<std::uint16_t>(file, "a.half"), halves);
  EXPECT_EQ(read_as<std::int64_t>(file, "m.longs"), longs);
  EXPECT_EQ(read_as<std::int64_t>(file, "m.scalar"), std::vector<std::int64_t>{1LL << 40});
  EXPECT_EQ(file.find("nothing"), nullptr);
  std::vector<std::byte> wrong_size(7);
  EXPECT_THROW(file.read(file.tensors()[0], wrong_size), Error);
}

TEST_F(Safetensors, the_bytes_are_those_of_the_format) {
  const std::uint8_t byte = 9;
  const std::vector<SafetensorsEntry> tensors = {{"t", DType::u8, {1}, &byte, 0}};
  write_safetensors(path_, tensors, {}, code);
  std::string header = R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  header.resize(56, ' ');
  EXPECT_EQ(read_file(path_, code), prefix(56) + header + "\x09");
}

TEST_F(Safetensors, no_tensors_are_a_file_too) {
  write_safetensors(path_, {}, {}, code);
  EXPECT_TRUE(SafetensorsFile(path_, code).tensors().empty());
}

TEST_F(Safetensors, a_file_by_the_reference_implementation_is_read) {
  const SafetensorsFile file(test::source_path("golden/io_tensors.safetensors"), code);
  EXPECT_EQ(file.metadata(),
            (std::map<std::string, std::string>{{"format", "pt"}, {"note", "\xc3\xa4 \" \\"}}));
  EXPECT_EQ(file.tensors().size(), 7U);
  EXPECT_EQ(file.find("encoder.weight")->shape, (Shape{3, 4}));
  const auto weight = read_as<float>(file, "encoder.weight");
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(weight[i], static_cast<float>(i) / 8 - 0.5F);
  EXPECT_EQ(file.find("encoder.half")->dtype, DType::f16);
  EXPECT_EQ(read_as<std::uint16_t>(file, "encoder.half"),
            (std::vector<std::uint16_t>{0x3800, 0xc000, 0x7bff}));
  EXPECT_EQ(file.find("encoder.brain")->dtype, DType::bf16);
  EXPECT_EQ(read_as<std::uint16_t>(file, "encoder.brain"), (std::vector<std::uint16_t>{0x3f80, 0xc040}));
  EXPECT_EQ(read_as<std::int64_t>(file, "position_ids"), (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(file.find("scalar")->shape.rank(), 0);
  EXPECT_EQ(read_as<double>(file, "scalar"), std::vector<double>{0.25});
  EXPECT_EQ(file.find("empty")->shape, (Shape{0, 3}));
  EXPECT_EQ(read_as<std::uint8_t>(file, "bytes"), (std::vector<std::uint8_t>{7, 255}));
}

TEST_F(Safetensors, errors_of_files_carry_the_code_that_was_asked_for) {
  expect_error(ExitCode::input, "cannot open " + path_.string() + ": No such file or directory",
               [this] { SafetensorsFile(path_, ExitCode::input); });
  expect_error(code, directory_.path().string() + " is a directory; a safetensors file was expected",
               [this] { SafetensorsFile(directory_.path(), code); });
  const auto nowhere = directory_.path() / "no" / "model.safetensors";
  expect_error(code, "cannot create " + nowhere.string() + ": No such file or directory",
               [&] { write_safetensors(nowhere, {}, {}, code); });
}

TEST_F(Safetensors, names_that_are_not_text_are_refused_when_writing) {
  const std::uint8_t byte = 9;
  const std::vector<SafetensorsEntry> tensors = {{"\xff", DType::u8, {1}, &byte, 0}};
  expect_error_with(code, {"cannot write " + path_.string() + ": a name is not UTF-8 text"},
                    [&] { write_safetensors(path_, tensors, {}, code); });
  EXPECT_FALSE(std::filesystem::exists(path_));
}

// --- Headers that lie -------------------------------------------------------------------------------------

TEST_F(Safetensors, a_header_of_the_wrong_length_is_refused) {
  write_file(path_, "1234567", code);
  expect_refused(": has 7 bytes; a safetensors file has at least 8");
  write_file(path_, prefix(3) + "{}", code);
  expect_refused(": announces a header of 3 bytes, but only 2 follow: the file was cut short");
  write_file(path_, "not a safetensors file at all", code);
  expect_refused(
      ": announces a header of 7021991845529153390 bytes; at most 100000000 were expected: is it a "
      "safetensors file?");
  write_file(path_, prefix(~0ULL) + "{}", code);
  expect_refused(
      ": announces a header of 18446744073709551615 bytes; at most 100000000 were expected: is it a "
      "safetensors file?");
}

TEST_F(Safetensors, a_header_that_is_not_json_is_refused) {
  write(" {}");
  expect_refused(": the header does not begin with '{': is it a safetensors file?");
  write(R"({"a": )");
  expect_error_with(code, {path_.string() + ": the header is not JSON: "},
                    [this] { SafetensorsFile(path_, code); });
  write("{} x");
  expect_error_with(code, {path_.string() + ": the header is not JSON: "},
                    [this] { SafetensorsFile(path_, code); });
  write(R"({"a": )" + std::string(100000, '['));
  expect_refused(": the header is nested deeper than a safetensors header is");
}

TEST_F(Safetensors, a_name_that_comes_twice_is_refused) {
  const std::string entry = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  write("{" + entry + "," + entry + "}", "x");
  expect_refused(": the header names \"a\" twice");
  write(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "x");
  expect_refused(": the header names \"dtype\" twice");
}

TEST_F(Safetensors, an_entry_that_is_not_what_it_should_be_is_refused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([])", "its entry is not exactly dtype, shape and data_offsets"},
      {R"({"dtype":"U8","shape":[1]})", "its entry is not exactly dtype, shape and data_offsets"},
      {R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1})",
       "its entry is not exactly dtype, shape and data_offsets"},
      {R"({"dtype":8,"shape":[1],"data_offsets":[0,1]})", "its dtype is 8; a name was expected"},
      {R"({"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]})",
       "its dtype is \"F8_E4M3\", which motley does not know"},
      {R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})", "its shape is 1; a list of extents was expected"},
      {R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", "has -1 where a whole number was expected"},
      {R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})", "has 1.0 where a whole number was expected"},
      {R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]})",
       "has 18446744073709551615 where a whole number was expected"},
      {R"({"dtype":"U8","shape":[1,1,1,1,1,1,1],"data_offsets":[0,1]})",
       "has 7 dimensions; at most 6 were expected"},
      {R"({"dtype":"U8","shape":[1],"data_offsets":[0]})",
       "its data_offsets are [0]; two numbers were expected"},
      {R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})",
       "its bytes are 1 to 0; a range inside the 1 bytes of data was expected"},
      {R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})",
       "its bytes are 0 to 2; a range inside the 1 bytes of data was expected"},
      {R"({"dtype":"U8","shape":[2],"data_offsets":[0,1]})", "has 1 bytes; U8 [2] takes 2"},
      {R"({"dtype":"F32","shape":[],"data_offsets":[0,1]})", "has 1 bytes; F32 [] takes 4"},
      {R"({"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,1]})",
       "has 1 bytes; U8 [4294967296, 4294967296, 0] takes more than can be counted"},
  };
  for (const auto& [entry, sentence] : cases) {
    write(std::string(R"({"w":)") + entry + "}", "x");
    expect_refused(std::string(": tensor \"w\": ") + sentence);
  }
}

TEST_F(Safetensors, overlaps_holes_and_leftovers_are_refused) {
  const auto two = [](const char* a, const char* b) {
    return fmt::format(
        R"({{"a":{{"dtype":"U8","shape":[2],"data_offsets":{}}},"b":{{"dtype":"U8","shape":[2],)"
        R"("data_offsets":{}}}}})",
        a, b);
  };
  write(two("[0,2]", "[1,3]"), "xyz");
  expect_refused(
      ": tensor \"b\": its bytes begin at 1; expected 2, where the tensor before it ends: they overlap");
  write(two("[3,5]", "[0,2]"), "xyzuv");
  expect_refused(
      ": tensor \"a\": its bytes begin at 3; expected 2, where the one before it ends: there is a hole");
  write(two("[0,2]", "[2,4]"), "xyzuv");
  expect_refused(": has 5 bytes of data; the tensors in its header take 4");
  write("{}", "x");
  expect_refused(": has 1 bytes of data; the tensors in its header take 0");
}

TEST_F(Safetensors, metadata_that_is_not_text_is_refused) {
  write(R"({"__metadata__":{"step":17}})");
  expect_refused(": \"__metadata__\" is not a map from text to text");
}

// Any damage is either refused with an Error or leaves a file that tiles its data: never a crash, never a
// read outside.
TEST_F(Safetensors, no_damaged_file_is_read_beyond_its_end) {
  const std::string good = read_file(test::source_path("golden/io_tensors.safetensors"), code);
  std::mt19937_64 random(3);
  const std::string interesting = "{}[]\",:0123456789-eU8F\\\0\xff ";
  int accepted = 0;
  const auto try_one = [&](const std::string& bytes) {
    test::write_bytes(path_, bytes);
    try {
      const SafetensorsFile file(path_, code);
      ++accepted;
      for (const SafetensorsEntry& entry : file.tensors()) {
        std::vector<std::byte> out(static_cast<std::size_t>(entry.shape.elements()) * size_of(entry.dtype));
        ASSERT_LE(entry.offset + out.size(), bytes.size());
        file.read(entry, out);
      }
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), code) << error.what();
    }
  };
  for (std::size_t length = 0; length < good.size(); length += 1 + length / 50)
    try_one(good.substr(0, length));
  EXPECT_EQ(accepted, 0) << "a file that was cut short was accepted";
  for (int round = 0; round < 1500; ++round) {
    std::string bytes = good;
    const int changes = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < changes; ++i)
      bytes[random() % bytes.size()] = interesting[random() % interesting.size()];
    try_one(bytes);
  }
}

}  // namespace
}  // namespace motley::io
