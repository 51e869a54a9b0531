// What the benches of GPU operations share: the device, its ceilings, timing, inputs, and the line that a case prints.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/buffer.h"

namespace motley::bench {

using Record = nlohmann::ordered_json;

// How large the cases are. full: they fill a data-centre card; quick: a second or less on any card; tiny: for a
// device that is simulated.
enum class Size : std::uint8_t { tiny, quick, full };

struct Settings {
  std::string device = "cuda";  // or cpu
  Size size = Size::full;
  std::string only;  // operations whose name holds this
  bool list_devices = false;
  bool help = false;
};

// --device cuda|cpu, --size full|quick|tiny, --only TEXT, --list-devices, --help. Error(usage) for anything else.
Settings parse_settings(int argc, char** argv);

// The first GPU, or the CPU with all its processors. Error(device) in one sentence when there is no GPU.
// `graphs`: stretches are run as CUDA graphs.
std::unique_ptr<Backend> open_device(const std::string& device, bool graphs = false);

// Their names, a line each. Error(device) when there is none.
void list_devices();

// What a program's main() does around its work: sentences of errors, and their exit codes.
int run_main(const char* program, const std::function<int()>& body);

struct Timing {
  double seconds = 0;  // of one call, on the device: the median over timings of several calls each
  double spread = 0;   // (slowest - fastest) / median of the timings
};

// run(i) puts call number i on the device.
Timing time_calls(Backend& backend, Size size, const std::function<void(std::size_t)>& run);

// What the device does at best, measured where they are first asked for.
class Ceilings {
 public:
  Ceilings(Backend& backend, Size size) : backend_(backend), size_(size) {}
  // Bytes read and written per second by the device's own copy from one place of its memory to another.
  double copy_bytes_per_s();
  // Multiplications and additions per second of one large square product of that type: the library's own (cuBLASLt,
  // oneDNN) as the backend calls it, nothing fused.
  double matmul_flop_per_s(DType type);

 private:
  Backend& backend_;
  Size size_;
  double copy_ = 0;
  std::map<DType, double> matmul_;
};

// The tensors of one case.
class Tensors {
 public:
  explicit Tensors(Backend& backend) : backend_(backend) {}
  Backend& backend() const { return backend_; }

  // Every byte 0xFF: a NaN in each floating-point type, so that a result that was not written shows.
  View poisoned(const Shape& shape, DType type = DType::f32);
  // Uniform in [-size, size), the same in every run, another part of the sequence for every tensor.
  View random(const Shape& shape, DType type = DType::f32, float size = 1);
  View zeros(const Shape& shape, DType type = DType::f32);
  template <class T>
  View values(const std::vector<T>& host, const Shape& shape) {
    const View view = zeros(shape, DTypeOf<T>::value);
    backend_.copy_to_device(view.data, host.data(), view.bytes());
    return view;
  }

 private:
  Backend& backend_;
  std::deque<Buffer> buffers_;
  std::size_t next_ = 0;
};

// Rows [first, first + count) of a tensor.
ConstView rows_of(ConstView x, std::int64_t first, std::int64_t count);

// A float32 tensor in the host's memory, which the CPU backend works on.
struct Host {
  explicit Host(const Shape& shape_) : values(static_cast<std::size_t>(shape_.elements())), shape(shape_) {}
  // A copy of `x`, widened to float32.
  Host(Backend& backend, ConstView x);

  View view() { return view_of(values.data(), shape); }
  operator View() { return view(); }       // NOLINT: used as views
  operator ConstView() { return view(); }  // NOLINT

  std::vector<float> values;
  Shape shape;
};
// The same for integers.
template <class T>
std::vector<T> on_host(Backend& backend, ConstView x) {
  std::vector<T> values(static_cast<std::size_t>(x.elements()));
  MOTLEY_CHECK(x.dtype == DTypeOf<T>::value);
  backend.copy_to_host(values.data(), x.data, x.bytes());
  return values;
}

// ||got - want|| / ||want|| over everything that was added; infinite when a number is not finite.
class RelativeError {
 public:
  void add(const std::vector<float>& got, const std::vector<float>& want);
  double value() const;

 private:
  double difference_ = 0, norm_ = 0;
};

// What one call does, and the least that it must: bytes that it must move through the device's memory (each input
// read once, each output written once) and multiplications and additions of its definition.
struct Operation {
  std::string name;
  DType type = DType::f32;
  std::string shape;
  double bytes = 0;
  double flop = 0;
};

// Times operations and checks them in the same run.
class Bench {
 public:
  Bench(Backend& backend, const Settings& settings);

  Backend& backend() const { return backend_; }
  // float32 on the host: what results are compared with.
  Backend& reference() const { return *reference_; }
  Size size() const { return settings_.size; }
  // One of three numbers, by size.
  std::int64_t pick(std::int64_t full, std::int64_t quick, std::int64_t tiny) const;
  bool wants(const std::string& operation) const;
  // The types of activations on this device.
  std::vector<DType> types() const;
  // In how many sets of tensors calls take turns, when a call touches `bytes`: together they are much larger than any
  // cache, so that no call finds its inputs there.
  std::size_t sets(double bytes) const;

  // run(i): call number i on the device. error(): of the results of call 0, which the first calls made; it is asked
  // after one call and before the timing. Prints the case's line.
  void measure(const Operation& operation, const std::function<void(std::size_t)>& run,
               const std::function<double()>& error);
  // Cases that failed their check.
  int wrong() const { return wrong_; }
  Ceilings& ceilings() { return ceilings_; }

 private:
  Backend& backend_;
  Settings settings_;
  std::unique_ptr<Backend> reference_;
  Ceilings ceilings_;
  int wrong_ = 0;
};

// As many sets of tensors as calls of an operation that touches `bytes` take turns in.
template <class Make>
auto make_sets(const Bench& bench, double bytes, Make make) {
  std::vector<decltype(make())> sets;
  for (std::size_t i = 0; i < bench.sets(bytes); ++i) sets.push_back(make());
  return sets;
}

// Where slices of `count` rows of `rows` are looked at: at both ends.
inline std::vector<std::int64_t> both_ends(std::int64_t rows, std::int64_t count) {
  return rows == count ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{0, rows - count};
}

void print(const Record& record);

}  // namespace motley::bench
