// Small sums in host memory, by MPI_Iallreduce.
#pragma once

#include "comm/communicator.h"
#include "comm/small_sum.h"

namespace motley::comm {

class HostSum final : public SmallSum {
 public:
  // Collective over `world`, of which it makes a communicator of its own.
  explicit HostSum(const Communicator& world);

  void add_up(View values, const char* what) override;
  void wait(const char* /*what*/) override {}  // add_up() has waited

 private:
  Communicator world_;
};

}  // namespace motley::comm
