#include "comm/host_sum.h"

#include <span>

namespace motley::comm {

HostSum::HostSum(const Communicator& world) : world_(world.handle(), world.timeout_s()) {
  world_.speak_as(world.spoken_rank());
}

void HostSum::add_up(View values, const char* what) {
  world_.all_reduce_sum({values.as<double>(), static_cast<std::size_t>(values.elements())}, what);
}

}  // namespace motley::comm
