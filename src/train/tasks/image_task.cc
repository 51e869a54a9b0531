#include "train/tasks/image_task.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "io/augmentation.h"
#include "io/image_set.h"
#include "models/image_archs.h"
#include "train/data.h"
#include "train/stored_model.h"

namespace motley::train {
namespace {

namespace fs = std::filesystem;

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

void check_channels(const ImageSpec& spec, const std::string& path, std::int64_t channels) {
  if (spec.mean.empty() || static_cast<std::int64_t>(spec.mean.size()) == channels) return;
  fail(ExitCode::usage, "--mean and --deviation have {} number(s) each; the images of {} have {} channel(s)",
       spec.mean.size(), path, channels);
}

}  // namespace

ImageTask::ImageTask(ImageSpec spec, std::int64_t crop_padding, bool flip, DType compute)
    : spec_(std::move(spec)), crop_padding_(crop_padding), flip_(flip), compute_(compute) {
  if (spec_.complete()) build();
}

void ImageTask::build() {
  network_ = find_image_arch(spec_.arch).make(spec_.input, spec_.classes);
  mean_.assign(spec_.mean.begin(), spec_.mean.end());
  deviation_.assign(spec_.deviation.begin(), spec_.deviation.end());
}

bool ImageTask::has_subset(const DataOptions& data, const std::string& subset) const {
  std::error_code error;
  return std::filesystem::exists(subset_path(data.data, subset), error);
}

io::RowSource ImageTask::open(const DataOptions& data, const std::string& subset) const {
  if (data.num_file > 0)
    fail(ExitCode::usage, "--num-file is for shards, which task {} does not read", spec_.task);
  const std::string path = subset_path(data.data, subset);
  io::ImageSet set = io::describe_image_set(path);
  const Shape found{set.height, set.width, set.channels};
  if (spec_.input.rank() == 3 && found != spec_.input) {
    fail(ExitCode::input, "{}: the images are {} (height, width, channels); task {} expects {}", path,
         found.to_string(), spec_.task, spec_.input.to_string());
  }
  check_channels(spec_, path, set.channels);
  check_fits(find_image_arch(spec_.arch), found, path);
  if (crop_padding_ >= std::min(set.height, set.width)) {
    fail(ExitCode::usage,
         "--crop-padding is {}; expected less than the sides of the images of {}, which are {} x {}",
         crop_padding_, path, set.height, set.width);
  }
  if (network_ == nullptr) {
    io::ImageSet open = set;
    // What is given need not be looked for.
    if (spec_.classes > 0) open.source.images->classes = spec_.classes;
    if (!spec_.mean.empty()) {
      open.source.images->mean = spec_.mean;
      open.source.images->deviation = spec_.deviation;
    }
    set.source.images = io::find_image_facts(open);
  }
  return set.source;
}

void ImageTask::expect(const io::RowSource& source) {
  if (network_ != nullptr) return;
  spec_.input = source.fields.at(images_field).row;
  spec_.classes = source.images->classes;
  spec_.mean = source.images->mean;
  spec_.deviation = source.images->deviation;
  build();
  std::string numbers;
  for (std::size_t c = 0; c < spec_.mean.size(); ++c)
    numbers += fmt::format("{}{:.4f} +- {:.4f}", c == 0 ? "" : ", ", spec_.mean[c], spec_.deviation[c]);
  log::info("{} images, {} classes, channels {}", spec_.input.to_string(), spec_.classes, numbers);
}

io::RowWork ImageTask::training_work(std::uint64_t seed) const {
  const io::Augmentation augmentation{crop_padding_, flip_, seed};
  if (augmentation.changes_nothing()) return {};
  return [augmentation, image = spec_.input](io::Window& window) {
    std::vector<std::byte>& field = window.fields.at(images_field);
    io::augment(augmentation, image, window.runs,
                {reinterpret_cast<std::uint8_t*>(field.data()), field.size()});
  };
}

void ImageTask::check(const io::RowSource& source, std::uint64_t first, std::uint64_t count) const {
  const io::ImageSet set{source, 0, 0, 0};
  io::check_labels(set, first, count, network_->classes);
}

void ImageTask::allocate_parameters(Backend& backend, bool training) {
  network_->parameters.allocate(backend, training, compute_);
}

ImageTask::Staging ImageTask::make_staging(BufferSource& source, std::int64_t micro_batch,
                                           bool training) const {
  const auto n = static_cast<std::size_t>(micro_batch);
  const auto elements = static_cast<std::size_t>(network_->body.input_shape().elements());
  Staging staging;
  staging.pixels = source.take(n * elements);
  staging.input = source.take(n * elements * size_of(compute_));
  staging.labels = source.take(n * sizeof(std::int32_t));
  if (training)
    staging.dlogits = source.take(n * static_cast<std::size_t>(network_->classes) * size_of(compute_));
  return staging;
}

std::size_t ImageTask::memory_bytes(std::int64_t micro_batch, bool training) const {
  BufferSource source;
  make_staging(source, micro_batch, training);
  return network_->body.memory_bytes(micro_batch, training, compute_) + source.bytes();
}

void ImageTask::take_memory(Backend& backend, std::int64_t micro_batch, bool training) {
  network_->body.reserve(backend, micro_batch, training, compute_);
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
  const View input = staging_.input.view(compute_, shape);
  if (rows.n == 0) return input;
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
  backend.normalize_images(pixels, mean_, deviation_, input);
  return input;
}

void ImageTask::train(const Pass& pass, const Rows& rows, std::span<const double> /*totals*/, View sums,
                      const GradientsDone& done) {
  network_->parameters.refresh_copy();
  const View input = load(pass.backend, rows);
  const View logits = network_->body.forward(pass, input);
  const View dlogits = staging_.dlogits.view(compute_, logits.shape);
  if (rows.n > 0) {
    pass.backend.softmax_nll(logits, staging_.labels.view(DType::i32, Shape{rows.n}), 5, sums, dlogits,
                             pass.gradient_weight);
  }
  network_->body.backward(pass, input, dlogits, done);
}

void ImageTask::evaluate(const Pass& pass, const Rows& rows, View sums) {
  network_->parameters.refresh_copy();
  const View logits = network_->body.forward(pass, load(pass.backend, rows));
  pass.backend.softmax_nll(logits, staging_.labels.view(DType::i32, Shape{rows.n}), 5, sums, {});
}

std::map<std::string, std::string> ImageTask::model_files() const {
  const Json config = {{"arch", spec_.arch},
                       {"input", {spec_.input[0], spec_.input[1], spec_.input[2]}},
                       {"classes", spec_.classes},
                       {"mean", spec_.mean},
                       {"deviation", spec_.deviation}};
  return {{"config.json", config.dump(2) + "\n"}};
}

ImageSpec image_spec(const std::string& task) {
  // As HetSeq normalises MNIST, the dynamic-partition experiments CIFAR-10, and most others CIFAR-100.
  if (task == "mnist") return {"mnist", "mnist", Shape{28, 28, 1}, 10, {0.1307}, {0.3081}};
  if (task == "cifar10") {
    return {"cifar10", "resnet18", Shape{32, 32, 3}, 10, {0.4914, 0.4822, 0.4465}, {0.247, 0.243, 0.261}};
  }
  if (task == "cifar100") {
    return {
        "cifar100", "resnet18", Shape{32, 32, 3}, 100, {0.5071, 0.4865, 0.4409}, {0.2673, 0.2564, 0.2762}};
  }
  if (task != "images")
    fail(ExitCode::usage, "--task is \"{}\"; expected one of: mnist, cifar10, cifar100, images", task);
  return {"images", "resnet18", Shape{}, 0, {}, {}};
}

namespace {

ImageSpec read_config(const fs::path& path, const std::string& task) {
  const std::string where = path.string();
  constexpr ExitCode code = ExitCode::checkpoint;
  const Json config = parse_json(read_file(path, code), where, code);
  if (!config.contains("arch"))
    return image_spec(task);  // of another kind of task, which is said when it is restored
  ImageSpec spec;
  spec.task = task;
  spec.arch = json_get<std::string>(config, "arch", where, code);
  for (const auto extent : json_get<std::vector<std::int64_t>>(config, "input", where, code))
    spec.input.append(extent);
  spec.classes = json_get<std::int64_t>(config, "classes", where, code);
  spec.mean = json_get<std::vector<double>>(config, "mean", where, code);
  spec.deviation = json_get<std::vector<double>>(config, "deviation", where, code);
  const bool sound = spec.input.rank() == 3 && spec.input.elements() > 0 && spec.classes > 0 &&
                     std::ssize(spec.mean) == spec.input[2] && spec.deviation.size() == spec.mean.size();
  if (!sound)
    fail(code, "{}: expected three extents of images, their classes, and a mean and deviation per channel",
         where);
  return spec;
}

ImageSpec spec_of(const TrainOptions& options) {
  const ImageOptions& image = options.image;
  ImageSpec spec = image_spec(options.data.task);
  const fs::path beside = directory_of_config(options.save);
  if (!beside.empty()) spec = read_config(beside / "config.json", spec.task);
  if (!image.arch.empty()) spec.arch = image.arch;
  if (image.classes > 0) spec.classes = image.classes;
  if (!image.mean.empty()) {
    spec.mean = image.mean;
    spec.deviation = image.deviation;
  }
  return spec;
}

// What torchvision's training recipes normalise ImageNet by.
const ImageSpec imagenet{
    "images", "", Shape{224, 224, 3}, 1000, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};

}  // namespace

std::unique_ptr<Task> make_image_task(const TrainOptions& options) {
  return std::make_unique<ImageTask>(spec_of(options), options.image.crop_padding, options.image.flip,
                                     options.model.compute());
}

std::unique_ptr<Task> make_image_task_without_data(const TrainOptions& options) {
  ImageSpec spec = spec_of(options);
  if (!spec.complete()) {
    if (options.image.arch.empty())
      fail(ExitCode::usage, "{} does not say of which network it is; expected --arch",
           options.save.init_from);
    const ImageArch& arch = find_image_arch(spec.arch);
    for (const ImageSpec& home : {image_spec("mnist"), image_spec("cifar10"), imagenet}) {
      if (home.input != arch.input) continue;
      if (!spec.mean.empty()) break;
      spec.mean = home.mean;
      spec.deviation = home.deviation;
    }
    if (spec.input.rank() == 0) spec.input = arch.input;
    if (spec.classes == 0) spec.classes = arch.classes;
  }
  check_channels(spec, options.save.init_from, spec.input[2]);
  return std::make_unique<ImageTask>(std::move(spec), 0, false, DType::f32);
}

}  // namespace motley::train
