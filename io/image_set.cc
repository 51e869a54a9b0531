#include "io/image_set.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "io/dataset_info.h"
#include "io/hdf5.h"
#include "io/integer_column.h"

namespace motley::io {
namespace {

constexpr std::uint64_t row_bytes_limit = 1ULL << 30;

DatasetInfo open_and_describe(hid_t file, const std::string& path, const char* name) {
  const Hdf5Lock lock;
  if (H5Lexists(file, name, H5P_DEFAULT) <= 0) {
    fail(ExitCode::input, "{} has no data set `{}`; it has {}", path, name, list_contents(file));
  }
  const Hdf5Handle object(MOTLEY_HDF5(path, ExitCode::input, H5Oopen(file, name, H5P_DEFAULT)), H5Oclose);
  if (H5Iget_type(object.get()) != H5I_DATASET) {
    fail(ExitCode::input, "{}: `{}` is a group; a data set was expected", path, name);
  }
  DatasetInfo info = describe_dataset(object.get(), path, name);
  if (!info.missing_filter.empty()) {
    fail(ExitCode::input,
         "{}: data set `{}` is compressed with {}, which the HDF5 library of this machine cannot undo; "
         "expected no compression or gzip",
         path, name, info.missing_filter);
  }
  return info;
}

void check_images(const std::string& path, const DatasetInfo& images) {
  if (images.dtype != DType::u8) {
    fail(ExitCode::input, "{}: data set `images` holds {}; expected uint8", path, images.type);
  }
  if (images.extents.size() != 4) {
    fail(
        ExitCode::input,
        "{}: data set `images` has the shape {}; expected four dimensions [samples, height, width, channels]",
        path, images.shape());
  }
  std::uint64_t row_bytes = 1;
  for (std::size_t i = 1; i < 4; ++i) {
    const std::uint64_t extent = images.extents[i];
    if (extent == 0 || extent > row_bytes_limit || row_bytes * extent > row_bytes_limit) {
      fail(ExitCode::input,
           "{}: data set `images` has the shape {}; expected images of at least one byte and at most 1 GiB",
           path, images.shape());
    }
    row_bytes *= extent;
  }
}

void check_labels_described(const std::string& path, const DatasetInfo& images, const DatasetInfo& labels) {
  if (!labels.is_integer()) {
    fail(ExitCode::input, "{}: data set `labels` holds {}; expected an integer type", path, labels.type);
  }
  if (labels.extents.size() != 1) {
    fail(ExitCode::input, "{}: data set `labels` has the shape {}; expected one dimension [samples]", path,
         labels.shape());
  }
  if (labels.extents[0] != images.extents[0]) {
    fail(ExitCode::input, "{}: `images` has {} samples and `labels` has {}; expected as many", path,
         images.extents[0], labels.extents[0]);
  }
  if (images.extents[0] == 0) {
    fail(ExitCode::input, "{}: data sets `images` and `labels` are empty; expected at least one sample",
         path);
  }
}

}  // namespace

ImageSet describe_image_set(const std::string& path) {
  const Hdf5Lock lock;
  const Hdf5Handle file = open_hdf5(path);
  const DatasetInfo images = open_and_describe(file.get(), path, "images");
  const DatasetInfo labels = open_and_describe(file.get(), path, "labels");
  check_images(path, images);
  check_labels_described(path, images, labels);

  ImageSet set;
  set.source = {path, images.extents[0], {images.as_field(), labels.as_field()}};
  set.height = static_cast<std::int64_t>(images.extents[1]);
  set.width = static_cast<std::int64_t>(images.extents[2]);
  set.channels = static_cast<std::int64_t>(images.extents[3]);
  return set;
}

void check_labels(const ImageSet& set, std::uint64_t first, std::uint64_t count, std::int64_t classes) {
  MOTLEY_CHECK(first <= set.source.rows && count <= set.source.rows - first);
  if (count == 0) return;
  const std::string where = set.source.path + ", data set `labels`";
  const Hdf5Handle file = open_hdf5(set.source.path);
  const Hdf5Handle dataset(MOTLEY_HDF5(where, ExitCode::input, H5Dopen2(file.get(), "labels", H5P_DEFAULT)),
                           H5Dclose);
  const auto in_range = [classes](auto label) {
    return std::cmp_greater_equal(label, 0) && std::cmp_less(label, classes);
  };
  const auto check = [&](std::uint64_t row, const auto& labels) {
    const auto wrong = std::find_if_not(labels.begin(), labels.end(), in_range);
    if (wrong == labels.end()) return;
    fail(ExitCode::input, "{}, row {}: label {}; expected 0 to {}", where,
         row + static_cast<std::uint64_t>(wrong - labels.begin()), *wrong, classes - 1);
  };
  visit_integers(dataset.get(), set.source.fields.at(1).dtype, where, first, count, check);
}

// --- Writing ----------------------------------------------------------------------------------------------

struct ImageSetWriter::Impl {
  std::string path, temporary;
  std::uint64_t samples = 0, written = 0;
  std::vector<hsize_t> image_extents;
  Hdf5Handle file, images, labels;

