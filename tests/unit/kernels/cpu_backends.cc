#include "backend_test.h"

namespace motley::test {

std::vector<BackendCase> backends() {
  return {{"cpu_1_thread", [] { return make_cpu_backend(1); }},
          {"cpu_2_threads", [] { return make_cpu_backend(2); }}};
}

}  // namespace motley::test
