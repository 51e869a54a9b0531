// Writing and reading a checkpoint against what two dd of the same bytes reach on the same disk, in turn in the same run:
//
//   checkpoint_bench [DIRECTORY [MEGABYTES [ROUNDS]]]
//
// One line of JSON per direction: seconds, medians over the rounds, and the ratio, dd's over ours: above 1, ours is faster. Both
// write with fsync; what is read was put out of the page cache before. "verified": what was read is what was written.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "core/clock.h"
#include "core/error.h"

namespace motley::bench {
namespace {

namespace fs = std::filesystem;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// As Adam has them: parameters and two moments, in tensors of four megabytes.
struct State {
  explicit State(std::size_t megabytes) : numbers(megabytes << 18) {
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 1000003);
    constexpr std::int64_t rows = 1024, columns = 1024;
    const std::size_t each = static_cast<std::size_t>(rows * columns), tensors = numbers.size() / each / 3;
    for (std::size_t i = 0; i < 3 * tensors; ++i) {
      const std::string name = fmt::format("layer{}.weight", i % tensors);
      const char* const group = i < tensors ? "" : i < 2 * tensors ? "exp_avg/" : "exp_avg_sq/";
      (i < tensors ? contents.model : contents.optimizer)
          .push_back({group + name, DType::f32, {rows, columns}, numbers.data() + i * each});
    }
    bytes = 3 * tensors * each * sizeof(float);
    contents.trainer = {{"step", 1}};
  }
  std::vector<float> numbers;
  checkpoint::Contents contents;
  std::size_t bytes = 0;
};

// Runs both to their end.
double seconds_of(const std::vector<std::string>& commands) {
  const double started_s = now_s();
  std::vector<pid_t> children;
  for (const std::string& command : commands) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) fail(ExitCode::internal, "dd failed");
  }
  return now_s() - started_s;
}

void forget(const fs::path& directory) {
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

void measure(const fs::path& directory, std::size_t megabytes, int rounds) {
  State state(megabytes), read_back(megabytes);
  const std::size_t half = state.bytes / 2 >> 20;
  const auto dd = [&](const char* format) {
    return std::vector<std::string>{fmt::format(fmt::runtime(format), (directory / "a").string(), half),
                                    fmt::format(fmt::runtime(format), (directory / "b").string(), half)};
  };
  std::vector<double> write_s, dd_write_s, read_s, dd_read_s;
  bool verified = true;
  for (int round = 0; round < rounds; ++round) {
    fs::remove_all(directory / "run");
    double started_s = now_s();
    const fs::path written = checkpoint::write(directory / "run", 1, state.contents);
    write_s.push_back(now_s() - started_s);
    fs::remove(directory / "a");
    fs::remove(directory / "b");
    dd_write_s.push_back(seconds_of(dd("dd if=/dev/zero of={} bs=1M count={} conv=fsync status=none")));

    std::fill(read_back.numbers.begin(), read_back.numbers.end(), 0.0F);
    forget(directory);
    started_s = now_s();
    const checkpoint::Reader reader(written);
    reader.read_model(read_back.contents.model);
    reader.read_optimizer(read_back.contents.optimizer);
    read_s.push_back(now_s() - started_s);
    verified = verified && std::equal(state.numbers.begin(),
                                      state.numbers.begin() + static_cast<std::ptrdiff_t>(state.bytes / 4),
                                      read_back.numbers.begin());
    forget(directory);
    dd_read_s.push_back(seconds_of(dd("dd if={} of=/dev/null bs=1M count={} status=none")));
  }
  const auto print = [&](const char* what, const std::vector<double>& ours,
                         const std::vector<double>& theirs) {
    fmt::print(
        R"({{"bench":"checkpoint","case":"{}","megabytes":{},"s":{:.3f},"dd_s":{:.3f},"ratio":{:.2f},"verified":{}}})"
        "\n",
        what, state.bytes >> 20, median(ours), median(theirs), median(theirs) / median(ours), verified);
  };
  print("write", write_s, dd_write_s);
  print("read", read_s, dd_read_s);
}

}  // namespace
}  // namespace motley::bench

int main(int argc, char** argv) {
  try {
    const std::filesystem::path directory =
        std::filesystem::path(argc > 1 ? argv[1] : ".") / fmt::format("checkpoint_bench-{}", ::getpid());
    std::filesystem::create_directories(directory);
    motley::bench::measure(directory, argc > 2 ? std::stoul(argv[2]) : 360,
                           argc > 3 ? std::atoi(argv[3]) : 5);
    std::filesystem::remove_all(directory);
  } catch (const std::exception& error) {
    fmt::print(stderr, "checkpoint_bench: {}\n", error.what());
    return 1;
  }
}
