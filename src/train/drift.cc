#include "train/drift.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <utility>

#include "core/error.h"

namespace motley::train {
namespace {

// Steps on the same gradient round to about 1e-7 of a parameter; over a million steps that adds up to 1e-4 at random.
constexpr double most_between_kinds = 1e-2;

std::array<double, 2> halves(std::uint64_t number) {
  return {static_cast<double>(number >> 32), static_cast<double>(number & 0xffffffffU)};
}

constexpr std::size_t count_of_numbers = 4 + 2 * Fingerprint::blocks;

std::vector<double> to_numbers(const Fingerprint& print) {
  std::vector<double> all(print.hash.begin(), print.hash.end());
  all.insert(all.end(), print.sums.begin(), print.sums.end());
  all.insert(all.end(), print.squares.begin(), print.squares.end());
  return all;
}

Fingerprint from_numbers(const double* numbers) {
  Fingerprint print;
  std::copy_n(numbers, print.hash.size(), print.hash.begin());
  std::copy_n(numbers + print.hash.size(), print.sums.size(), print.sums.begin());
  std::copy_n(numbers + print.hash.size() + print.sums.size(), print.squares.size(), print.squares.begin());
  return print;
}

// Not when a number is not finite.
bool are_close(const Fingerprint& a, const Fingerprint& b) {
  for (std::size_t i = 0; i < Fingerprint::blocks; ++i) {
    // A sum moves by no more than the root of the number of elements times the norm; that number is the same for both.
    const double norm = std::sqrt(b.squares[i]);
    if (!(std::abs(std::sqrt(a.squares[i]) - norm) <= most_between_kinds * norm)) return false;
    if (!(std::abs(a.sums[i] - b.sums[i]) <= most_between_kinds * (std::abs(b.sums[i]) + norm))) return false;
  }
  return true;
}

// The ranks of one kind by their bits, and which bits most of them have: end() when no one's are more frequent.
using Groups = std::map<std::array<double, 4>, std::vector<int>>;

Groups::const_iterator most_frequent(const Groups& groups) {
  const auto largest = std::max_element(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  });
  const auto as_large = std::count_if(groups.begin(), groups.end(), [&](const auto& group) {
    return group.second.size() == largest->second.size();
  });
  return as_large == 1 ? largest : groups.end();
}

}  // namespace

Fingerprint fingerprint(std::span<const float> parameters, bool with_blocks) {
  Fingerprint print;
  const XXH128_hash_t hash = XXH3_128bits(parameters.data(), parameters.size_bytes());
  const std::array<double, 2> high = halves(hash.high64), low = halves(hash.low64);
  print.hash = {high[0], high[1], low[0], low[1]};
  if (!with_blocks) return print;
  for (std::size_t block = 0; block < Fingerprint::blocks; ++block) {
    const std::size_t begin = parameters.size() * block / Fingerprint::blocks,
                      end = parameters.size() * (block + 1) / Fingerprint::blocks;
    for (std::size_t i = begin; i < end; ++i) {
      const double value = parameters[i];
      print.sums[block] += value;
      print.squares[block] += value * value;
    }
  }
  return print;
}

std::vector<int> odd_ones_out(std::span<const Fingerprint> ranks, std::span<const int> kinds) {
  MOTLEY_CHECK(ranks.size() == kinds.size());
  std::map<int, Groups> by_kind;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    by_kind[kinds[rank]][ranks[rank].hash].push_back(static_cast<int>(rank));

  std::vector<int> odd;
  std::map<int, const std::vector<int>*> agreed;  // of each kind, those that are of one mind
  for (const auto& [kind, groups] : by_kind) {
    const auto right = most_frequent(groups);
    if (right != groups.end()) agreed[kind] = &right->second;
    for (auto group = groups.begin(); group != groups.end(); ++group)
      if (group != right) odd.insert(odd.end(), group->second.begin(), group->second.end());
  }
  const auto model = std::max_element(agreed.begin(), agreed.end(), [](const auto& a, const auto& b) {
    return a.second->size() < b.second->size();
  });
  for (const auto& [kind, members] : agreed) {
    const auto first_of = [&](const std::vector<int>& group) -> const Fingerprint& {
      return ranks[static_cast<std::size_t>(group[0])];
    };
    if (kind != model->first && !are_close(first_of(*members), first_of(*model->second)))
      odd.insert(odd.end(), members->begin(), members->end());
  }
  std::sort(odd.begin(), odd.end());
  return odd;
}

DriftCheck::DriftCheck(Backend& backend, const comm::Communicator& world) : backend_(backend), world_(world) {
  const std::string kind = backend.device().kind + " " + backend.device().name;
  const auto hash = halves(XXH3_64bits(kind.data(), kind.size()));
  const std::vector<double> all = world.all_gather(hash, "the kinds of devices");
  std::map<std::pair<double, double>, int> numbers_of;
  for (std::size_t i = 0; i < all.size(); i += 2)
    kinds_.push_back(
        numbers_of.try_emplace({all[i], all[i + 1]}, static_cast<int>(numbers_of.size())).first->second);
  same_kind_ = numbers_of.size() == 1;
}

std::string DriftCheck::name_of(int rank) const {
  const std::string device = backend_.device().name;
  return world_.broadcast(fmt::format("rank {} (host {}, {})", world_.rank(), world_.host(), device), rank,
                          "the names of ranks");
}

void DriftCheck::verify(ConstView parameters, std::int64_t step) const {
  if (world_.size() == 1) return;
  const auto elements = static_cast<std::size_t>(parameters.elements());
  std::vector<float> copy;
  const auto* values = static_cast<const float*>(parameters.data);
  backend_.synchronize();
  if (backend_.device().kind != "cpu") {
    copy.resize(elements);
    backend_.copy_to_host(copy.data(), parameters.data, parameters.bytes());
    backend_.synchronize();
    values = copy.data();
  }
  const std::vector<double> mine = to_numbers(fingerprint({values, elements}, !same_kind_));
  const std::vector<double> all = world_.all_gather(mine, "the checksums of the parameters");
  std::vector<Fingerprint> ranks;
  for (std::size_t i = 0; i < all.size(); i += count_of_numbers) ranks.push_back(from_numbers(&all[i]));
  const std::vector<int> odd = odd_ones_out(ranks, kinds_);
  if (odd.empty()) return;
  std::string names;
  for (const int rank : odd) names += (names.empty() ? "" : ", ") + name_of(rank);
  const bool nobody_knows = odd.size() == ranks.size();
  throw AgreedError(
      ExitCode::device,
      nobody_knows
          ? fmt::format(
                "step {}: the parameters differ between {}, and no more ranks agree on any of them: the "
                "memory or the processor of one has failed; start the run again without it",
                step, names)
          : fmt::format("step {}: the parameters on {} are not those of the other ranks: its memory or its "
                        "processor has failed; start the run again without it",
                        step, names));
}

}  // namespace motley::train
