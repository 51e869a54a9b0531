// The options of motley train.
#pragma once

#include <string>
#include <vector>

#include "train/options.h"

namespace motley::cli {

// Reads and checks the options of a run of `ranks` ranks, and fills as_used; rank 0 warns of options that do
// nothing. Throws Error(usage), or Error(input) for a --config file that cannot be read.
train::TrainOptions read_train_options(const std::vector<std::string>& arguments, int rank, int ranks);

}  // namespace motley::cli
