// Steps whose loss or gradient was not a finite number: all ranks leave their parameters as they are and go on with the
// next step. They are counted, and told to people with the samples that they had.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/json.h"

namespace motley::train {

// A step as one rank saw it: its own part.
struct BadStep {
  std::int64_t step = 0;
  int epoch = 1;
  bool own_finite = true;              // the loss of its share; of local steps also its gradient
  std::vector<std::uint64_t> samples;  // ids of its share
};

// The same on all ranks.
class BadSteps {
 public:
  // The run ends when so many steps in a row were not finite; at least 1.
  explicit BadSteps(std::int64_t most_in_a_row) : most_in_a_row_(most_in_a_row) {}

  std::int64_t in_a_row() const { return in_a_row_; }
  std::int64_t most_in_a_row() const { return most_in_a_row_; }
  // Since the beginning of the run: they do not count for the optimizer's bias corrections.
  std::int64_t skipped() const { return skipped_; }

  // After a step. False: there were too many in a row.
  bool note(bool finite);

  Json to_json() const;
  // Of the run that this one continues, null when it wrote none; `where` names the file. Error(checkpoint).
  void restore(const Json& state, const std::string& where);

 private:
  std::int64_t most_in_a_row_;
  std::int64_t in_a_row_ = 0, skipped_ = 0;
};

// A line of skipped.jsonl (docs/file-formats.md) and what is said of a step. `ranks`: of each rank its part, by rank.
std::string to_json_line(const std::vector<BadStep>& ranks, double loss, double grad_norm);
// "rank 1: samples 3, 17 and 30 more; rank 2: ..." of the ranks whose own part was not finite, or of all when each was.
std::string suspects_text(const std::vector<BadStep>& ranks);

// The parts of all ranks, on rank 0. Collective.
std::vector<BadStep> gather(const BadStep& own, const comm::Communicator& world);

}  // namespace motley::train
