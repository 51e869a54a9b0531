#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/descriptor.h"
#include "core/error.h"
#include "core/files.h"
#include "io/hdf5.h"
#include "io/hdf5_numbers.h"
#include "io/image_set.h"
#include "io/pixel_statistics.h"

namespace motley::io {

// HDF5 makes the file with both data sets in place but without their contents, which are then written by
// plain writes at the offsets that HDF5 chose. A disk that fills up is met in those writes, and not inside
// HDF5, which does not recover from one: closing the file fails, and the library crashes when the process
// ends.
struct ImageSetWriter::Impl {
  std::string path, temporary;
  std::uint64_t samples = 0, written = 0;
  std::uint64_t image_bytes = 0, label_bytes = 1;
  std::int64_t classes = 0, largest_label = 0;
  std::optional<PixelStatistics> statistics;
  std::uint64_t images_offset = 0, labels_offset = 0;
  std::optional<Descriptor> file;

  ~Impl() {
    if (!temporary.empty()) ::unlink(temporary.c_str());
  }
  void lay_out(std::int64_t height, std::int64_t width, std::int64_t channels);
  std::uint64_t add_dataset(hid_t hdf5, const char* name, hid_t type, const std::vector<hsize_t>& extents,
                            std::size_t channels) const;
  template <class Label>
  void append(const std::uint8_t* images, const Label* labels, std::uint64_t count);
  void write_attributes() const;
};

// Where the first byte of the new data set belongs. With channels it gets the attributes of images, otherwise those of
// labels.
std::uint64_t ImageSetWriter::Impl::add_dataset(hid_t hdf5, const char* name, hid_t type,
                                                const std::vector<hsize_t>& extents,
                                                std::size_t channels) const {
  const auto check = [this](auto result, const char* call) {
    if (result < 0) fail_hdf5("cannot write " + temporary, call, ExitCode::input);
    return result;
  };
  const Hdf5Handle space(
      check(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), "H5Screate_simple"),
      H5Sclose);
  const Hdf5Handle creation(check(H5Pcreate(H5P_DATASET_CREATE), "H5Pcreate"), H5Pclose);
  // No time stamps: the same input gives the same bytes.
  check(H5Pset_obj_track_times(creation.get(), false), "H5Pset_obj_track_times");
  check(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER), "H5Pset_fill_time");
  check(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY), "H5Pset_alloc_time");
  const Hdf5Handle dataset(
      check(H5Dcreate2(hdf5, name, type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
            "H5Dcreate2"),
      H5Dclose);
  const std::string where = "cannot write " + temporary;
  if (channels > 0) {
    add_numbers_attribute(dataset.get(), where, "mean", channels, ExitCode::input);
    add_numbers_attribute(dataset.get(), where, "deviation", channels, ExitCode::input);
  } else {
    add_integer_attribute(dataset.get(), where, "classes", ExitCode::input);
  }
  const haddr_t offset = H5Dget_offset(dataset.get());
  MOTLEY_CHECK(offset != HADDR_UNDEF);
  return offset;
}

