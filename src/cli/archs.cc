#include "cli/archs.h"

#include <algorithm>
#include <memory>

#include "cli/option_set.h"
#include "cli/shared_options.h"
#include "cli/table.h"
#include "core/error.h"
#include "io/image_set.h"
#include "models/image_archs.h"
#include "train/data.h"
#include "train/tasks/image_task.h"

namespace motley::cli {
namespace {

struct Listing {
  train::DataOptions data;
  std::int64_t classes = 0;
};

// The images that the networks are to be listed for; of rank 0, and no classes: those that each was made for.
train::ImageSpec wanted(const OptionSet& set, const Listing& listing) {
  train::ImageSpec spec;
  if (set.given("task")) spec = train::image_spec(listing.data.task);
  if (!listing.data.data.empty()) {
    const io::ImageSet found =
        io::describe_image_set(train::subset_path(listing.data.data, listing.data.train_subset));
    spec.input = Shape{found.height, found.width, found.channels};
    if (spec.classes == 0) spec.classes = io::find_image_facts(found).classes;
  }
  if (listing.classes > 0) spec.classes = listing.classes;
  return spec;
}

std::vector<std::string> line(const ImageArch& arch, const train::ImageSpec& spec) {
  const Shape input = spec.input.rank() == 3 ? spec.input : arch.input;
  const std::int64_t classes = spec.classes > 0 ? spec.classes : arch.classes;
  const std::string shape = fmt::format("{} x {} x {}", input[0], input[1], input[2]);
  const auto refused = [&](const std::string& why) -> std::vector<std::string> {
    return {arch.name, "-", "-", shape, std::to_string(classes), why};
  };
  if (std::min(input[0], input[1]) < arch.least_side)
    return refused(fmt::format("too small: needs {0} x {0}", arch.least_side));
  std::unique_ptr<ImageNetwork> network;
  try {
    network = arch.make(input, classes);
  } catch (const Error& error) {
    if (error.code() != ExitCode::usage) throw;
    return refused(error.what());
  }
  return {arch.name,
          std::to_string(network->parameters.count()),
          fmt::format("{:.1f}", static_cast<double>(network->body.multiply_adds()) / 1e6),
          shape,
          std::to_string(classes),
          ""};
}

}  // namespace

bool asks_for_archs(const std::vector<std::string>& arguments) {
  return !arguments.empty() && arguments[0] == "train" &&
         std::find(arguments.begin(), arguments.end(), "--help-archs") != arguments.end();
}

std::string archs_text(const std::vector<std::string>& arguments) {
  Listing listing;
  bool listed = false;
  OptionSet set("train");
  set.add("task", &listing.data.task, "");
  set.add("data", &listing.data.data, "");
  set.add("train-subset", &listing.data.train_subset, "");
  set.add("classes", &listing.classes, "");
  set.add_switch("help-archs", &listed, "");
  set.parse({arguments.begin() + 1, arguments.end()});
  if (listing.data.task == "bert")
    fail(ExitCode::usage, "--arch is for images, and task bert has one network");
  if (listing.classes < 0 || listing.classes > io::most_classes)
    fail(ExitCode::usage, "--classes is {}; expected 1 to {}", listing.classes, io::most_classes);
  const train::ImageSpec spec = wanted(set, listing);
  std::vector<std::vector<std::string>> rows = {
      {"--arch", "parameters", "multiply-adds (M)", "images", "classes", ""}};
  for (const ImageArch& arch : image_archs()) rows.push_back(line(arch, spec));
  return table(rows, "l") +
         "\nMultiply-adds are those of the convolutions and linear layers of one image's forward pass. "
         "--task, --data and "
         "--classes\nlist the networks for other images than they were made for.\n";
}

}  // namespace motley::cli
