// The tokenizer alone, on one thread: tests/bench/tokenizer.py drives it and Hugging Face's in turn, and
// tests/golden/tokenizer_fuzz.py compares the ids.
//
//   tokenizer_bench time VOCAB CASED TEXT   encodes the lines of TEXT; prints seconds, lines, bytes, tokens
//   tokenizer_bench ids VOCAB CASED TEXT    prints the ids of each line on a line
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "io/tokenizer.h"

namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

void run(const std::vector<std::string>& words) {
  using motley::ExitCode;
  if (words.size() != 5 || (words[1] != "time" && words[1] != "ids")) {
    motley::fail(ExitCode::usage, "usage: tokenizer_bench time|ids VOCAB true|false TEXT");
  }
  const auto vocabulary = motley::io::Vocabulary::read(words[2]);
  motley::io::Tokenizer tokenizer(vocabulary, words[3] == "false");
  const std::string text = motley::read_file(words[4], ExitCode::input);
  const std::vector<std::string_view> lines = lines_of(text);
  std::vector<std::int32_t> ids;
  if (words[1] == "ids") {
    for (const std::string_view line : lines) {
      ids.clear();
      tokenizer.encode(line, ids);
      std::string out;
      for (const std::int32_t id : ids) out += fmt::format("{} ", id);
      std::puts(out.c_str());
    }
    return;
  }
  // As encode_batch does: the ids of every line, kept.
  const auto started = std::chrono::steady_clock::now();
  std::vector<std::vector<std::int32_t>> batch;
  std::size_t tokens = 0;
  for (const std::string_view line : lines) {
    ids.clear();
    tokenizer.encode(line, ids);
    batch.push_back(ids);
    tokens += ids.size();
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  std::printf("{\"seconds\":%.6f,\"lines\":%zu,\"bytes\":%zu,\"tokens\":%zu}\n", seconds, lines.size(),
              text.size(), tokens);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run({argv, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tokenizer_bench: %s\n", error.what());
    return 1;
  }
}
