#include <algorithm>
#include <vector>

#include "core/error.h"
#include "io/hdf5_rows.h"
#include "io/image_set.h"
#include "io/pixel_statistics.h"

namespace motley::io {
namespace {

constexpr std::uint64_t samples_looked_at = 4096, rows_at_once = 64;
constexpr std::uint64_t bytes_at_once = 16 << 20;

PixelStatistics look_at_pixels(const ImageSet& set) {
  const Field& field = set.source.fields.at(0);
  const std::uint64_t rows = set.source.rows, row_bytes = field.row_bytes();
  const std::uint64_t block =
      std::min(std::clamp<std::uint64_t>(bytes_at_once / row_bytes, 1, rows_at_once), rows);
  const bool all = rows <= samples_looked_at;
  const std::uint64_t blocks = all ? (rows + block - 1) / block : samples_looked_at / rows_at_once;
  const Hdf5Rows reader(set.source.path, field, rows);
  PixelStatistics statistics(set.channels);
  std::vector<std::byte> bytes(block * row_bytes);
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::uint64_t first = all ? i * block : (rows - block) / (blocks - 1) * i;
    const std::uint64_t count = std::min(block, rows - first);
    reader.read_range(first, count, bytes.data());
    statistics.add(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                   count * row_bytes / static_cast<std::uint64_t>(set.channels));
  }
  return statistics;
}

}  // namespace

ImageFacts find_image_facts(const ImageSet& set) {
  ImageFacts facts = set.source.images.value_or(ImageFacts{});
  if (facts.classes == 0) facts.classes = check_labels(set, 0, set.source.rows, most_classes) + 1;
  if (facts.mean.empty()) {
    const PixelStatistics statistics = look_at_pixels(set);
    facts.mean = statistics.mean();
    facts.deviation = statistics.deviation();
  }
  return facts;
}

}  // namespace motley::io
