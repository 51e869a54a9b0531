#include "io/bert_record.h"

#include <cstring>

#include "core/error.h"

namespace motley::io {
namespace {

template <class T>
void widen(const std::byte* from, std::size_t count, std::int32_t* out) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    out[i] = static_cast<std::int32_t>(value);
  }
}

void widen(DType dtype, const std::byte* from, std::size_t count, std::int32_t* out) {
  if (dtype == DType::u8) return widen<std::uint8_t>(from, count, out);
  if (dtype == DType::u16) return widen<std::uint16_t>(from, count, out);
  MOTLEY_CHECK(dtype == DType::u32);
  widen<std::uint32_t>(from, count, out);
}

}  // namespace

std::vector<BertMember> members_of(const BertLayout& layout) {
  const std::size_t s = layout.tokens(), p = layout.masked();
  std::vector<BertMember> members = {{"input_ids", layout.id, layout.input_ids(), s},
                                     {"input_mask", DType::u8, layout.input_mask(), s},
                                     {"segment_ids", DType::u8, layout.segment_ids(), s}};
  if (p > 0) {
    members.push_back({"masked_lm_positions", DType::u16, layout.masked_lm_positions(), p});
    members.push_back({"masked_lm_ids", layout.id, layout.masked_lm_ids(), p});
  }
  members.push_back({"next_sentence_labels", DType::u8, layout.next_sentence_labels(), 1, false});
  return members;
}

DType id_type(std::int64_t vocab_size) {
  return vocab_size > 0 && vocab_size <= largest_u16 + 1 ? DType::u16 : DType::u32;
}

void unpack_member(const BertMember& member, const std::byte* row, std::int32_t* out) {
  widen(member.dtype, row + member.offset, member.length, out);
}

void unpack(const BertLayout& layout, const std::byte* row, const BertArrays& out) {
  const auto take = [row](std::span<std::int32_t> to, DType dtype, std::size_t offset, std::size_t length) {
    if (to.empty()) return;
    MOTLEY_CHECK(to.size() == length);
    widen(dtype, row + offset, length, to.data());
  };
  const std::size_t s = layout.tokens(), p = layout.masked();
  take(out.input_ids, layout.id, layout.input_ids(), s);
  take(out.input_mask, DType::u8, layout.input_mask(), s);
  take(out.segment_ids, DType::u8, layout.segment_ids(), s);
  take(out.masked_lm_positions, DType::u16, layout.masked_lm_positions(), p);
  take(out.masked_lm_ids, layout.id, layout.masked_lm_ids(), p);
  if (out.next_sentence_label != nullptr)
    *out.next_sentence_label = std::to_integer<std::int32_t>(row[layout.next_sentence_labels()]);
}

}  // namespace motley::io
