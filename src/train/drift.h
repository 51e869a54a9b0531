// Do all ranks still have the same parameters? They take the same steps on the same summed gradients, so on devices of one
// kind parameters are equal bit for bit: a rank whose memory or arithmetic has failed is found by comparing checksums.
// Devices of different kinds round the optimizer's step differently: theirs are compared by sums and norms of blocks.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "kernels/backend.h"

namespace motley::train {

struct Fingerprint {
  static constexpr std::size_t blocks = 32;
  std::array<double, 4> hash{};                  // XXH3-128 of the bytes, 32 bits each
  std::array<double, blocks> sums{}, squares{};  // of the elements of each block, and of their squares
};
// Without blocks: the hash alone.
Fingerprint fingerprint(std::span<const float> parameters, bool with_blocks = true);

// Ranks that are not as the others; kinds[r] is the kind of rank r's device, by a number of its own.
//   Within a kind: all whose bits are not those that most have; when no bits are more frequent than all others, every one.
//   Between kinds: all of a kind whose blocks are not those of the kind that most ranks have.
std::vector<int> odd_ones_out(std::span<const Fingerprint> ranks, std::span<const int> kinds);

class DriftCheck {
 public:
  // Collective.
  DriftCheck(Backend& backend, const comm::Communicator& world);
  // Compares the parameters of all ranks after `step`. AgreedError(device) that names the odd ones with their hosts and
  // devices. Collective.
  void verify(ConstView parameters, std::int64_t step) const;

 private:
  std::string name_of(int rank) const;

  Backend& backend_;
  const comm::Communicator& world_;
  std::vector<int> kinds_;
  bool same_kind_ = true;
};

}  // namespace motley::train
