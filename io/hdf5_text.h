// Attributes of HDF5 files that are text.
#pragma once

#include <hdf5.h>

#include <string>

#include "core/error.h"

namespace motley::io {

// The attribute `name` of an open file or group, of fixed or variable length; empty when there is none, or
// none that is a short text. `path` names the file in errors.
std::string read_text_attribute(hid_t file, const std::string& path, const char* name);

// Adds the attribute. Error(code) when that fails; `where` is what errors begin with.
void write_text_attribute(hid_t file, const std::string& where, const char* name, const std::string& text,
                          ExitCode code);

}  // namespace motley::io
