// Running text cut into sentences by the rules of Unicode (UAX #29) in ICU's English form, which knows common
// abbreviations: no sentence ends behind "Mr." or "e.g.".
#pragma once

#include <memory>
#include <string_view>
#include <vector>

namespace motley::io {

class SentenceSplitter {
 public:
  SentenceSplitter();
  ~SentenceSplitter();
  SentenceSplitter(const SentenceSplitter&) = delete;
  SentenceSplitter& operator=(const SentenceSplitter&) = delete;

  // The sentences of one line, without the whitespace behind them; they point into `line`.
  const std::vector<std::string_view>& split(std::string_view line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace motley::io
