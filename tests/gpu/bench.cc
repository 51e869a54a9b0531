#include "bench.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <thread>

#include "core/bfloat16.h"
#include "core/float16.h"
#include "core/philox.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/gpu_driver.h"

namespace motley::bench {
namespace {

// Much more than the largest cache of a GPU.
constexpr double bytes_beyond_caches = 1e9;
constexpr std::size_t most_sets = 16;

int processors() {
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

template <class T>
T median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Random numbers in [-1, 1), a prime number of them so that no tensor repeats them at a round distance.
const std::vector<float>& sequence() {
  static const std::vector<float> values = [] {
    std::vector<float> all(1048583);
    const RandomKey key(2026, Purpose::initialization, 0, 0);
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = 2 * to_unit_float(random_u32(key, 0, static_cast<std::uint32_t>(i))) - 1;
    return all;
  }();
  return values;
}

template <class T>
std::vector<T> scaled_sequence(float size) {
  std::vector<T> values;
  values.reserve(sequence().size());
  for (const float value : sequence()) values.push_back(from_float<T>(size * value));
  return values;
}

template <>
std::vector<float> scaled_sequence(float size) {
  std::vector<float> values = sequence();
  for (float& value : values) value *= size;
  return values;
}

template <class T>
void fill(Backend& backend, const View& view, float size, std::size_t start) {
  const std::vector<T> source = scaled_sequence<T>(size);
  const auto elements = static_cast<std::size_t>(view.elements());
  std::size_t from = start % source.size();
  for (std::size_t done = 0; done < elements;) {
    const std::size_t piece = std::min(elements - done, source.size() - from);
    backend.copy_to_device(static_cast<T*>(view.data) + done, source.data() + from, piece * sizeof(T));
    done += piece;
    from = 0;
  }
}

// The device's own copy, without any kernel of Motley's.
void copy_on_device(Backend& backend, void* to, const void* from, std::size_t bytes) {
  if (auto* const cuda = dynamic_cast<CudaBackend*>(&backend)) {
    MOTLEY_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda->outer_stream()));
    return;
  }
  const auto pieces = static_cast<std::ptrdiff_t>(processors());
#pragma omp parallel for
  for (std::ptrdiff_t i = 0; i < pieces; ++i) {
    const std::size_t begin = bytes / static_cast<std::size_t>(pieces) * static_cast<std::size_t>(i);
    const std::size_t end = i + 1 == pieces ? bytes : begin + bytes / static_cast<std::size_t>(pieces);
    std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                end - begin);
  }
}

double tolerance(DType type) {
  if (type == DType::f32) return 2e-5;
  return type == DType::f16 ? 2e-3 : 1e-2;
}

std::string number(double value, int digits) {
  return fmt::format("{:.{}g}", value, digits);
}

// A number with so many digits as make sense; null when it is none.
Record rounded(double value, int digits = 4) {
  return std::isfinite(value) ? Record(std::stod(number(value, digits))) : Record(nullptr);
}

void require_gpu() {
  if (cuda::gpu_driver().devices().empty())
    fail(ExitCode::device, "there is no NVIDIA GPU that this process may use");
}

}  // namespace

Settings parse_settings(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--help" || option == "--list-devices") {
      (option == "--help" ? settings.help : settings.list_devices) = true;
      continue;
    }
    if (i + 1 == argc) fail(ExitCode::usage, "{}: a value is missing, or there is no such option", option);
    const std::string value = argv[++i];
    if (option == "--device" && (value == "cuda" || value == "cpu")) {
      settings.device = value;
    } else if (option == "--only") {
      settings.only = value;
    } else if (option == "--size" && (value == "full" || value == "quick" || value == "tiny")) {
      settings.size = value == "full" ? Size::full : value == "quick" ? Size::quick : Size::tiny;
    } else {
      fail(ExitCode::usage,
           "{} {}: expected --device cuda|cpu, --size full|quick|tiny, --only TEXT or --list-devices", option,
           value);
    }
  }
  return settings;
}

std::unique_ptr<Backend> open_device(const std::string& device, bool graphs) {
  if (device == "cpu") return make_cpu_backend(processors());
  require_gpu();
  return cuda::gpu_driver().open(0, {.graphs = graphs});
}

