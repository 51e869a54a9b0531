// The network of docs/extending.md.
#pragma once

#include <vector>

#include "models/image_archs.h"

namespace motley {

// What models/families.h would declare if it were one of the program's own.
void add_fire_net(std::vector<ImageArch>& list);

}  // namespace motley
