#include "io/hdf5_text.h"

#include <algorithm>

#include "io/hdf5.h"

namespace motley::io {
namespace {

constexpr std::size_t longest_text = 4096;

std::string read_variable(hid_t attribute, const std::string& where) {
  const Hdf5Handle type(MOTLEY_HDF5(where, ExitCode::input, H5Aget_type(attribute)), H5Tclose);
  char* text = nullptr;
  MOTLEY_HDF5(where, ExitCode::input, H5Aread(attribute, type.get(), &text));
  std::string result;
  if (text != nullptr) result.assign(text, std::find(text, text + longest_text, '\0'));
  H5free_memory(text);
  return result;
}

}  // namespace

std::string read_text_attribute(hid_t file, const std::string& path, const char* name) {
  const Hdf5Lock lock;
  if (H5Aexists(file, name) <= 0) return {};
  const std::string where = fmt::format("{}: attribute `{}`", path, name);
  const Hdf5Handle attribute(MOTLEY_HDF5(where, ExitCode::input, H5Aopen(file, name, H5P_DEFAULT)), H5Aclose);
  const Hdf5Handle type(MOTLEY_HDF5(where, ExitCode::input, H5Aget_type(attribute.get())), H5Tclose);
  const Hdf5Handle space(MOTLEY_HDF5(where, ExitCode::input, H5Aget_space(attribute.get())), H5Sclose);
  if (H5Tget_class(type.get()) != H5T_STRING || H5Sget_simple_extent_npoints(space.get()) != 1) return {};
  if (H5Tis_variable_str(type.get()) > 0) return read_variable(attribute.get(), where);
  const std::size_t bytes = H5Tget_size(type.get());
  if (bytes > longest_text) return {};
  std::string text(bytes, '\0');
  MOTLEY_HDF5(where, ExitCode::input, H5Aread(attribute.get(), type.get(), text.data()));
  text.erase(std::find(text.begin(), text.end(), '\0'), text.end());
  return text;
}

void write_text_attribute(hid_t file, const std::string& where, const char* name, const std::string& text,
                          ExitCode code) {
  const Hdf5Lock lock;
  const Hdf5Handle type(MOTLEY_HDF5(where, code, H5Tcopy(H5T_C_S1)), H5Tclose);
  MOTLEY_HDF5(where, code, H5Tset_size(type.get(), std::max<std::size_t>(text.size(), 1)));
  MOTLEY_HDF5(where, code, H5Tset_strpad(type.get(), H5T_STR_NULLPAD));
  MOTLEY_HDF5(where, code, H5Tset_cset(type.get(), H5T_CSET_UTF8));
  const Hdf5Handle space(MOTLEY_HDF5(where, code, H5Screate(H5S_SCALAR)), H5Sclose);
  const Hdf5Handle attribute(
      MOTLEY_HDF5(where, code,
                  H5Acreate2(file, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT)),
      H5Aclose);
  MOTLEY_HDF5(where, code, H5Awrite(attribute.get(), type.get(), text.data()));
}

}  // namespace motley::io
