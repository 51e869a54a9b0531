// `motley data inspect FILE`: what an HDF5 file holds.
#pragma once

#include <string>

namespace motley::io {

// A text for people: every data set with its shape, type, layout (contiguous or chunks, filters), bytes in
// the file and the smallest and largest value of integer data sets of one dimension; whether motley can read
// the file as an image set, packed or not, with samples per label, or as BERT samples, packed or a shard,
// with the ids that occur; if it cannot, why. Throws Error(input) when the file cannot be opened.
std::string inspect(const std::string& path);

}  // namespace motley::io
