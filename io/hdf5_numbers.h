// Attributes of HDF5 objects that are numbers.
#pragma once

#include <hdf5.h>

#include <optional>
#include <string>
#include <vector>

#include "core/error.h"

namespace motley::io {

// The attribute `name` of an open object, as float64, whatever its numeric type and number of dimensions; nothing when
// there is none. Error(input) when it is something else. `where` is what errors begin with.
std::optional<std::vector<double>> read_numbers_attribute(hid_t object, const std::string& where,
                                                          const char* name);

// Adds an attribute of `count` zeros, float64.
void add_numbers_attribute(hid_t object, const std::string& where, const char* name, std::size_t count,
                           ExitCode code);
// The same of one zero, int64.
void add_integer_attribute(hid_t object, const std::string& where, const char* name, ExitCode code);
// Overwrites the numbers of an attribute, which takes no more room in the file than there is.
void overwrite_numbers_attribute(hid_t object, const std::string& where, const char* name,
                                 const std::vector<double>& numbers, ExitCode code);

}  // namespace motley::io
