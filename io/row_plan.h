// From the rows that were asked for to the bytes that are read: sorted, without repeats, neighbours merged,
// in passes of bounded size. Pure functions of numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace motley::io {

// The rows of a window in ascending order, each once, and where each of them is wanted.
struct SortedRows {
  std::vector<std::uint64_t> rows;
  std::vector<std::uint64_t> places;  // indices into the asked-for order, grouped by row
  std::vector<std::size_t> first;     // rows[i] is wanted at places[first[i]] .. places[first[i + 1] - 1]

  // Copies row `index` (of `rows`) from `source` to every place of `out` that wants it.
  void scatter(std::size_t index, const std::byte* source, std::size_t row_bytes, std::byte* out) const;
};

SortedRows sort_rows(std::span<const std::uint64_t> asked);

// A run of bytes, counted from the first byte of row 0.
struct Block {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool operator==(const Block&) const = default;
};

// One read: blocks in ascending order, without overlap, that land in memory end to end.
struct ReadPass {
  std::size_t first_row = 0;           // the first of SortedRows::rows that it fetches
  std::vector<std::uint64_t> landing;  // where that row and the following ones begin in the pass's memory
  std::vector<Block> blocks;
  std::uint64_t bytes = 0;  // sum over the blocks
};

// Rows at most gap_bytes apart become one block (what lies between is read and thrown away). A pass holds at
// most pass_bytes, or one row if that is more.
std::vector<ReadPass> plan_passes(std::span<const std::uint64_t> sorted, std::uint64_t row_bytes,
                                  std::uint64_t gap_bytes, std::uint64_t pass_bytes);

}  // namespace motley::io
