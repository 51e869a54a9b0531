// A small checkpoint whose every number follows from one value, and what it takes to see which one was read
// back.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "core/files.h"

namespace motley::checkpoint::test {

// Owns the memory that Contents borrows.
class Sample {
 public:
  // All tensors hold `value`; trainer.json has it too. `elements` for the one big tensor.
  explicit Sample(int value, std::int64_t elements = 12) : big_(static_cast<std::size_t>(elements)) {
    big_.assign(big_.size(), static_cast<float>(value));
    bias_.assign(3, static_cast<float>(value));
    contents.model = {{"conv1.weight", DType::f32, {elements / 4, 4}, big_.data()},
                      {"conv1.bias", DType::f32, {3}, bias_.data()}};
    contents.model_metadata = {{"format", "pt"}};
    contents.optimizer = {{"exp_avg/conv1.weight", DType::f32, {elements / 4, 4}, big_.data()},
                          {"exp_avg/conv1.bias", DType::f32, {3}, bias_.data()},
                          {"exp_avg_sq/conv1.bias", DType::f32, {3}, bias_.data()}};
    contents.trainer = {{"value", value}, {"kind", "interval"}};
    contents.extra_files = {{"config.json", "{}\n"}, {"vocab.txt", "a\nb\n"}};
  }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  Contents contents;

 private:
  std::vector<float> big_, bias_;
};

// Reads everything and returns the value that all of it has; -1 when there is a mixture.
inline int value_of(const std::filesystem::path& checkpoint, std::int64_t elements = 12) {
  const Reader reader(checkpoint);
  std::vector<float> numbers(static_cast<std::size_t>(2 * elements + 9), -7);
  float* const all = numbers.data();
  reader.read_model(std::vector<io::SafetensorsEntry>{{"conv1.weight", DType::f32, {elements / 4, 4}, all},
                                                      {"conv1.bias", DType::f32, {3}, all + 2 * elements}});
  reader.read_optimizer(std::vector<io::SafetensorsEntry>{
      {"exp_avg/conv1.weight", DType::f32, {elements / 4, 4}, all + elements},
      {"exp_avg/conv1.bias", DType::f32, {3}, all + 2 * elements + 3},
      {"exp_avg_sq/conv1.bias", DType::f32, {3}, all + 2 * elements + 6}});
  const int value = reader.trainer().at("value").get<int>();
  for (const float number : numbers) {
    if (number != static_cast<float>(value)) return -1;
  }
  return value;
}

inline std::vector<std::string> names_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// The sentence that `call` fails with; it must be an Error(checkpoint).
template <class Call>
std::string failure_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code() == ExitCode::checkpoint ? error.what() : std::string("wrong code: ") + error.what();
  }
  return "no failure";
}

}  // namespace motley::checkpoint::test
