// GPUs in tests: simulated ones, or those of the machine, as the program is linked.
#pragma once

#include <cstdint>

namespace motley::test {

// How many ranks of this host can have a GPU each.
int gpus_of_host();

// The order in which simulated GPUs run threads and streams, from here on; nothing on real ones.
void set_gpu_order(std::uint64_t order);

}  // namespace motley::test
