#include "models/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace motley {
namespace {

TEST(MemoryPlan, tensors_that_never_live_together_share_memory) {
  MemoryPlan plan;
  // A chain: each is written in one step and read in the next.
  for (int step = 0; step < 10; ++step) {
    const int tensor = plan.add({1000, 0}, step);
    plan.use(tensor, step + 1);
  }
  plan.join();
  EXPECT_EQ(plan.lay_out(1).bytes, 2 * 1024u) << "two at a time, in multiples of 256";
  EXPECT_EQ(plan.lay_out(64).bytes, 2 * 64000u);
}

TEST(MemoryPlan, a_tensor_takes_the_place_of_one_that_is_not_used_later) {
  MemoryPlan plan;
  const int first = plan.add({256, 0}, 0), kept = plan.add({256, 0}, 0);
  plan.use(kept, 2);
  const int over = plan.add({256, 0}, 1, {kept, first});
  plan.use(first, 1);
  const int late = plan.add({256, 0}, 1, {first});
  plan.use(late, 2);
  plan.use(over, 2);
  plan.join();
  const MemoryPlan::Layout layout = plan.lay_out(1);
  const auto offset = [&](int tensor) { return layout.offsets[static_cast<std::size_t>(tensor)]; };
  EXPECT_EQ(offset(over), offset(first));
  EXPECT_NE(offset(over), offset(kept)) << "which is used later";
  EXPECT_NE(offset(late), offset(first)) << "whose place is taken";
  EXPECT_EQ(layout.bytes, 3 * 256u);
}

TEST(MemoryPlan, fixed_parts_do_not_grow_with_the_samples) {
  MemoryPlan plan;
  plan.add({0, 512}, 0);
  plan.add({256, 256}, 0);
  plan.join();
  EXPECT_EQ(plan.lay_out(0).bytes, 512u + 256u);
  EXPECT_EQ(plan.lay_out(3).bytes, 512u + 1024u);
}

// No two tensors that live in the same step overlap, but where one takes the place of the other; and no plan is much
// larger than the most that lives at one time.
TEST(MemoryPlan, of_random_lifetimes_no_two_overlap) {
  std::mt19937 random(7);
  const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  double worst = 0;
  for (int round = 0; round < 200; ++round) {
    struct Lifetime {
      std::size_t bytes;
      int first, last, place;
    };
    std::vector<Lifetime> lives;
    const auto stands_in_for = [&](std::size_t later, std::size_t earlier) {
      int tensor = lives[later].place;
      while (tensor > static_cast<int>(earlier)) tensor = lives[static_cast<std::size_t>(tensor)].place;
      return tensor == static_cast<int>(earlier);
    };
    MemoryPlan plan;
    int step = 0;
    for (int i = 0; i < 60; ++i) {
      step += below(2);
      Lifetime life{static_cast<std::size_t>(1 + below(4000)), step, step + below(12), -1};
      std::vector<int> places;
      if (i > 0 && below(2) == 0) {
        const int place = below(i);
        if (lives[static_cast<std::size_t>(place)].last == step) places = {life.place = place};
      }
      const int tensor = plan.add({life.bytes, 0}, step, places);
      plan.use(tensor, life.last);
      lives.push_back(life);
    }
    plan.join();
    const MemoryPlan::Layout layout = plan.lay_out(1);
    std::size_t most = 0;
    for (int now = 0; now <= step; ++now) {
      std::size_t alive = 0;
      for (std::size_t i = 0; i < lives.size(); ++i) {
        if (lives[i].first > now || lives[i].last < now) continue;
        alive += lives[i].bytes;
        EXPECT_LE(layout.offsets[i] + lives[i].bytes, layout.bytes);
        for (std::size_t j = i + 1; j < lives.size(); ++j) {
          if (lives[j].first > now || lives[j].last < now) continue;
          if (stands_in_for(j, i)) continue;
          const bool apart = layout.offsets[i] + lives[i].bytes <= layout.offsets[j] ||
                             layout.offsets[j] + lives[j].bytes <= layout.offsets[i];
          EXPECT_TRUE(apart) << "tensors " << i << " and " << j << " of round " << round;
        }
      }
      most = std::max(most, alive);
    }
    worst = std::max(worst, static_cast<double>(layout.bytes) / static_cast<double>(most));
  }
  EXPECT_LT(worst, 1.5);
}

}  // namespace
}  // namespace motley
