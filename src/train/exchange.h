// Models from and to directories of other programs: BERT as Hugging Face's transformers have it, image networks as
// torchvision names their tensors. For one rank; errors are what the commands end with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/dtype.h"
#include "train/options.h"

namespace motley::train {

struct ImportOptions {
  std::string from;               // such a directory; checkpoints of Motley will do as well
  std::string save_dir;           // of the run that is to begin with it
  std::uint64_t seed = 19940802;  // for parts of the network that `from` does not have
  std::string task = "bert";
  ImageOptions image{};  // of image tasks
};
// Writes the checkpoint of step 0 into save_dir and returns its path. It has no optimizer state: training
// continues from it with a fresh optimizer, whichever it is. Error(usage) when save_dir has checkpoints
// already, Error(input) for a directory that is not right; nothing was written then.
std::filesystem::path import_model(const ImportOptions& options);

struct ExportOptions {
  std::string save_dir, restore_file;  // which checkpoint, as for evaluation
  std::string out;                     // must not exist, or be an empty directory
  DType dtype = DType::f32;            // float32, float16 or bfloat16: rounded to nearest even
};
// Writes a directory that BertForPreTraining.from_pretrained() loads, or whose model.safetensors torchvision's network of
// that name does, under a temporary name first; returns
// the checkpoint that it was made of. Error(usage) also for numbers that are too large for the type.
std::filesystem::path export_model(const ExportOptions& options);

}  // namespace motley::train
