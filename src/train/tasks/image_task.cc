#include "train/tasks/image_task.h"

#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "io/image_set.h"
#include "train/data.h"

namespace motley::train {
namespace {

constexpr std::size_t images_field = 0, labels_field = 1;

template <class T>
void widen(const std::byte* bytes, std::int64_t n, std::int32_t* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, bytes + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    out[i] = static_cast<std::int32_t>(value);
  }
}

// Labels were checked against the number of classes when the data set was opened, so they fit.
void labels_to_int32(DType dtype, const std::byte* bytes, std::int64_t n, std::int32_t* out) {
  switch (dtype) {
    case DType::u8:
      return widen<std::uint8_t>(bytes, n, out);
    case DType::i8:
      return widen<std::int8_t>(bytes, n, out);
    case DType::u16:
      return widen<std::uint16_t>(bytes, n, out);
    case DType::i16:
      return widen<std::int16_t>(bytes, n, out);
    case DType::u32:
      return widen<std::uint32_t>(bytes, n, out);
    case DType::i32:
      return widen<std::int32_t>(bytes, n, out);
    case DType::u64:
      return widen<std::uint64_t>(bytes, n, out);
    case DType::i64:
      return widen<std::int64_t>(bytes, n, out);
    default:
      MOTLEY_CHECK(dtype == DType::u8);
  }
}

}  // namespace

ImageTask::ImageTask(std::string name, std::unique_ptr<ImageNetwork> network, std::vector<float> mean,
                     std::vector<float> deviation)
    : name_(std::move(name)),
      network_(std::move(network)),
      mean_(std::move(mean)),
      deviation_(std::move(deviation)) {}

bool ImageTask::has_subset(const DataOptions& data, const std::string& subset) const {
  std::error_code error;
  return std::filesystem::exists(subset_path(data.data, subset), error);
}

io::RowSource ImageTask::open(const DataOptions& data, const std::string& subset) const {
  if (data.num_file > 0)
    fail(ExitCode::usage, "--num-file is for shards, which task {} does not read", name_);
  const std::string path = subset_path(data.data, subset);
  const io::ImageSet set = io::describe_image_set(path);
  const Shape found{set.height, set.width, set.channels};
  const Shape& expected = network_->body.input_shape();
  if (found != expected) {
    fail(ExitCode::input, "{}: the images are {} (height, width, channels); task {} expects {}", path,
         found.to_string(), name_, expected.to_string());
  }
  return set.source;
}

void ImageTask::check(const io::RowSource& source, std::uint64_t first, std::uint64_t count) const {
  const io::ImageSet set{source, 0, 0, 0};
  io::check_labels(set, first, count, network_->classes);
}

void ImageTask::allocate_parameters(Backend& backend, bool training) {
  network_->parameters.allocate(backend, training);
}

ImageTask::Staging ImageTask::make_staging(BufferSource& source, std::int64_t micro_batch,
                                           bool training) const {
  const auto n = static_cast<std::size_t>(micro_batch);
  const auto elements = static_cast<std::size_t>(network_->body.input_shape().elements());
  Staging staging;
  staging.pixels = source.take(n * elements);
  staging.input = source.take(n * elements * sizeof(float));
  staging.labels = source.take(n * sizeof(std::int32_t));
  if (training)
    staging.dlogits = source.take(n * static_cast<std::size_t>(network_->classes) * sizeof(float));
  return staging;
}

std::size_t ImageTask::memory_bytes(std::int64_t micro_batch, bool training) const {
  BufferSource source;
  make_staging(source, micro_batch, training);
  return network_->body.memory_bytes(micro_batch, training) + source.bytes();
}

void ImageTask::take_memory(Backend& backend, std::int64_t micro_batch, bool training) {
  network_->body.reserve(backend, micro_batch, training);
  BufferSource source(backend);
  staging_ = make_staging(source, micro_batch, training);
  staging_.host_labels.resize(static_cast<std::size_t>(micro_batch));
}

void ImageTask::release_memory() {
  network_->body.release();
  staging_ = Staging();
}

Metrics ImageTask::metrics(std::span<const double> sums) const {
  const double count = sums[1];
  if (count == 0) return {};
  return {sums[0] / count, count, {{"accuracy", sums[2] / count}, {"top5", sums[3] / count}}};
}

View ImageTask::load(Backend& backend, const Rows& rows) {
  const Shape shape = network_->body.input_shape().with_batch(rows.n);
  const auto row_bytes = static_cast<std::size_t>(shape.elements_from(1));
  const View pixels = staging_.pixels.view(DType::u8, shape);
  backend.copy_to_device(
      pixels.data, rows.window.fields[images_field].data() + static_cast<std::size_t>(rows.first) * row_bytes,
      pixels.bytes());
  const auto& labels = rows.window.fields[labels_field];
  const io::Field& field = rows.source.fields[labels_field];
  labels_to_int32(field.dtype, labels.data() + static_cast<std::size_t>(rows.first) * field.row_bytes(),
                  rows.n, staging_.host_labels.data());
  backend.copy_to_device(staging_.labels.data(), staging_.host_labels.data(),
                         static_cast<std::size_t>(rows.n) * sizeof(std::int32_t));
  const View input = staging_.input.view(DType::f32, shape);
  backend.normalize_images(pixels, mean_, deviation_, input);
  return input;
}

void ImageTask::train(const Pass& pass, const Rows& rows, std::span<const double> /*totals*/, View sums,
                      const GradientsDone& done) {
  const View input = load(pass.backend, rows);
  const View logits = network_->body.forward(pass, input);
  const View dlogits = staging_.dlogits.view(DType::f32, logits.shape);
  pass.backend.softmax_nll(logits, staging_.labels.view(DType::i32, Shape{rows.n}), 5, sums, dlogits,
                           pass.gradient_weight);
  network_->body.backward(pass, input, dlogits, done);
}

void ImageTask::evaluate(const Pass& pass, const Rows& rows, View sums) {
  const View logits = network_->body.forward(pass, load(pass.backend, rows));
  pass.backend.softmax_nll(logits, staging_.labels.view(DType::i32, Shape{rows.n}), 5, sums, {});
}

}  // namespace motley::train
