#include <cstdio>

#include "cli/command.h"
#include "cli/option_set.h"
#include "comm/agree.h"
#include "core/log.h"
#include "io/idx.h"
#include "io/inspect.h"

namespace motley::cli {
namespace {

struct IdxOptions {
  std::string images, labels, out;
};

void declare(OptionSet& set, IdxOptions& options) {
  set.group("options");
  set.add("images", &options.images, "IDX file of images, .gz or not");
  set.add("labels", &options.labels, "IDX file of their labels, .gz or not");
  set.add("out", &options.out, "HDF5 file to write");
}

void declare_inspect(OptionSet& set, std::string& file) {
  set.positional("FILE", &file, "HDF5 file to look at");
}

}  // namespace

std::string data_idx_help() {
  OptionSet set("data idx");
  IdxOptions options;
  declare(set, options);
  return set.help(
      "motley data idx --images FILE --labels FILE --out FILE.h5",
      "Converts images and labels in IDX files, as MNIST and its relatives come, to an HDF5 image set.");
}

void data_idx(const std::vector<std::string>& arguments, const Context& context) {
  IdxOptions options;
  comm::agree(context.world, "reading the options", [&] {
    OptionSet set("data idx");
    declare(set, options);
    set.parse(arguments);
    set.require({"images", "labels", "out"});
  });
  comm::agree_on_root(context.world, "converting", [&] {
    const io::IdxSummary summary = io::convert_idx(options.images, options.labels, options.out);
    log::info("{}: {} images of {} x {}", options.out, summary.samples, summary.height, summary.width);
  });
}

std::string data_inspect_help() {
  OptionSet set("data inspect");
  std::string file;
  declare_inspect(set, file);
  return set.help("motley data inspect FILE",
                  "Prints what an HDF5 file holds and whether motley can train on it.");
}

void data_inspect(const std::vector<std::string>& arguments, const Context& context) {
  std::string file;
  comm::agree(context.world, "reading the options", [&] {
    OptionSet set("data inspect");
    declare_inspect(set, file);
    set.parse(arguments);
    if (file.empty()) fail(ExitCode::usage, "FILE is missing; motley data inspect --help says more");
  });
  comm::agree_on_root(context.world, "looking at the file",
                      [&] { std::fputs(io::inspect(file).c_str(), stdout); });
}

}  // namespace motley::cli
