#include <array>
#include <utility>

#include "cli/command.h"
#include "cli/option_set.h"
#include "cli/shared_options.h"
#include "comm/agree.h"
#include "core/error.h"
#include "train/exchange.h"

namespace motley::cli {
namespace {

void declare(OptionSet& set, train::ImportOptions& options) {
  set.group("options");
  set.add("from", &options.from,
          "directory with model.safetensors (or its parts with their index): of Hugging Face, with "
          "config.json and vocab.txt if "
          "there is one; or with the tensors of a network of torchvision");
  set.add("task", &options.task, "bert, or which images it is for: mnist, cifar10, cifar100 or images");
  set.add("save-dir", &options.save_dir, "directory of the run that is to begin with it");
  set.add("seed", &options.seed, "of the parts of the network that --from does not have");
  set.group("images");
  add_image_options(set, options.image);
}

void declare(OptionSet& set, train::ExportOptions& options, std::string& dtype) {
  set.group("options");
  set.add("save-dir", &options.save_dir, "directory of the run");
  set.add("restore-file", &options.restore_file,
          "checkpoint: a directory, or a name in --save-dir such as best; without it the newest good one");
  set.add("out", &options.out, "directory to write; must not exist, or be empty");
  set.add("dtype", &dtype, "fp32, fp16 or bf16: what the parameters are rounded to, to nearest even");
}

DType parse_dtype(const std::string& text) {
  constexpr std::array names = {std::pair{"fp32", DType::f32}, std::pair{"fp16", DType::f16},
                                std::pair{"bf16", DType::bf16}};
  for (const auto& [name, dtype] : names) {
    if (text == name) return dtype;
  }
  fail(ExitCode::usage, "--dtype is \"{}\"; expected one of: fp32, fp16, bf16", text);
}

}  // namespace

std::string import_help() {
  OptionSet set("import");
  train::ImportOptions options;
  declare(set, options);
  return set.help("motley import --from DIR --save-dir RUN [OPTIONS]",
                  "Makes the checkpoint of step 0 out of a BERT in a Hugging Face directory, or out of the "
                  "tensors of an image network "
                  "as\n"
                  "torchvision names them (--task images --arch resnet50_imagenet). motley eval judges it, "
                  "and motley train with the "
                  "same\n"
                  "--save-dir begins with it, with any optimizer.");
}

void import_model(const std::vector<std::string>& arguments, const Context& context) {
  train::ImportOptions options;
  comm::agree(context.world, "reading the options", [&] {
    OptionSet set("import");
    declare(set, options);
    set.parse(arguments);
    set.require({"from", "save-dir"});
    for (const char* name : {"arch", "classes", "mean", "deviation"})
      train::expect_images(options.task, name, set.given(name));
  });
  comm::agree_on_root(context.world, "importing", [&] { train::import_model(options); });
}

std::string export_help() {
  OptionSet set("export");
  train::ExportOptions options;
  std::string dtype = "fp32";
  declare(set, options, dtype);
  return set.help("motley export --save-dir RUN --out DIR [OPTIONS]",
                  "Writes a BERT as a Hugging Face directory, which BertForPreTraining.from_pretrained(DIR) "
                  "loads, and an image network "
                  "as\n"
                  "model.safetensors, which load_state_dict(safetensors.torch.load_file(...)) of "
                  "torchvision's network of that name "
                  "takes.");
}

void export_model(const std::vector<std::string>& arguments, const Context& context) {
  train::ExportOptions options;
  comm::agree(context.world, "reading the options", [&] {
    OptionSet set("export");
    std::string dtype = "fp32";
    declare(set, options, dtype);
    set.parse(arguments);
    set.require({"save-dir", "out"});
    options.dtype = parse_dtype(dtype);
  });
  comm::agree_on_root(context.world, "exporting", [&] { train::export_model(options); });
}

}  // namespace motley::cli
