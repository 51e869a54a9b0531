// Which checkpoints to keep: HetSeq's --keep-interval-updates and --keep-last-epochs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace motley::checkpoint {

// Why a checkpoint was written; kept in its trainer.json as "kind". A checkpoint may have several reasons
// (an epoch end that is also an interval), joined by "+": it is kept while any of them holds it.
struct Kept {
  std::int64_t step = 0;
  bool epoch_end = false;
  bool interval = false;
};

// The text for "kind" ("epoch", "interval", "epoch+interval", or "last" for neither), and back; unknown
// reasons hold nothing.
std::string kind_text(const Kept& kept);
Kept kept_from(std::int64_t step, std::string_view kind);

struct RetentionOptions {
  std::int64_t keep_interval_updates = -1;  // the newest N interval checkpoints; negative: all
  std::int64_t keep_last_epochs = -1;       // the newest N epoch checkpoints; negative: all
};

// The steps to remove out of `present` (any order). Never the newest of all, never `best_step` (-1: none). A
// checkpoint of neither kind (the last one of a run, a stop on a signal) goes once a newer one exists.
std::vector<std::int64_t> to_remove(const std::vector<Kept>& present, const RetentionOptions& options,
                                    std::int64_t best_step);

// Applies it to a directory: reads the kinds from the trainer.json files and `best`, removes what to_remove()
// names, the oldest first, each by rename to a .tmp- name, so that a kill in the middle leaves no half
// checkpoint. Checkpoints whose kind cannot be read are left alone; one that cannot be removed is warned of.
void apply_retention(const std::filesystem::path& save_dir, const RetentionOptions& options);

}  // namespace motley::checkpoint
