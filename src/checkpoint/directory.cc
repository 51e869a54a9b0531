#include "checkpoint/directory.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "checkpoint/commit.h"
#include "checkpoint/manifest.h"
#include "checkpoint/match.h"
#include "checkpoint/optimizer_file.h"
#include "core/error.h"
#include "core/files.h"
#include "core/log.h"

namespace motley::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr ExitCode code = ExitCode::checkpoint;
constexpr const char* model_name = "model.safetensors";
constexpr const char* optimizer_name = "optimizer.h5";
constexpr const char* trainer_name = "trainer.json";
constexpr const char* bad_prefix = "bad-";

void check_extra_name(const std::string& name) {
  const std::set<std::string> taken = {"",           ".",          "..", model_name, optimizer_name,
                                       trainer_name, manifest_name};
  MOTLEY_CHECK(!taken.contains(name) && name.find('/') == std::string::npos);
}

// Paths among the options need not be UTF-8, which JSON must be; that is no reason to lose a checkpoint.
std::string trainer_text(const Json& trainer) {
  return trainer.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::uint64_t bytes_of(const Contents& contents) {
  std::uint64_t bytes = 0;
  for (const auto* tensors : {&contents.model, &contents.optimizer})
    for (const io::SafetensorsEntry& tensor : *tensors)
      bytes += static_cast<std::uint64_t>(tensor.shape.elements()) * size_of(tensor.dtype);
  for (const auto& [name, content] : contents.extra_files) bytes += content.size();
  return bytes;
}

// Before half of it is there. Headers and quotas are not known of, so that writing can fail still.
void check_free_space(const fs::path& save_dir, const Contents& contents) {
  std::error_code error;
  const fs::space_info space = fs::space(save_dir, error);
  const std::uint64_t needed = bytes_of(contents);
  if (error || space.capacity == 0 || space.available >= needed) return;
  fail(code, "a checkpoint has {} bytes, and only {} are free in {}", needed, space.available,
       save_dir.string());
}

// State 3 of the protocol: everything on disk, the manifest last.
void write_files(const fs::path& directory, const Contents& contents) {
  std::vector<std::string> names = {model_name, optimizer_name, trainer_name};
  io::write_safetensors(directory / model_name, contents.model, contents.model_metadata, code);
  write_optimizer_file(directory / optimizer_name, contents.optimizer);
  write_file(directory / trainer_name, trainer_text(contents.trainer), code);
  for (const auto& [name, content] : contents.extra_files) {
    check_extra_name(name);
    write_file(directory / name, content, code);
    names.push_back(name);
  }
  write_manifest(directory, names);
  sync_path(directory, code);
}

fs::path resolve(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (!fs::is_symlink(fs::symlink_status(path, error)))
      fail(code, "there is no checkpoint {}", path.string());
    fail(code, "{} is a link to {}, where there is no checkpoint", path.string(),
         fs::read_symlink(path, error).string());
  }
  // `latest` may be pointed elsewhere while the files are read.
  return fs::is_symlink(fs::symlink_status(path, error)) ? fs::canonical(path) : path;
}

fs::path verified(const fs::path& path) {
  fs::path resolved = resolve(path);
  verify(resolved);
  return resolved;
}

// Takes the links away from checkpoints beyond `step`: `latest` then points to `newest`, unless that is
// empty.
void withdraw_links(const fs::path& save_dir, std::int64_t step, const fs::path& newest) {
  for (const std::string link : {"latest", "best"}) {
    std::error_code error;
    const fs::path target = fs::read_symlink(save_dir / link, error);
    if (error || step_of(target.filename().string()).value_or(-1) <= step) continue;
    try {
      if (link == "latest" && !newest.empty()) {
        point_link(save_dir, link, newest.string());
      } else if (!fs::remove(save_dir / link, error) || error) {
        log::warn("cannot remove the link {}: {}", (save_dir / link).string(), error.message());
      }
    } catch (const Error& problem) {
      // The checkpoints count without it.
      log::warn("{}", problem.what());
    }
  }
}

