#include "core/error.h"

namespace motley {

void fail_internal(const char* condition, const char* file, int line) {
  fail(ExitCode::internal, "this is a bug in motley: {}:{} expected {}", file, line, condition);
}

}  // namespace motley