  Hdf5Handle create_dataset(const char* name, const std::vector<hsize_t>& extents) const;
  void write_rows(const Hdf5Handle& dataset, const std::uint8_t* rows, std::uint64_t count,
                  std::vector<hsize_t> extents) const;
};

Hdf5Handle ImageSetWriter::Impl::create_dataset(const char* name, const std::vector<hsize_t>& extents) const {
  const Hdf5Handle space(
      MOTLEY_HDF5(path, ExitCode::input,
                  H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr)),
      H5Sclose);
  const Hdf5Handle creation(MOTLEY_HDF5(path, ExitCode::input, H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
  // No time stamps: the same input gives the same bytes. No fill values: every row is going to be written.
  MOTLEY_HDF5(path, ExitCode::input, H5Pset_obj_track_times(creation.get(), false));
  MOTLEY_HDF5(path, ExitCode::input, H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER));
  MOTLEY_HDF5(path, ExitCode::input, H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY));
  return {MOTLEY_HDF5(path, ExitCode::input,
                      H5Dcreate2(file.get(), name, H5T_STD_U8LE, space.get(), H5P_DEFAULT, creation.get(),
                                 H5P_DEFAULT)),
          H5Dclose};
}

void ImageSetWriter::Impl::write_rows(const Hdf5Handle& dataset, const std::uint8_t* rows,
                                      std::uint64_t count, std::vector<hsize_t> extents) const {
  extents[0] = count;
  std::vector<hsize_t> start(extents.size(), 0);
  start[0] = written;
  const Hdf5Handle space(MOTLEY_HDF5(path, ExitCode::input, H5Dget_space(dataset.get())), H5Sclose);
  const Hdf5Handle memory(
      MOTLEY_HDF5(path, ExitCode::input,
                  H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr)),
      H5Sclose);
  MOTLEY_HDF5(
      path, ExitCode::input,
      H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, extents.data(), nullptr));
  MOTLEY_HDF5("cannot write " + temporary, ExitCode::input,
              H5Dwrite(dataset.get(), H5T_NATIVE_UINT8, memory.get(), space.get(), H5P_DEFAULT, rows));
}

ImageSetWriter::ImageSetWriter(const std::string& path, std::uint64_t samples, std::int64_t height,
                               std::int64_t width, std::int64_t channels)
    : impl_(std::make_unique<Impl>()) {
  MOTLEY_CHECK(samples > 0 && height > 0 && width > 0 && channels > 0);
  if (std::filesystem::is_directory(path)) fail(ExitCode::input, "cannot write {}: it is a directory", path);
  impl_->path = path;
  impl_->temporary = fmt::format("{}.tmp-{}", path, ::getpid());
  impl_->samples = samples;
  impl_->image_extents = {samples, static_cast<hsize_t>(height), static_cast<hsize_t>(width),
                          static_cast<hsize_t>(channels)};
  // Made by open(2) first, for the system's own words on what is wrong with the directory.
  const int made = ::open(impl_->temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (made < 0) fail(ExitCode::input, "cannot create {}: {}", impl_->temporary, system_message(errno));
  ::close(made);

  const Hdf5Lock lock;
  try {
    const Hdf5Handle access(MOTLEY_HDF5(path, ExitCode::input, H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
    // Rows that begin at a page boundary cost the window reader the fewest pages.
    MOTLEY_HDF5(path, ExitCode::input, H5Pset_alignment(access.get(), 16384, 4096));
    impl_->file = {MOTLEY_HDF5(path, ExitCode::input,
                               H5Fcreate(impl_->temporary.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get())),
                   H5Fclose};
    impl_->images = impl_->create_dataset("images", impl_->image_extents);
    impl_->labels = impl_->create_dataset("labels", {samples});
  } catch (...) {
    ::unlink(impl_->temporary.c_str());
    throw;
  }
}

ImageSetWriter::~ImageSetWriter() {
  if (impl_->temporary.empty()) return;
  impl_->images.reset();
  impl_->labels.reset();
  impl_->file.reset();
  ::unlink(impl_->temporary.c_str());
}

void ImageSetWriter::append(const std::uint8_t* images, const std::uint8_t* labels, std::uint64_t count) {
  MOTLEY_CHECK(count <= impl_->samples - impl_->written);
  if (count == 0) return;
  const Hdf5Lock lock;
  impl_->write_rows(impl_->images, images, count, impl_->image_extents);
  impl_->write_rows(impl_->labels, labels, count, {impl_->samples});
  impl_->written += count;
}

void ImageSetWriter::finish() {
  MOTLEY_CHECK(!impl_->temporary.empty() && impl_->written == impl_->samples);
  const std::string where = "cannot write " + impl_->temporary;
  MOTLEY_HDF5(where, ExitCode::input, impl_->images.close());
  MOTLEY_HDF5(where, ExitCode::input, impl_->labels.close());
  MOTLEY_HDF5(where, ExitCode::input, impl_->file.close());
  sync_path(impl_->temporary, ExitCode::input);
  rename_durably(impl_->temporary, impl_->path, ExitCode::input);
  impl_->temporary.clear();
}

}  // namespace motley::io
