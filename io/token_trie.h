// The tokens of a vocabulary as a trie over bytes, for greedy longest-match-first: one probe per byte of
// text, whatever the number of tokens. Nodes are numbers and edges lie in an open-addressing hash table.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "io/vocabulary.h"

namespace motley::io {

class TokenTrie {
 public:
  explicit TokenTrie(const Vocabulary& vocabulary);

  struct Match {
    std::int32_t id = -1;  // -1: no token is a prefix of the text
    std::size_t bytes = 0;
  };
  // The longest token that `text` begins with; `inside_word` for the "##" pieces. `text` is not empty.
  Match longest(std::string_view text, bool inside_word) const;

 private:
  struct Edge {
    std::uint32_t from = 0;  // node * 256 + byte
    std::uint32_t to = 0;    // 0, the root, to which nothing leads: the place is free
  };
  std::uint32_t child(std::uint32_t node, char byte) const;
  std::uint32_t make_child(std::uint32_t node, char byte);
  std::size_t place(std::uint32_t from) const { return (from * 0x9E3779B1u) >> shift_; }

  std::vector<Edge> edges_;
  unsigned shift_ = 0;
  std::vector<std::int32_t> id_at_;  // by node; -1: no token ends there
  std::uint32_t inside_ = 0;         // the node of "##"
};

}  // namespace motley::io
