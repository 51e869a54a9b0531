// What is stored of a model and where: the parts of a checkpoint that training, evaluation, import and export
// share, and the directories that a new run can take its parameters from.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/json.h"
#include "io/safetensors.h"
#include "models/parameter_store.h"
#include "train/name_rules.h"
#include "train/options.h"
#include "train/planner.h"

namespace motley::train {

// "optimizer" in the trainer.json of a checkpoint without optimizer state, as `motley import` writes them:
// any optimizer continues from it, with fresh state.
inline constexpr const char* no_optimizer = "none";

// Entries for one arena held in host memory: one tensor per parameter, in forward order.
std::vector<io::SafetensorsEntry> entries_of(const ParameterStore& store, const std::string& prefix,
                                             float* arena);
// Entries for ParameterStore::stored() held in host memory: the parameters, then the statistics.
std::vector<io::SafetensorsEntry> model_entries_of(const ParameterStore& store, float* stored);

// The checkpoint directory that is meant: restore_file as a path or as a name in save_dir, or the newest good
// one of save_dir. Empty when nothing was named and there is none.
std::filesystem::path find_checkpoint(const std::string& save_dir, const std::string& restore_file);

// The directory whose config.json, and what lies beside it, stands in for options that were not given: of the checkpoint
// that the run continues or that is judged, or of --init-from: the newest whose config.json is as it was written, or one that is
// damaged when there is no other. Empty when none has a config.json.
std::filesystem::path directory_of_config(const SaveOptions& save);

// trainer.json of a new checkpoint, as far as every writer has it: format, task and position.
Json new_trainer_json(const std::string& task, const Position& position);
Json to_json(const Position& position);
Position position_of(const Json& trainer, const std::string& where);
// Format and task of a checkpoint must be this program's and `task`.
void check_kind(const Json& trainer, const std::string& task, const std::string& where);

// Where the parameters of a new run or checkpoint come from: a checkpoint of Motley, the newest good one of a
// --save-dir, or a Hugging Face directory.
struct ModelSource {
  std::filesystem::path path;
  bool is_checkpoint = false;
};
// Error(input) when `given` is none of these.
ModelSource find_source(const std::filesystem::path& given);
// Reads the parameters of `source` as ModelDirectory::read() does; a checkpoint must have them all, and errors
// about it are Error(checkpoint). Returns the parts that are absent.
std::vector<std::string> read_source(const ModelSource& source, const std::string& task,
                                     const NameRules& rules, const std::vector<io::SafetensorsEntry>& wanted);
// What a message about them says; nothing when all are there.
std::string absent_text(const std::vector<std::string>& absent);

}  // namespace motley::train
