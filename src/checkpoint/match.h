// Do the tensors of a file and those of the model belong together?
#pragma once

#include <span>
#include <string>

#include "io/safetensors.h"

namespace motley::checkpoint {

// Throws Error(checkpoint) with one sentence that lists every tensor that the file lacks, that it has too
// many, or that has another shape or element type than `wanted` says.
void require_same_tensors(const std::string& file, std::span<const io::SafetensorsEntry> found,
                          std::span<const io::SafetensorsEntry> wanted);

}  // namespace motley::checkpoint
