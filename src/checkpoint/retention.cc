#include "checkpoint/retention.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "checkpoint/commit.h"
#include "checkpoint/directory.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"

namespace motley::checkpoint {
namespace {

// Adds the newest `count` (negative: all) steps of one kind to `held`; `newest_first` is sorted that way.
void hold(const std::vector<Kept>& newest_first, bool Kept::*kind, std::int64_t count,
          std::set<std::int64_t>& held) {
  for (const Kept& checkpoint : newest_first) {
    if (!(checkpoint.*kind)) continue;
    if (count == 0) return;
    --count;
    held.insert(checkpoint.step);
  }
}

// nullopt: unreadable, or not of this program's making, and then not for it to remove.
std::optional<Kept> read_kind(const Listed& checkpoint) {
  const std::filesystem::path path = checkpoint.path / "trainer.json";
  try {
    const Json trainer =
        parse_json(read_file(path, ExitCode::checkpoint), path.string(), ExitCode::checkpoint);
    return kept_from(checkpoint.step,
                     json_get<std::string>(trainer, "kind", path.string(), ExitCode::checkpoint));
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::int64_t best_step_of(const std::filesystem::path& save_dir) {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::read_symlink(save_dir / "best", error);
  return error ? -1 : step_of(target.filename().string()).value_or(-1);
}

}  // namespace

std::string kind_text(const Kept& kept) {
  if (kept.epoch_end && kept.interval) return "epoch+interval";
  if (kept.epoch_end) return "epoch";
  return kept.interval ? "interval" : "last";
}

Kept kept_from(std::int64_t step, std::string_view kind) {
  Kept kept{step, false, false};
  while (!kind.empty()) {
    const std::string_view reason = kind.substr(0, kind.find('+'));
    kept.epoch_end |= reason == "epoch";
    kept.interval |= reason == "interval";
    kind.remove_prefix(std::min(kind.size(), reason.size() + 1));
  }
  return kept;
}

std::vector<std::int64_t> to_remove(const std::vector<Kept>& present, const RetentionOptions& options,
                                    std::int64_t best_step) {
  if (present.empty()) return {};
  std::vector<Kept> newest_first = present;
  std::sort(newest_first.begin(), newest_first.end(),
            [](const Kept& a, const Kept& b) { return a.step > b.step; });
  std::set<std::int64_t> held = {newest_first.front().step, best_step};
  hold(newest_first, &Kept::interval, options.keep_interval_updates, held);
  hold(newest_first, &Kept::epoch_end, options.keep_last_epochs, held);
  std::vector<std::int64_t> steps;
  for (auto checkpoint = newest_first.rbegin(); checkpoint != newest_first.rend(); ++checkpoint) {
    if (!held.contains(checkpoint->step)) steps.push_back(checkpoint->step);
  }
  return steps;
}

void apply_retention(const std::filesystem::path& save_dir, const RetentionOptions& options) {
  const std::vector<Listed> all = list(save_dir);
  std::vector<Kept> present;
  for (const Listed& checkpoint : all) {
    if (const auto kept = read_kind(checkpoint)) present.push_back(*kept);
  }
  const std::vector<std::int64_t> steps = to_remove(present, options, best_step_of(save_dir));
  for (const Listed& checkpoint : all) {
    if (!std::binary_search(steps.begin(), steps.end(), checkpoint.step)) continue;
    try {
      discard(checkpoint.path);
    } catch (const Error& error) {
      // One checkpoint too many is no reason to end a run.
      log::warn("{}", error.what());
    }
  }
}

}  // namespace motley::checkpoint
