// What each test program brings to half_networks_test.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace motley::test {

struct HalfCase {
  std::string network;
  DType type = DType::bf16;
};

inline void PrintTo(const HalfCase& tested, std::ostream* out) {
  *out << tested.network;
}

std::vector<HalfCase> half_cases();
std::unique_ptr<Backend> make_backend();

}  // namespace motley::test
