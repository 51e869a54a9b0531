#include "io/sentence_splitter.h"

#include <unicode/brkiter.h>
#include <unicode/filteredbrk.h>
#include <unicode/locid.h>
#include <unicode/utext.h>

#include <cstdint>

#include "core/error.h"

namespace motley::io {

struct SentenceSplitter::Impl {
  std::unique_ptr<icu::BreakIterator> breaks;
  std::vector<std::string_view> sentences;
};

SentenceSplitter::SentenceSplitter() : impl_(std::make_unique<Impl>()) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Locale english("en", "", "", "ss=standard");
  impl_->breaks.reset(icu::BreakIterator::createSentenceInstance(english, status));
  if (U_FAILURE(status)) fail(ExitCode::internal, "ICU has no sentence rules: {}", u_errorName(status));
}

SentenceSplitter::~SentenceSplitter() = default;

const std::vector<std::string_view>& SentenceSplitter::split(std::string_view line) {
  impl_->sentences.clear();
  UErrorCode status = U_ZERO_ERROR;
  // Over the bytes as they are, so that positions are those of bytes.
  UText text = UTEXT_INITIALIZER;
  utext_openUTF8(&text, line.data(), static_cast<std::int64_t>(line.size()), &status);
  impl_->breaks->setText(&text, status);
  if (U_FAILURE(status)) fail(ExitCode::internal, "ICU cannot read a line: {}", u_errorName(status));
  std::int32_t first = impl_->breaks->first();
  for (std::int32_t end = impl_->breaks->next(); end != icu::BreakIterator::DONE;
       end = impl_->breaks->next()) {
    std::string_view sentence =
        line.substr(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first));
    while (!sentence.empty() && (sentence.back() == ' ' || sentence.back() == '\t'))
      sentence.remove_suffix(1);
    if (!sentence.empty()) impl_->sentences.push_back(sentence);
    first = end;
  }
  utext_close(&text);
  return impl_->sentences;
}

}  // namespace motley::io
