#include "comm/gradient_reducer.h"

#include <algorithm>

#include "comm/communicator.h"

namespace motley::comm {
namespace {

// Elements: a cache line of float32, and whole vectors for the summing loop.
constexpr std::size_t cut_at = 16;

std::vector<std::size_t> cut_into_buckets(std::size_t elements, std::size_t bucket_bytes, std::size_t element_bytes) {
  // MPI counts are ints, and the last bucket may be half as large again.
  const std::size_t most = std::min(bucket_bytes, Communicator::max_message_bytes) / element_bytes;
  const std::size_t length = std::max(cut_at, most / cut_at * cut_at);
  std::vector<std::size_t> ends;
  std::size_t end = 0;
  while (elements - end > length + length / 2) ends.push_back(end += length);
  if (end < elements) ends.push_back(elements);
  return ends;
}

}  // namespace

GradientReducer::GradientReducer(std::size_t elements, std::size_t bucket_bytes, DType dtype)
    : bucket_ends_(cut_into_buckets(elements, bucket_bytes, size_of(dtype))), dtype_(dtype) {
  MOTLEY_CHECK(dtype == DType::f32 || dtype == DType::bf16);
}

std::size_t GradientReducer::whole_buckets(std::size_t ready) const {
  const auto whole = std::upper_bound(bucket_ends_.begin(), bucket_ends_.end(), ready);
  return static_cast<std::size_t>(whole - bucket_ends_.begin());
}

}  // namespace motley::comm
