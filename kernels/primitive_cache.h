// Prepared primitives of a library (oneDNN, cuDNN) by operation and shape, so that a training step creates
// none. Bounded: micro-batch sizes change over a run, and each of them needs primitives of its own. DenseNet-201,
// whose layers all differ in their channels, has 320 for each.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

namespace motley {

// What is kept for one operation and shape; operations derive their own.
struct PreparedPrimitive {
  virtual ~PreparedPrimitive() = default;
};

// Which operation, and every number that its primitive depends on.
using PrimitiveKey = std::array<std::int64_t, 20>;

class PrimitiveCache {
 public:
  explicit PrimitiveCache(std::size_t capacity = 1024) : capacity_(capacity) {}

  // The entry for `key`, made by make() (a std::unique_ptr<Prepared>) when there is none. When the cache is
  // full the entry that was not used for longest makes room.
  template <class Prepared, class Make>
  Prepared& find_or_make(const PrimitiveKey& key, Make make) {
    auto found = entries_.find(key);
    if (found == entries_.end()) {
      std::unique_ptr<Prepared> made = make();
      if (entries_.size() >= capacity_) entries_.erase(least_recently_used());
      found = entries_.emplace(key, Entry{std::move(made), 0}).first;
    }
    found->second.last_use = ++uses_;
    return static_cast<Prepared&>(*found->second.prepared);
  }

 private:
  struct Entry {
    std::unique_ptr<PreparedPrimitive> prepared;
    std::uint64_t last_use;
  };

  std::map<PrimitiveKey, Entry>::iterator least_recently_used() {
    return std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
      return a.second.last_use < b.second.last_use;
    });
  }

  std::size_t capacity_;
  std::uint64_t uses_ = 0;
  std::map<PrimitiveKey, Entry> entries_;
};

}  // namespace motley
