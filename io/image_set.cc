#include "io/image_set.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "io/dataset_info.h"
#include "io/hdf5.h"
#include "io/hdf5_numbers.h"
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

std::vector<double> per_channel(const std::string& path, hid_t images, const char* name,
                                std::uint64_t channels) {
  const std::string where = path + ", data set `images`";
  const auto numbers = read_numbers_attribute(images, where, name);
  if (!numbers) return {};
  if (numbers->size() != channels)
    fail(ExitCode::input, "{}, attribute `{}` has {} number(s); expected one per channel, {}", where, name,
         numbers->size(), channels);
  return *numbers;
}

ImageFacts read_facts(hid_t file, const std::string& path, std::uint64_t channels) {
  const auto open = [&](const char* name) {
    return Hdf5Handle(MOTLEY_HDF5(path, ExitCode::input, H5Dopen2(file, name, H5P_DEFAULT)), H5Dclose);
  };
  const Hdf5Handle images = open("images"), labels = open("labels");
  ImageFacts facts;
  facts.mean = per_channel(path, images.get(), "mean", channels);
  facts.deviation = per_channel(path, images.get(), "deviation", channels);
  if (facts.mean.empty() != facts.deviation.empty())
    fail(ExitCode::input,
         "{}: data set `images` has only one of the attributes `mean` and `deviation`; expected both or "
         "neither",
         path);
  for (const double mean : facts.mean) {
    if (!std::isfinite(mean))
      fail(ExitCode::input, "{}, data set `images`, attribute `mean`: {}; expected finite numbers", path,
           mean);
  }
  for (const double deviation : facts.deviation) {
    if (!(deviation > 0) || !std::isfinite(deviation))
      fail(ExitCode::input, "{}, data set `images`, attribute `deviation`: {}; expected positive numbers",
           path, deviation);
  }
  if (const auto classes = read_numbers_attribute(labels.get(), path + ", data set `labels`", "classes")) {
    const double found = classes->front();
    if (classes->size() != 1 || !(found >= 1) || found > most_classes || found != std::floor(found))
      fail(ExitCode::input,
           "{}, data set `labels`, attribute `classes`: {}; expected one whole number, 1 to {}", path, found,
           most_classes);
    facts.classes = static_cast<std::int64_t>(found);
  }
  return facts;
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
  set.source.images = read_facts(file.get(), path, images.extents[3]);
  set.height = static_cast<std::int64_t>(images.extents[1]);
  set.width = static_cast<std::int64_t>(images.extents[2]);
  set.channels = static_cast<std::int64_t>(images.extents[3]);
  return set;
}

std::int64_t check_labels(const ImageSet& set, std::uint64_t first, std::uint64_t count,
                          std::int64_t classes) {
  MOTLEY_CHECK(first <= set.source.rows && count <= set.source.rows - first);
  if (count == 0) return 0;
  const std::string where = set.source.path + ", data set `labels`";
  const Hdf5Handle file = open_hdf5(set.source.path);
  const Hdf5Handle dataset(MOTLEY_HDF5(where, ExitCode::input, H5Dopen2(file.get(), "labels", H5P_DEFAULT)),
                           H5Dclose);
  std::int64_t largest = 0;
  const auto look = [&](std::uint64_t row, const auto& labels) {
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (std::cmp_less(labels[i], 0) || std::cmp_greater_equal(labels[i], classes))
        fail(ExitCode::input, "{}, row {}: label {}; expected 0 to {}", where, row + i, labels[i],
             classes - 1);
      largest = std::max(largest, static_cast<std::int64_t>(labels[i]));
    }
  };
  visit_integers(dataset.get(), set.source.fields.at(1).dtype, where, first, count, look);
  return largest;
}

}  // namespace motley::io
