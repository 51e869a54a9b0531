// Options that several commands have.
#pragma once

#include <string>
#include <vector>

#include "cli/option_set.h"
#include "train/options.h"

namespace motley::cli {

// Values that do not go straight into a field of TrainOptions.
struct SharedOptions {
  std::vector<double> adam_betas = {0.9, 0.999};
  bool cpu = false;
  std::string device = "auto";
  std::string precision = "fp32";
  int threads = 0;
  bool deterministic = false;
  std::string slow, memory_limit;
  double timeout_s = 600;
};

void add_data_options(OptionSet& set, train::DataOptions& options);
// The network and its masking: task bert.
void add_model_options(OptionSet& set, train::ModelOptions& options);
// The network and the images that it is made for: all tasks but bert.
void add_image_options(OptionSet& set, train::ImageOptions& options);
// An evaluation has fewer policies than training.
void add_batch_options(OptionSet& set, train::BatchOptions& options, bool training);
void add_device_options(OptionSet& set, SharedOptions& shared);

// Other names that HetSeq has for options; its options that mean nothing here, which are accepted; and those
// that would change the run, which are answered with what does the same here.
void add_hetseq_options(OptionSet& set);
// Says on rank 0 which of them were given and do nothing.
void warn_of_ignored(const OptionSet& set, int rank);

// Options of dynamic masking that were given with static masking; throws Error(usage).
void check_masking_options(const OptionSet& set, const train::ModelOptions& options);
// Whether an option plays a part with this masking.
bool masking_uses(const train::ModelOptions& options, const std::string& name);

// Puts the shared values where they belong; throws Error(usage) when they contradict each other.
void apply_shared(const SharedOptions& shared, train::TrainOptions& options);

}  // namespace motley::cli
