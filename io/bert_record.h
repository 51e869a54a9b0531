// One BERT training sample as bytes: the same in a packed file and in a window, so that a row of the file is
// one read and needs no change on the way to the device.
//
// The members lie one behind the other without padding, in the order of the six data sets of a shard: a
// sample of 128 tokens and 20 predictions takes 593 bytes. Integers are little-endian and unaligned: copy
// them out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace motley::io {

// What the network can take; 0: not known, any number that the record holds is right.
struct BertLimits {
  std::int64_t vocab_size = 0;
  std::int64_t type_vocab_size = 0;
  std::int64_t max_position = 0;
  bool operator==(const BertLimits&) const = default;
};

struct BertLayout {
  std::int64_t seq_length = 0;   // S
  std::int64_t predictions = 0;  // P; 0: the samples are not masked yet
  DType id = DType::u16;         // of token ids: u16 or u32

  // Where each member begins.
  std::size_t input_ids() const { return 0; }                                                    // id [S]
  std::size_t input_mask() const { return tokens() * size_of(id); }                              // u8 [S]
  std::size_t segment_ids() const { return input_mask() + tokens(); }                            // u8 [S]
  std::size_t masked_lm_positions() const { return segment_ids() + tokens(); }                   // u16 [P]
  std::size_t masked_lm_ids() const { return masked_lm_positions() + 2 * masked(); }             // id [P]
  std::size_t next_sentence_labels() const { return masked_lm_ids() + masked() * size_of(id); }  // u8
  std::size_t row_bytes() const { return next_sentence_labels() + 1; }

  std::size_t tokens() const { return static_cast<std::size_t>(seq_length); }
  std::size_t masked() const { return static_cast<std::size_t>(predictions); }
  bool operator==(const BertLayout&) const = default;
};

// A member of the record, which is also a data set of a shard and a member of the packed file's compound
// type.
struct BertMember {
  std::string_view name;  // "input_ids"
  DType dtype;
  std::size_t offset = 0;
  std::size_t length = 0;  // elements; a single number has 1
  bool array = true;       // whether it is an array in the compound type, and has two dimensions in a shard
};

// The members in the order in which they lie: six, or the four that samples without predictions have.
std::vector<BertMember> members_of(const BertLayout& layout);

// Token ids up to this number need two bytes.
constexpr std::int64_t largest_u16 = 65535;
// The longest sequence whose positions the record holds.
constexpr std::int64_t longest_sequence = largest_u16 + 1;
// The smallest id type that holds a vocabulary; u32 when its size is not known.
DType id_type(std::int64_t vocab_size);

// The attribute of a shard or a packed file that says which vocabulary its ids count through, by
// vocabulary_fingerprint().
constexpr const char* vocabulary_attribute = "vocab_xxh3";

// Where unpack() puts a sample. Parts of which nothing is wanted are left empty.
struct BertArrays {
  std::span<std::int32_t> input_ids = {}, input_mask = {}, segment_ids = {};  // [S]
  std::span<std::int32_t> masked_lm_positions = {}, masked_lm_ids = {};       // [P]
  std::int32_t* next_sentence_label = nullptr;
};

// Copies the members of one record of layout.row_bytes() bytes out of it. A span that is not empty has the
// length of its member.
void unpack(const BertLayout& layout, const std::byte* row, const BertArrays& out);

// Member `index` of `layout` as int32 values [length].
void unpack_member(const BertMember& member, const std::byte* row, std::int32_t* out);

}  // namespace motley::io
