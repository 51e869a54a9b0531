// How work ends that only some ranks know to have failed.
#pragma once

#include <functional>

namespace motley::cli {

// Runs collective work. An AgreedError passes through: every rank has it. Anything else is known to this rank
// alone: it is said, and the whole job ends with its code, at once, while the objects that the work uses
// still live (their destructors could wait for ranks that will not come).
void run_or_abort(const std::function<void()>& work);

}  // namespace motley::cli
