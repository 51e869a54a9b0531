#include "core/philox.h"

namespace motley {
namespace {

// The first known-answer vector of the authors' Random123 distribution (kat_vectors); tests/unit/core holds
// the others. Checked here so that no build with a broken generator can exist.
constexpr Philox4 zero_answer = philox4x32_10({0, 0, 0, 0}, 0, 0);
static_assert(zero_answer.x == 0x6627e8d5u && zero_answer.y == 0xe169c58du && zero_answer.z == 0xbc57ac4cu &&
              zero_answer.w == 0x9b00dbd8u);

}  // namespace
}  // namespace motley
