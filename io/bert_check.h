// What the values of a BERT sample may be, and the sentence about one that is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "io/bert_record.h"
#include "io/row_source.h"
#include "io/sample_reader.h"

namespace motley::io {

// The largest value of a member; the smallest is always 0. Token ids end with the vocabulary, positions with
// the sequence, segments with the network's types, and none exceeds what the record holds.
std::uint64_t largest_value(const BertLayout& layout, const BertLimits& limits, const BertMember& member);

// Throws Error(input): "FILE: row 17: `input_ids`[5] is 40000; expected 0 to 30521 (the vocabulary has 30522
// entries)". `value` is text, since files may hold 64-bit values of either sign.
[[noreturn]] void fail_bert_value(const std::string& where, const BertLayout& layout,
                                  const BertLimits& limits, const BertMember& member, std::size_t column,
                                  const std::string& value);

// What is wrong with a record whose values are all in their ranges; empty when nothing is. `input_mask` must
// have a token, and one at every position where a token is to be predicted. (Unused predictions have the
// id 0, and any position.)
std::string bert_mask_problem(const BertLayout& layout, const std::byte* row);

// Looks at every value of a window of packed records; Error(input) names the first that is wrong, with its
// file and row. (Records that come from shards have been looked at when they were made.) WindowReader does
// this in its thread, so that it costs the compute nothing.
void check_bert_rows(const RowSource& source, const Window& window);

}  // namespace motley::io