void list_devices() {
  require_gpu();
  for (const GpuInfo& gpu : cuda::gpu_driver().devices()) fmt::print("{}\n", gpu.name);
}

int run_main(const char* program, const std::function<int()>& body) {
  try {
    return body();
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}\n", program, error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", program, error.what());
    return static_cast<int>(ExitCode::internal);
  }
}

Timing time_calls(Backend& backend, Size size, const std::function<void(std::size_t)>& run) {
  const double least_s = size == Size::full ? 0.03 : size == Size::quick ? 0.01 : 0;
  const int repeats = size == Size::full ? 9 : size == Size::quick ? 5 : 2;
  std::size_t next = 0;
  const auto timed = [&](std::size_t calls) {
    const std::int64_t from = backend.mark();
    for (std::size_t i = 0; i < calls; ++i) run(next++);
    const std::int64_t to = backend.mark();
    backend.synchronize();
    return backend.seconds_between(from, to) / static_cast<double>(calls);
  };
  // The first calls load modules and choose algorithms.
  timed(2);
  const double about = std::max(timed(2), 1e-7);
  const auto calls = static_cast<std::size_t>(std::clamp(std::ceil(least_s / about), 1.0, 1000.0));
  std::vector<double> all;
  for (int i = 0; i < repeats; ++i) all.push_back(timed(calls));
  const double middle = median(all);
  const auto [fastest, slowest] = std::minmax_element(all.begin(), all.end());
  return {middle, middle > 0 ? (*slowest - *fastest) / middle : 0};
}

double Ceilings::copy_bytes_per_s() {
  if (copy_ > 0) return copy_;
  const std::size_t bytes = size_ == Size::full    ? std::size_t{1} << 31
                            : size_ == Size::quick ? std::size_t{1} << 28
                                                   : std::size_t{1} << 16;
  const auto elements = static_cast<std::int64_t>(bytes / sizeof(float));
  Tensors tensors(backend_);
  const View from = tensors.random({elements}), to = tensors.poisoned({elements});
  const Timing timing =
      time_calls(backend_, size_, [&](std::size_t) { copy_on_device(backend_, to.data, from.data, bytes); });
  return copy_ = 2.0 * static_cast<double>(bytes) / std::max(timing.seconds, 1e-9);
}

double Ceilings::matmul_flop_per_s(DType type) {
  double& rate = matmul_[type];
  if (rate > 0) return rate;
  const bool on_cpu = backend_.device().kind == "cpu";
  const std::int64_t n = size_ == Size::full && !on_cpu ? 8192 : size_ == Size::tiny ? 32 : 2048;
  Tensors tensors(backend_);
  const View a = tensors.random({n, n}, type), b = tensors.random({n, n}, type),
             c = tensors.poisoned({n, n}, type);
  const Timing timing =
      time_calls(backend_, size_, [&](std::size_t) { backend_.linear_backward_data(a, b, c); });
  const auto extent = static_cast<double>(n);
  return rate = 2 * extent * extent * extent / std::max(timing.seconds, 1e-9);
}

View Tensors::zeros(const Shape& shape, DType type) {
  buffers_.emplace_back(backend_, static_cast<std::size_t>(shape.elements()) * size_of(type));
  return buffers_.back().view(type, shape);
}

View Tensors::poisoned(const Shape& shape, DType type) {
  const View view = zeros(shape, type);
  const std::vector<unsigned char> poison(std::min<std::size_t>(view.bytes(), std::size_t{4} << 20), 0xFF);
  for (std::size_t done = 0; done < view.bytes(); done += poison.size()) {
    backend_.copy_to_device(static_cast<std::byte*>(view.data) + done, poison.data(),
                            std::min(poison.size(), view.bytes() - done));
  }
  return view;
}

View Tensors::random(const Shape& shape, DType type, float size) {
  const View view = zeros(shape, type);
  next_ += 314159;
  if (type == DType::f32) fill<float>(backend_, view, size, next_);
  if (type == DType::bf16) fill<Bf16>(backend_, view, size, next_);
  if (type == DType::f16) fill<F16>(backend_, view, size, next_);
  return view;
}

