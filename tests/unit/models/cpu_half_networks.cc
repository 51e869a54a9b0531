#include "golden_network.h"
#include "half_networks.h"

namespace motley::test {

std::vector<HalfCase> half_cases() {
  std::vector<HalfCase> cases;
  for (const std::string& name : golden_networks()) cases.push_back({name, DType::bf16});
  return cases;
}

std::unique_ptr<Backend> make_backend() {
  return make_cpu_backend(2);
}

}  // namespace motley::test
