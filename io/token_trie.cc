#include "io/token_trie.h"

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace motley::io {
namespace {

constexpr std::size_t max_nodes = std::size_t{1} << 24;  // what an edge's `from` can number

}  // namespace

TokenTrie::TokenTrie(const Vocabulary& vocabulary) {
  std::size_t bytes = 3;
  for (const std::string& token : vocabulary.tokens()) bytes += token.size();
  if (bytes > max_nodes) {
    fail(ExitCode::input, "the vocabulary has {} bytes of tokens; expected at most {}", bytes, max_nodes);
  }
  // At most half full, also when no two tokens share a prefix.
  edges_.resize(std::bit_ceil(2 * bytes));
  shift_ = 32 - static_cast<unsigned>(std::countr_zero(edges_.size()));
  id_at_.push_back(-1);
  inside_ = make_child(make_child(0, '#'), '#');
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    std::uint32_t node = 0;
    for (const char byte : vocabulary.token(id)) node = make_child(node, byte);
    id_at_[node] = id;
  }
}

std::uint32_t TokenTrie::child(std::uint32_t node, char byte) const {
  const std::uint32_t from = node * 256 + static_cast<unsigned char>(byte);
  for (std::size_t at = place(from); edges_[at].to != 0; at = (at + 1) & (edges_.size() - 1)) {
    if (edges_[at].from == from) return edges_[at].to;
  }
  return 0;
}

std::uint32_t TokenTrie::make_child(std::uint32_t node, char byte) {
  const std::uint32_t known = child(node, byte);
  if (known != 0) return known;
  const std::uint32_t from = node * 256 + static_cast<unsigned char>(byte);
  std::size_t at = place(from);
  while (edges_[at].to != 0) at = (at + 1) & (edges_.size() - 1);
  edges_[at] = {from, static_cast<std::uint32_t>(id_at_.size())};
  id_at_.push_back(-1);
  return edges_[at].to;
}

TokenTrie::Match TokenTrie::longest(std::string_view text, bool inside_word) const {
  Match match;
  std::uint32_t node = inside_word ? inside_ : 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    node = child(node, text[i]);
    if (node == 0) break;
    if (id_at_[node] >= 0) match = {id_at_[node], i + 1};
  }
  return match;
}

}  // namespace motley::io
