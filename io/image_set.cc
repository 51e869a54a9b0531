#include "io/image_set.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/descriptor.h"
#include "core/error.h"
#include "core/files.h"
#include "io/dataset_info.h"
#include "io/hdf5.h"
#include "io/integer_column.h"

namespace motley::io {
namespace {

constexpr std::uint64_t row_bytes_limit = 1ULL << 30;

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
  for (const DatasetInfo* info : {&images, &labels}) {
    if (!info->written)
      fail(ExitCode::input, "{}: `{}` has no data: it was created but never written", path, info->name);
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

// HDF5 makes the file with both data sets in place but without their contents, which are then written by
// plain writes at the offsets that HDF5 chose. A disk that fills up is met in those writes, and not inside
// HDF5, which does not recover from one: closing the file fails, and the library crashes when the process
// ends.
struct ImageSetWriter::Impl {
  std::string path, temporary;
  std::uint64_t samples = 0, written = 0;
  std::uint64_t image_bytes = 0;
  std::uint64_t images_offset = 0, labels_offset = 0;
  std::optional<Descriptor> file;

  ~Impl() {
    if (!temporary.empty()) ::unlink(temporary.c_str());
  }
  void lay_out(std::int64_t height, std::int64_t width, std::int64_t channels);
  std::uint64_t add_dataset(hid_t hdf5, const char* name, const std::vector<hsize_t>& extents) const;
};

// Where the first byte of the new data set belongs.
std::uint64_t ImageSetWriter::Impl::add_dataset(hid_t hdf5, const char* name,
                                                const std::vector<hsize_t>& extents) const {
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
      check(H5Dcreate2(hdf5, name, H5T_STD_U8LE, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
            "H5Dcreate2"),
      H5Dclose);
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
      hdf5.get(), "images",
      {samples, static_cast<hsize_t>(height), static_cast<hsize_t>(width), static_cast<hsize_t>(channels)});
  labels_offset = add_dataset(hdf5.get(), "labels", {samples});
  MOTLEY_HDF5(where, ExitCode::input, hdf5.close());
}

ImageSetWriter::ImageSetWriter(const std::string& path, std::uint64_t samples, std::int64_t height,
                               std::int64_t width, std::int64_t channels)
    : impl_(std::make_unique<Impl>()) {
  MOTLEY_CHECK(samples > 0 && height > 0 && width > 0 && channels > 0);
  check_replaceable(path, ExitCode::input);
  impl_->path = path;
  const std::string temporary = fmt::format("{}.tmp-{}", path, ::getpid());
  impl_->samples = samples;
  impl_->image_bytes = static_cast<std::uint64_t>(height * width * channels);
  impl_->file.emplace(temporary, O_WRONLY | O_CREAT | O_TRUNC, ExitCode::input);
  impl_->temporary = temporary;
  // As much as HDF5 is about to write itself: a disk that is full already is to be met here.
  const std::vector<std::uint8_t> zeros(16384);
  impl_->file->write_at(0, zeros.data(), zeros.size());
  impl_->lay_out(height, width, channels);
}

ImageSetWriter::~ImageSetWriter() = default;

void ImageSetWriter::append(const std::uint8_t* images, const std::uint8_t* labels, std::uint64_t count) {
  MOTLEY_CHECK(count <= impl_->samples - impl_->written);
  const std::uint64_t row = impl_->written;
  impl_->file->write_at(impl_->images_offset + row * impl_->image_bytes, images, count * impl_->image_bytes);
  impl_->file->write_at(impl_->labels_offset + row, labels, count);
  impl_->written += count;
}

void ImageSetWriter::finish() {
  MOTLEY_CHECK(!impl_->temporary.empty() && impl_->written == impl_->samples);
  impl_->file->sync();
  rename_durably(impl_->temporary, impl_->path, ExitCode::input);
  impl_->temporary.clear();
}

}  // namespace motley::io
