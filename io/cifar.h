// The binary files of CIFAR-10 and CIFAR-100 (https://www.cs.toronto.edu/~kriz/cifar.html): records of a label byte, or
// for CIFAR-100 of a coarse and a fine label, and 3072 bytes, the red, green and blue planes of 32 x 32 pixels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace motley::io {

enum class CifarKind { cifar10, cifar100 };

struct CifarFiles {
  CifarKind kind = CifarKind::cifar10;
  std::vector<std::string> paths;
};

// By their sizes, which are a multiple of the record's. Error(input) for a file that is missing, whose size is of neither
// kind or of both, and for files of different kinds.
CifarFiles recognise_cifar(const std::vector<std::string>& paths);
// The files of `subset` ("train" or "test") under the names that they are published with. Error(input) when the directory
// has none.
CifarFiles find_cifar(const std::string& directory, const std::string& subset);

struct CifarSummary {
  std::uint64_t samples = 0;
  std::int64_t classes = 0;
};

// Writes one packed HDF5 image set (32 x 32 x 3) of all files, in their order. `coarse`: the 20 coarse labels of CIFAR-100
// instead of the 100 fine ones. Streams. Error(input), which leaves no output, for a wrong size and for a label out of
// range (said with file and record); Error(usage) for coarse labels of CIFAR-10 and an output that is an input.
CifarSummary convert_cifar(const CifarFiles& files, bool coarse, const std::string& out_path);

}  // namespace motley::io
