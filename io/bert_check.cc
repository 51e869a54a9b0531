#include "io/bert_check.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace motley::io {
namespace {

std::uint64_t largest_of(DType dtype) {
  if (dtype == DType::u8) return std::numeric_limits<std::uint8_t>::max();
  if (dtype == DType::u16) return std::numeric_limits<std::uint16_t>::max();
  return std::numeric_limits<std::uint32_t>::max();
}

bool is_token(std::string_view member) {
  return member == "input_ids" || member == "masked_lm_ids";
}

// The largest value, for which the loop has no branches and is vectorised.
template <class T>
std::uint64_t largest_in(const std::byte* from, std::size_t count) {
  T largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    largest = std::max(largest, value);
  }
  return largest;
}

std::uint64_t largest_in(const BertMember& member, const std::byte* row) {
  const std::byte* from = row + member.offset;
  if (member.dtype == DType::u8) return largest_in<std::uint8_t>(from, member.length);
  if (member.dtype == DType::u16) return largest_in<std::uint16_t>(from, member.length);
  return largest_in<std::uint32_t>(from, member.length);
}

[[noreturn]] void find_and_fail(const RowSource& source, const BertMember& member, const std::byte* row,
                                std::uint64_t id, std::uint64_t largest) {
  for (std::size_t column = 0; column < member.length; ++column) {
    BertMember one = member;
    one.offset += column * size_of(member.dtype);
    one.length = 1;
    const std::uint64_t value = largest_in(one, row);
    if (value > largest)
      fail_bert_value(source.where(id), *source.bert, source.limits, member, column, std::to_string(value));
  }
  fail_internal("a value that is too large", __FILE__, __LINE__);
}

}  // namespace

std::uint64_t largest_value(const BertLayout& layout, const BertLimits& limits, const BertMember& member) {
  const std::uint64_t held = largest_of(member.dtype);
  const auto below = [held](std::int64_t limit) {
    return limit > 0 ? std::min(held, static_cast<std::uint64_t>(limit - 1)) : held;
  };
  if (is_token(member.name)) return below(limits.vocab_size);
  if (member.name == "segment_ids") return below(limits.type_vocab_size);
  if (member.name == "masked_lm_positions") return below(layout.seq_length);
  return 1;
}

void fail_bert_value(const std::string& where, const BertLayout& layout, const BertLimits& limits,
                     const BertMember& member, std::size_t column, const std::string& value) {
  const std::uint64_t largest = largest_value(layout, limits, member);
  std::string why;
  if (is_token(member.name)) {
    why = limits.vocab_size > 0 ? fmt::format(" (the vocabulary has {} entries)", limits.vocab_size)
                                : fmt::format(" (ids are stored as {})", name_of(member.dtype));
  } else if (member.name == "masked_lm_positions") {
    why = fmt::format(" (the samples have {} tokens)", layout.seq_length);
  } else if (member.name == "segment_ids" && limits.type_vocab_size > 0) {
    why = fmt::format(" (the network knows {} segments)", limits.type_vocab_size);
  }
  const std::string index = member.array ? fmt::format("[{}]", column) : "";
  fail(ExitCode::input, "{}: `{}`{} is {}; expected 0 {} {}{}", where, member.name, index, value,
       largest == 1 ? "or" : "to", largest, why);
}

std::string bert_mask_problem(const BertLayout& layout, const std::byte* row) {
  const std::byte* mask = row + layout.input_mask();
  const std::byte* end = mask + layout.tokens();
  if (std::find(mask, end, std::byte{1}) == end) return "`input_mask` has no token; expected at least one";
  const std::size_t id_bytes = size_of(layout.id);
  for (std::size_t i = 0; i < layout.masked(); ++i) {
    std::uint16_t position;
    std::memcpy(&position, row + layout.masked_lm_positions() + i * sizeof(position), sizeof(position));
    if (mask[position] == std::byte{1}) continue;
    std::uint32_t id = 0;  // little-endian
    std::memcpy(&id, row + layout.masked_lm_ids() + i * id_bytes, id_bytes);
    if (id == 0) continue;
    return fmt::format("`masked_lm_positions`[{}] is {}, where `input_mask` is 0; expected a token there", i,
                       position);
  }
  return {};
}

void check_bert_rows(const RowSource& source, const Window& window) {
  if (!source.bert || !source.shards.empty()) return;
  MOTLEY_CHECK(window.fields.size() == 1 && window.ids.size() == window.rows);
  const std::size_t row_bytes = source.bert->row_bytes();
  const std::vector<BertMember> members = members_of(*source.bert);
  std::vector<std::uint64_t> largest;
  for (const BertMember& member : members)
    largest.push_back(largest_value(*source.bert, source.limits, member));
  for (std::uint64_t i = 0; i < window.rows; ++i) {
    const std::byte* row = window.fields[0].data() + i * row_bytes;
    for (std::size_t m = 0; m < members.size(); ++m) {
      if (largest_in(members[m], row) > largest[m])
        find_and_fail(source, members[m], row, window.ids[i], largest[m]);
    }
    const std::string problem = bert_mask_problem(*source.bert, row);
    if (!problem.empty()) fail(ExitCode::input, "{}: {}", source.where(window.ids[i]), problem);
  }
}

}  // namespace motley::io
