#include "io/document_pieces.h"

#include <utility>

#include "core/error.h"

namespace motley::io {
namespace {

constexpr std::uint64_t documents_in_a_piece = 4, lines_in_a_piece = 16;  // of the longest

}  // namespace

DocumentPieces::DocumentPieces(std::vector<std::string> paths, std::uint64_t piece_bytes)
    : paths_(std::move(paths)), piece_bytes_(piece_bytes), lines_(paths_, piece_bytes / lines_in_a_piece) {
  MOTLEY_CHECK(piece_bytes_ >= min_piece_bytes && !paths_.empty());
}

// Appends the next document, or the next part of one; false when there is none.
bool DocumentPieces::read_document(Piece& piece) {
  const std::size_t first = piece.text.size();
  std::string_view line;
  while (!ended_) {
    const LineReader::Event event = lines_.next(line);
    ended_ = event == LineReader::Event::end;
    const bool has_text = event == LineReader::Event::line && !is_blank(line);
    if (has_text) {
      if (piece.documents.empty() && piece.text.empty()) {
        piece.first_place = fmt::format("{}, line {}", lines_.path(), lines_.line_number());
      }
      piece.text.append(line).push_back('\n');
      if (piece.text.size() - first < piece_bytes_ / documents_in_a_piece) continue;
    }
    const bool goes_on = std::exchange(document_goes_on_, has_text);
    if (piece.text.size() == first) continue;
    if (!goes_on) ++documents_;
    piece.documents.push_back({first, piece.text.size(), documents_ - 1});
    return true;
  }
  return false;
}

void DocumentPieces::fill(Piece& piece) {
  while (piece.text.size() < piece_bytes_ || piece.documents.size() < 2) {
    if (!read_document(piece)) break;
  }
}

bool DocumentPieces::next(Piece& piece) {
  if (!std::exchange(started_, true)) fill(current_);
  if (!ended_) fill(ahead_);
  // Less than two documents can only be what is left at the end.
  if (ahead_.documents.size() < 2) {
    for (const Document& document : ahead_.documents) {
      const std::size_t shift = current_.text.size();
      current_.documents.push_back({document.first + shift, document.end + shift, document.number});
    }
    current_.text += ahead_.text;
    ahead_ = {};
  }
  if (ended_) check_documents();
  if (current_.documents.empty()) return false;
  piece = std::move(current_);
  piece.index = pieces_++;
  current_ = std::exchange(ahead_, {});
  return true;
}

void DocumentPieces::check_documents() const {
  const std::string files =
      paths_.size() == 1 ? paths_[0] + " holds" : fmt::format("the {} files hold", paths_.size());
  if (documents_ == 0) fail(ExitCode::input, "{} no text; expected sentences, one per line", files);
  if (documents_ == 1) {
    fail(ExitCode::input,
         "{} a single document; sentence pairs need at least two, with an empty line between them", files);
  }
}

}  // namespace motley::io
