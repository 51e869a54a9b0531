#include "kernels/primitive_cache.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace motley::test {
namespace {

struct Numbered : PreparedPrimitive {
  explicit Numbered(std::int64_t number_) : number(number_) {}
  std::int64_t number;
};

class PrimitiveCacheTest : public testing::Test {
 protected:
  // Asks for a key's entry, and checks that it is that key's.
  void use(std::int64_t key) {
    const Numbered& entry = cache.find_or_make<Numbered>({key, -key}, [&] {
      made.push_back(key);
      return std::make_unique<Numbered>(key);
    });
    EXPECT_EQ(entry.number, key);
  }
  std::vector<std::int64_t> take_made() { return std::exchange(made, {}); }

  PrimitiveCache cache{3};
  std::vector<std::int64_t> made;
};

TEST_F(PrimitiveCacheTest, makes_an_entry_once) {
  for (int repeat = 0; repeat < 3; ++repeat)
    for (const std::int64_t key : {1, 2, 3}) use(key);
  EXPECT_EQ(take_made(), (std::vector<std::int64_t>{1, 2, 3}));
}

TEST_F(PrimitiveCacheTest, a_full_one_drops_what_was_not_used_for_longest_and_makes_it_again) {
  for (const std::int64_t key : {1, 2, 3, 1, 4}) use(key);
  take_made();
  for (const std::int64_t key : {1, 3, 4}) use(key);
  EXPECT_EQ(take_made(), std::vector<std::int64_t>{});
  use(2);
  EXPECT_EQ(take_made(), std::vector<std::int64_t>{2});
  use(1);
  EXPECT_EQ(take_made(), std::vector<std::int64_t>{1});
}

}  // namespace
}  // namespace motley::test
