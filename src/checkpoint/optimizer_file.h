// optimizer.h5: the optimizer's state, one HDF5 group per kind of state and one float32 data set per
// parameter in it ("/exp_avg/conv1.weight"), contiguous, so that any tool, and any number of ranks, can read
// a part of it.
#pragma once

#include <filesystem>
#include <span>

#include "io/safetensors.h"

namespace motley::checkpoint {

// Creates `path` with the tensors, named "exp_avg/conv1.weight", and fsyncs it. Error(checkpoint).
void write_optimizer_file(const std::filesystem::path& path, std::span<const io::SafetensorsEntry> tensors);

// Reads all tensors of the file to wanted[i].data; what does not match is listed in one Error(checkpoint).
void read_optimizer_file(const std::filesystem::path& path, std::span<const io::SafetensorsEntry> wanted);

}  // namespace motley::checkpoint
