// A corpus cut into pieces of consecutive documents. Where a piece ends depends on the files alone, so that
// ranks that each take some of the pieces make the same of them however many ranks there are.
//
// A document is a run of lines without a blank one between; it ends with its file. One that is longer than a
// quarter of a piece is cut at a line into parts, each of which counts as a document.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/line_reader.h"

namespace motley::io {

struct Document {
  std::size_t first = 0, end = 0;  // its bytes in Piece::text, whole lines
  std::uint64_t number = 0;        // in the corpus, from 0; parts of one document have the same
};

struct Piece {
  std::uint32_t index = 0;  // from 0
  std::string text;         // lines that are not blank, each ended by '\n'
  std::vector<Document> documents;
  std::string first_place;  // "FILE, line 12": where it begins
};

class DocumentPieces {
 public:
  static constexpr std::uint64_t min_piece_bytes = 65536;

  // Each piece is at least `piece_bytes` long, but for the last, and holds two documents or more. It is less
  // than twice as long, so that memory is bounded by it; lines longer than a sixteenth of it are cut.
  DocumentPieces(std::vector<std::string> paths, std::uint64_t piece_bytes);

  // False at the end. Error(input): a file that cannot be read; no text at all; a corpus of one document.
  bool next(Piece& piece);

  std::uint64_t bytes_read() const { return lines_.bytes_read(); }
  std::uint64_t documents() const { return documents_; }

 private:
  void fill(Piece& piece);
  bool read_document(Piece& piece);
  void check_documents() const;

  std::vector<std::string> paths_;
  std::uint64_t piece_bytes_;
  LineReader lines_;
  Piece current_, ahead_;
  std::uint64_t documents_ = 0;
  std::uint32_t pieces_ = 0;
  bool started_ = false, ended_ = false, document_goes_on_ = false;
};

}  // namespace motley::io