void ImageSetWriter::Impl::lay_out(std::int64_t height, std::int64_t width, std::int64_t channels) {
  const Hdf5Lock lock;
  const std::string where = "cannot write " + temporary;
  const Hdf5Handle access(MOTLEY_HDF5(where, ExitCode::input, H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
  // Rows that begin at a page boundary cost the window reader the fewest pages.
  MOTLEY_HDF5(where, ExitCode::input, H5Pset_alignment(access.get(), 16384, 4096));
  Hdf5Handle hdf5(MOTLEY_HDF5(where, ExitCode::input,
                              H5Fcreate(temporary.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get())),
                  H5Fclose);
  images_offset = add_dataset(
      hdf5.get(), "images", H5T_STD_U8LE,
      {samples, static_cast<hsize_t>(height), static_cast<hsize_t>(width), static_cast<hsize_t>(channels)},
      static_cast<std::size_t>(channels));
  labels_offset =
      add_dataset(hdf5.get(), "labels", label_bytes == 1 ? H5T_STD_U8LE : H5T_STD_U16LE, {samples}, 0);
  MOTLEY_HDF5(where, ExitCode::input, hdf5.close());
}

// The attributes have their place in the file already: this needs no room on the disk.
void ImageSetWriter::Impl::write_attributes() const {
  const Hdf5Lock lock;
  const std::string where = "cannot write " + temporary;
  constexpr ExitCode code = ExitCode::input;
  Hdf5Handle hdf5(MOTLEY_HDF5(where, code, H5Fopen(temporary.c_str(), H5F_ACC_RDWR, H5P_DEFAULT)), H5Fclose);
  {
    const Hdf5Handle images(MOTLEY_HDF5(where, code, H5Dopen2(hdf5.get(), "images", H5P_DEFAULT)), H5Dclose);
    const Hdf5Handle labels(MOTLEY_HDF5(where, code, H5Dopen2(hdf5.get(), "labels", H5P_DEFAULT)), H5Dclose);
    overwrite_numbers_attribute(images.get(), where, "mean", statistics->mean(), code);
    overwrite_numbers_attribute(images.get(), where, "deviation", statistics->deviation(), code);
    const std::int64_t found = classes > 0 ? classes : largest_label + 1;
    overwrite_numbers_attribute(labels.get(), where, "classes", {static_cast<double>(found)}, code);
  }
  MOTLEY_HDF5(where, code, hdf5.close());
}

ImageSetWriter::ImageSetWriter(const std::string& path, std::uint64_t samples, std::int64_t height,
                               std::int64_t width, std::int64_t channels, std::int64_t classes)
    : impl_(std::make_unique<Impl>()) {
  MOTLEY_CHECK(samples > 0 && height > 0 && width > 0 && channels > 0 && classes >= 0 && classes <= 65536);
  check_replaceable(path, ExitCode::input);
  impl_->path = path;
  const std::string temporary = fmt::format("{}.tmp-{}", path, ::getpid());
  impl_->samples = samples;
  impl_->image_bytes = static_cast<std::uint64_t>(height * width * channels);
  impl_->classes = classes;
  impl_->label_bytes = classes > 256 ? 2 : 1;
  impl_->statistics.emplace(channels);
  impl_->file.emplace(temporary, O_WRONLY | O_CREAT | O_TRUNC, ExitCode::input);
  impl_->temporary = temporary;
  // As much as HDF5 is about to write itself: a disk that is full already is to be met here.
  const std::vector<std::uint8_t> zeros(16384);
  impl_->file->write_at(0, zeros.data(), zeros.size());
  impl_->lay_out(height, width, channels);
}

ImageSetWriter::~ImageSetWriter() = default;

template <class Label>
void ImageSetWriter::Impl::append(const std::uint8_t* images, const Label* labels, std::uint64_t count) {
  MOTLEY_CHECK(count <= samples - written && label_bytes == sizeof(Label));
  if (count == 0) return;
  const std::int64_t largest = *std::max_element(labels, labels + count);
  MOTLEY_CHECK(classes == 0 || largest < classes);
  largest_label = std::max(largest_label, largest);
  const std::uint64_t bytes = count * image_bytes;
  statistics->add(images, bytes / static_cast<std::uint64_t>(statistics->channels()));
  file->write_at(images_offset + written * image_bytes, images, bytes);
  file->write_at(labels_offset + written * sizeof(Label), labels, count * sizeof(Label));
  written += count;
}

void ImageSetWriter::append(const std::uint8_t* images, const std::uint8_t* labels, std::uint64_t count) {
  impl_->append(images, labels, count);
}

void ImageSetWriter::append_wide(const std::uint8_t* images, const std::uint16_t* labels,
                                 std::uint64_t count) {
  impl_->append(images, labels, count);
}

void ImageSetWriter::finish() {
  MOTLEY_CHECK(!impl_->temporary.empty() && impl_->written == impl_->samples);
  impl_->write_attributes();
  impl_->file->sync();
  rename_durably(impl_->temporary, impl_->path, ExitCode::input);
  impl_->temporary.clear();
}

}  // namespace motley::io