// "superseded-step-00001000", or "superseded-2-step-00001000" when that is taken.
fs::path free_name(const fs::path& save_dir, const std::string& prefix, const std::string& name) {
  fs::path free = save_dir / (prefix + name);
  std::error_code ignored;
  for (int i = 2; fs::exists(fs::symlink_status(free, ignored)); ++i)
    free = save_dir / fmt::format("{}{}-{}", prefix, i, name);
  return free;
}

Json read_trainer(const fs::path& directory) {
  const fs::path path = directory / trainer_name;
  return parse_json(read_file(path, code), path.string(), code);
}

}  // namespace

fs::path write(const fs::path& save_dir, std::int64_t step, const Contents& contents) {
  MOTLEY_CHECK(step >= 0);
  make_durable_directories(save_dir);
  check_free_space(save_dir, contents);
  const std::string name = directory_name(step);
  fs::path committed = save_dir / name;
  {
    const TemporaryTree temporary(temporary_path(save_dir, name));
    write_files(temporary.path(), contents);
    commit_directory(temporary.path(), committed);
  }
  try {
    point_link(save_dir, "latest", name);
  } catch (const Error& error) {
    // The checkpoint counts without it.
    log::warn("{}", error.what());
  }
  return committed;
}

void mark_best(const fs::path& save_dir, const fs::path& checkpoint) {
  const std::string name = checkpoint.filename().string();
  std::error_code ignored;
  if (!step_of(name) || !fs::is_directory(save_dir / name, ignored)) {
    fail(code, "{} is no checkpoint in {}, so it cannot be marked as the best", checkpoint.string(),
         save_dir.string());
  }
  point_link(save_dir, "best", name);
}

std::vector<Listed> list(const fs::path& save_dir) {
  std::vector<Listed> committed, aside;
  std::error_code error;
  fs::directory_iterator entries(save_dir, error);
  if (error == std::errc::no_such_file_or_directory) return {};
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const fs::path& path = entries->path();
    const std::string name = path.filename().string();
    std::error_code ignored;
    if (const auto step = step_of(name); step && fs::is_directory(path, ignored))
      committed.push_back({*step, path});
    if (const auto step = step_set_aside(name)) aside.push_back({*step, path});
  }
  if (error) fail(code, "cannot list the checkpoints in {}: {}", save_dir.string(), error.message());
  std::set<std::int64_t> present;
  for (const Listed& checkpoint : committed) present.insert(checkpoint.step);
  for (const Listed& checkpoint : aside) {
    if (!present.contains(checkpoint.step)) committed.push_back(checkpoint);
  }
  std::sort(committed.begin(), committed.end(), [](const Listed& a, const Listed& b) {
    return a.step != b.step ? a.step < b.step : a.path < b.path;
  });
  return committed;
}

void verify(const fs::path& checkpoint) {
  std::error_code ignored;
  if (!fs::is_directory(checkpoint, ignored)) fail(code, "there is no checkpoint {}", checkpoint.string());
  const std::vector<std::string> names = verify_manifest(checkpoint);
  for (const char* required : {model_name, optimizer_name, trainer_name}) {
    if (std::find(names.begin(), names.end(), required) == names.end()) {
      fail(code, "{} is not a complete checkpoint: its {} lists no {}", checkpoint.string(), manifest_name,
           required);
    }
  }
}

Search search(const fs::path& save_dir) {
  Search found;
  const std::vector<Listed> all = list(save_dir);
  for (auto checkpoint = all.rbegin(); checkpoint != all.rend(); ++checkpoint) {
    try {
      verify(checkpoint->path);
      found.good = checkpoint->path;
      break;
    } catch (const Error& error) {
      found.bad.push_back({*checkpoint, error.what()});
    }
  }
  return found;
}

std::optional<fs::path> newest_good(const fs::path& save_dir) {
  const Search found = search(save_dir);
  for (const Bad& bad : found.bad)
    log::warn("checkpoint {} cannot be used: {}", bad.checkpoint.path.string(), bad.reason);
  if (!found.good && !found.bad.empty()) throw none_is_good(save_dir, found.bad);
  return found.good;
}

