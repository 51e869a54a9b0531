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
  int threads = 0;
  std::string slow;
  double timeout_s = 600;
};

void add_data_options(OptionSet& set, train::DataOptions& options);
// The network and its masking: task bert.
void add_model_options(OptionSet& set, train::ModelOptions& options);
void add_batch_options(OptionSet& set, train::BatchOptions& options);
void add_device_options(OptionSet& set, SharedOptions& shared);

// Puts the shared values where they belong; throws Error(usage) when they contradict each other.
void apply_shared(const SharedOptions& shared, train::TrainOptions& options);

}  // namespace motley::cli