ConstView rows_of(ConstView x, std::int64_t first, std::int64_t count) {
  const std::size_t row = static_cast<std::size_t>(x.shape.elements_from(1)) * size_of(x.dtype);
  return {static_cast<const std::byte*>(x.data) + static_cast<std::size_t>(first) * row, x.dtype,
          x.shape.without_batch().with_batch(count)};
}

Host::Host(Backend& backend, ConstView x) : Host(x.shape) {
  if (x.dtype == DType::f32) {
    backend.copy_to_host(values.data(), x.data, x.bytes());
    return;
  }
  const auto widen = [&](auto narrow) {
    backend.copy_to_host(narrow.data(), x.data, x.bytes());
    std::transform(narrow.begin(), narrow.end(), values.begin(), [](auto value) { return to_float(value); });
  };
  MOTLEY_CHECK(x.dtype == DType::bf16 || x.dtype == DType::f16);
  if (x.dtype == DType::bf16) widen(std::vector<Bf16>(values.size()));
  if (x.dtype == DType::f16) widen(std::vector<F16>(values.size()));
}

void RelativeError::add(const std::vector<float>& got, const std::vector<float>& want) {
  MOTLEY_CHECK(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto wanted = static_cast<double>(want[i]);
    const double difference = static_cast<double>(got[i]) - wanted;
    difference_ += difference * difference;
    norm_ += wanted * wanted;
  }
}

double RelativeError::value() const {
  const double value = std::sqrt(difference_) / std::sqrt(norm_);
  return std::isfinite(value) ? value : std::numeric_limits<double>::infinity();
}

Bench::Bench(Backend& backend, const Settings& settings)
    : backend_(backend),
      settings_(settings),
      reference_(make_cpu_backend(processors())),
      ceilings_(backend, settings.size) {}

std::int64_t Bench::pick(std::int64_t full, std::int64_t quick, std::int64_t tiny) const {
  return size() == Size::full ? full : size() == Size::quick ? quick : tiny;
}

bool Bench::wants(const std::string& operation) const {
  return operation.find(settings_.only) != std::string::npos;
}

std::vector<DType> Bench::types() const {
  if (backend_.device().kind == "cuda") return {DType::f32, DType::bf16, DType::f16};
  return {DType::f32, DType::bf16};
}

std::size_t Bench::sets(double bytes) const {
  if (size() == Size::tiny) return 2;
  return static_cast<std::size_t>(
      std::clamp(std::ceil(bytes_beyond_caches / bytes), 1.0, static_cast<double>(most_sets)));
}

void Bench::measure(const Operation& operation, const std::function<void(std::size_t)>& run,
                    const std::function<double()>& error) {
  run(0);
  backend_.synchronize();
  const double wrong = error();
  const bool correct = wrong <= tolerance(operation.type);
  if (!correct) ++wrong_;
  const Timing timing = time_calls(backend_, size(), run);

  const double copy = operation.bytes / ceilings_.copy_bytes_per_s();
  const double matmul = operation.flop > 0 ? operation.flop / ceilings_.matmul_flop_per_s(operation.type) : 0;
  const double seconds = std::max(timing.seconds, 1e-12);
  Record record{{"bench", "kernel"},
                {"op", operation.name},
                {"type", name_of(operation.type)},
                {"shape", operation.shape},
                {"us", rounded(timing.seconds * 1e6)},
                {"spread", rounded(timing.spread, 2)},
                {"gb_per_s", rounded(operation.bytes / seconds / 1e9)}};
  record["tflops"] = operation.flop > 0 ? rounded(operation.flop / seconds / 1e12) : Record(nullptr);
  record["bound"] = copy >= matmul ? "copy" : "matmul";
  record["of_bound"] = rounded(std::max(copy, matmul) / seconds, 3);
  record["error"] = rounded(wrong, 2);
  record["correct"] = correct;
  print(record);
}

void print(const Record& record) {
  fmt::print("{}\n", record.dump());
  std::fflush(stdout);
}

}  // namespace motley::bench