Error none_is_good(const fs::path& save_dir, const std::vector<Bad>& bad) {
  return {code, fmt::format(
                    "{} has {} checkpoint{}, but none that can be used; the newest: {}. To start over, give "
                    "--restart-from-scratch or another --save-dir",
                    save_dir.string(), bad.size(), bad.size() == 1 ? "" : "s", bad.at(0).reason)};
}

void set_aside(const fs::path& save_dir, const Search& found) {
  if (found.bad.empty()) return;
  // First, so that a kill in between leaves links to what is there.
  const fs::path good = found.good ? found.good->filename() : fs::path();
  withdraw_links(save_dir, found.good ? step_of(good.string()).value_or(-1) : -1, good);
  for (const Bad& bad : found.bad) {
    const fs::path to = free_name(save_dir, bad_prefix, directory_name(bad.checkpoint.step));
    try {
      rename_durably(bad.checkpoint.path, to, code);
      log::warn("checkpoint {} cannot be used: {}; it is now {}", bad.checkpoint.path.string(), bad.reason,
                to.string());
    } catch (const Error& problem) {
      log::warn("checkpoint {} cannot be used: {}; it stays where it is: {}", bad.checkpoint.path.string(),
                bad.reason, problem.what());
    }
  }
}

bool has_set_aside(const fs::path& save_dir) {
  std::error_code error;
  fs::directory_iterator entries(save_dir, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error))
    if (entries->path().filename().string().starts_with(bad_prefix)) return true;
  return false;
}

Reader::Reader(const fs::path& path, bool is_verified)
    : path_(is_verified ? path : verified(path)),
      trainer_(read_trainer(path_)),
      model_(path_ / model_name, code) {}

void Reader::read_model(std::span<const io::SafetensorsEntry> wanted) const {
  require_same_tensors((path_ / model_name).string(), model_.tensors(), wanted);
  for (const io::SafetensorsEntry& tensor : wanted) {
    const std::size_t bytes = static_cast<std::size_t>(tensor.shape.elements()) * size_of(tensor.dtype);
    model_.read(*model_.find(tensor.name), {static_cast<std::byte*>(const_cast<void*>(tensor.data)), bytes});
  }
}

void Reader::read_optimizer(std::span<const io::SafetensorsEntry> wanted) const {
  read_optimizer_file(path_ / optimizer_name, wanted);
}

void supersede_after(const fs::path& save_dir, std::int64_t step) {
  const std::vector<Listed> all = list(save_dir);
  const auto beyond = std::find_if(all.begin(), all.end(),
                                   [step](const Listed& checkpoint) { return checkpoint.step > step; });
  if (beyond == all.end()) return;
  // First, so that a kill in between leaves links to what is there.
  withdraw_links(save_dir, step, beyond == all.begin() ? fs::path() : std::prev(beyond)->path.filename());
  for (auto checkpoint = beyond; checkpoint != all.end(); ++checkpoint) {
    const fs::path to = free_name(save_dir, "superseded-", directory_name(checkpoint->step));
    rename_durably(checkpoint->path, to, code);
    log::info("this run goes back to step {}; {} is now {}", step, checkpoint->path.string(), to.string());
  }
}

void remove_leftovers(const fs::path& save_dir) {
  std::error_code error;
  std::vector<fs::path> temporary, aside;
  fs::directory_iterator entries(save_dir, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (is_temporary(name)) temporary.push_back(entries->path());
    if (step_set_aside(name)) aside.push_back(entries->path());
  }
  for (const fs::path& path : temporary) {
    fs::remove_all(path, error);
    if (error) log::warn("cannot remove {}, left by a killed run: {}", path.string(), error.message());
  }
  for (const fs::path& path : aside) {
    const fs::path committed = save_dir / directory_name(*step_set_aside(path.filename().string()));
    try {
      if (fs::exists(committed, error)) {
        discard(path);
      } else {
        rename_durably(path, committed, code);
      }
    } catch (const Error& problem) {
      log::warn("{}", problem.what());
    }
  }
}

}  // namespace motley::checkpoint
