#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/option_set.h"
#include "comm/agree.h"
#include "core/log.h"
#include "io/cifar.h"
#include "io/synthetic_images.h"

namespace motley::cli {
namespace {

struct CifarOptions {
  std::vector<std::string> data;
  std::string dir, subset = "train", out;
  bool coarse = false;
};

void declare(OptionSet& set, CifarOptions& options) {
  set.group("options");
  set.add_paths("data", &options.data, "binary files of CIFAR-10 or CIFAR-100, in this order");
  set.add("dir", &options.dir, "instead of --data: the directory with the files as they are published");
  set.add("subset", &options.subset, "with --dir: train or test");
  set.add_switch("coarse", &options.coarse, "CIFAR-100: the 20 coarse labels instead of the 100 fine ones");
  set.add("out", &options.out, "HDF5 file to write");
}

void read(const std::vector<std::string>& arguments, CifarOptions& options) {
  OptionSet set("data cifar");
  declare(set, options);
  set.parse(arguments);
  set.require({"out"});
  if (options.data.empty() == options.dir.empty())
    fail(ExitCode::usage, "expected either --data FILE... or --dir DIR; motley data cifar --help says more");
  if (set.given("subset") && options.dir.empty())
    fail(ExitCode::usage, "--subset is for --dir; --data names the files themselves");
  if (options.subset != "train" && options.subset != "test")
    fail(ExitCode::usage, "--subset is \"{}\"; expected train or test", options.subset);
}

struct SynthOptions {
  std::int64_t samples = 10000;
  io::SyntheticImages images;
  std::string out;
};

void declare(OptionSet& set, SynthOptions& options) {
  set.group("options");
  set.add("samples", &options.samples, "how many images");
  set.add("height", &options.images.height, "pixels");
  set.add("width", &options.images.width, "pixels");
  set.add("channels", &options.images.channels, "bytes per pixel");
  set.add("classes", &options.images.classes, "each has a pattern of its own, the same in every set");
  set.add("seed", &options.images.seed,
          "another seed gives other images of the same classes: a validation set");
  set.add("out", &options.out, "HDF5 file to write");
}

void read(const std::vector<std::string>& arguments, SynthOptions& options) {
  OptionSet set("data synth");
  declare(set, options);
  set.parse(arguments);
  set.require({"out"});
  const auto expect = [](const char* name, std::int64_t value, std::int64_t most) {
    if (value < 1 || value > most) fail(ExitCode::usage, "--{} is {}; expected 1 to {}", name, value, most);
  };
  constexpr std::int64_t largest_side = 1 << 15, most_channels = 1 << 10, most_classes = 1 << 16;
  constexpr std::int64_t most_samples = 1LL << 40, largest_image = 1LL << 30;
  expect("samples", options.samples, most_samples);
  expect("height", options.images.height, largest_side);
  expect("width", options.images.width, largest_side);
  expect("channels", options.images.channels, most_channels);
  expect("classes", options.images.classes, most_classes);
  const std::int64_t bytes = options.images.height * options.images.width * options.images.channels;
  if (bytes > largest_image)
    fail(ExitCode::usage, "--height x --width x --channels is {} bytes; expected at most 1 GiB per image",
         bytes);
  options.images.samples = static_cast<std::uint64_t>(options.samples);
}

}  // namespace

std::string data_cifar_help() {
  OptionSet set("data cifar");
  CifarOptions options;
  declare(set, options);
  return set.help(
      "motley data cifar --dir DIR --subset train|test --out FILE.h5\n"
      "       motley data cifar --data FILE... --out FILE.h5",
      "Converts the binary files of CIFAR-10 or CIFAR-100 to an HDF5 image set.");
}

void data_cifar(const std::vector<std::string>& arguments, const Context& context) {
  CifarOptions options;
  comm::agree(context.world, "reading the options", [&] { read(arguments, options); });
  comm::agree_on_root(context.world, "converting", [&] {
    const io::CifarFiles files =
        options.dir.empty() ? io::recognise_cifar(options.data) : io::find_cifar(options.dir, options.subset);
    const io::CifarSummary summary = io::convert_cifar(files, options.coarse, options.out);
    log::info("{}: {} images of 32 x 32 x 3, {} classes", options.out, summary.samples, summary.classes);
  });
}

std::string data_synth_help() {
  OptionSet set("data synth");
  SynthOptions options;
  declare(set, options);
  return set.help(
      "motley data synth --samples N --out FILE.h5 [OPTIONS]",
      "Makes up an HDF5 image set whose classes can be learned. The same options give the same bytes.");
}

void data_synth(const std::vector<std::string>& arguments, const Context& context) {
  SynthOptions options;
  comm::agree(context.world, "reading the options", [&] { read(arguments, options); });
  comm::agree_on_root(context.world, "making up images", [&] {
    io::write_synthetic_images(options.images, options.out);
    const io::SyntheticImages& made = options.images;
    log::info("{}: {} images of {} x {} x {}, {} classes", options.out, made.samples, made.height, made.width,
              made.channels, made.classes);
  });
}

}  // namespace motley::cli
