#include "io/hdf5_numbers.h"

#include "io/hdf5.h"

namespace motley::io {
namespace {

constexpr hssize_t most_numbers = 65536;

void add(hid_t object, const std::string& where, const char* name, hid_t type, hid_t space,
         const std::vector<double>& zeros, ExitCode code) {
  const Hdf5Lock lock;
  const Hdf5Handle attribute(
      MOTLEY_HDF5(where, code, H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT)), H5Aclose);
  MOTLEY_HDF5(where, code, H5Awrite(attribute.get(), H5T_NATIVE_DOUBLE, zeros.data()));
}

}  // namespace

std::optional<std::vector<double>> read_numbers_attribute(hid_t object, const std::string& where,
                                                          const char* name) {
  const Hdf5Lock lock;
  if (H5Aexists(object, name) <= 0) return std::nullopt;
  const std::string what = fmt::format("{}, attribute `{}`", where, name);
  const Hdf5Handle attribute(MOTLEY_HDF5(what, ExitCode::input, H5Aopen(object, name, H5P_DEFAULT)),
                             H5Aclose);
  const Hdf5Handle type(MOTLEY_HDF5(what, ExitCode::input, H5Aget_type(attribute.get())), H5Tclose);
  const Hdf5Handle space(MOTLEY_HDF5(what, ExitCode::input, H5Aget_space(attribute.get())), H5Sclose);
  const H5T_class_t kind = H5Tget_class(type.get());
  const hssize_t count = H5Sget_simple_extent_npoints(space.get());
  if ((kind != H5T_FLOAT && kind != H5T_INTEGER) || count < 1 || count > most_numbers)
    fail(ExitCode::input, "{} is not a list of numbers; expected one, or no such attribute", what);
  std::vector<double> numbers(static_cast<std::size_t>(count));
  MOTLEY_HDF5(what, ExitCode::input, H5Aread(attribute.get(), H5T_NATIVE_DOUBLE, numbers.data()));
  return numbers;
}

void add_numbers_attribute(hid_t object, const std::string& where, const char* name, std::size_t count,
                           ExitCode code) {
  const hsize_t extent = count;
  const Hdf5Handle space(MOTLEY_HDF5(where, code, H5Screate_simple(1, &extent, nullptr)), H5Sclose);
  add(object, where, name, H5T_IEEE_F64LE, space.get(), std::vector<double>(count), code);
}

void add_integer_attribute(hid_t object, const std::string& where, const char* name, ExitCode code) {
  const Hdf5Handle space(MOTLEY_HDF5(where, code, H5Screate(H5S_SCALAR)), H5Sclose);
  add(object, where, name, H5T_STD_I64LE, space.get(), {0.0}, code);
}

void overwrite_numbers_attribute(hid_t object, const std::string& where, const char* name,
                                 const std::vector<double>& numbers, ExitCode code) {
  const Hdf5Lock lock;
  const Hdf5Handle attribute(MOTLEY_HDF5(where, code, H5Aopen(object, name, H5P_DEFAULT)), H5Aclose);
  MOTLEY_HDF5(where, code, H5Awrite(attribute.get(), H5T_NATIVE_DOUBLE, numbers.data()));
}

}  // namespace motley::io
