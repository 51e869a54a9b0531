// Sizes for people.
#pragma once

#include <cstdint>
#include <string>

namespace motley {

// "512 bytes", "61.4 MiB", "1.2 GiB": powers of 1024.
std::string in_units(std::uint64_t bytes);

}  // namespace motley
