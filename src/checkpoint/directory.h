// The checkpoint directory: written, committed, verified, restored (design section 6, law 4).
//
//   SAVE_DIR/step-00001000/   model.safetensors  optimizer.h5  trainer.json  [extra files]  MANIFEST.json
//   SAVE_DIR/latest           symbolic link to the newest, replaced by rename
//   SAVE_DIR/best             symbolic link to the best by the chosen metric, likewise
//
// States of a checkpoint on disk, in order. Only the last two can be loaded:
//   1. absent
//   2. SAVE_DIR/.tmp-step-00001000-PID is there, incomplete; removed by the next start
//   3. all files are written and fsynced, MANIFEST.json (names, sizes, XXH3 hashes) last
//   4. renamed to step-00001000, SAVE_DIR fsynced: the commit. Before it there is none, after it a whole one
//   5. latest (and best) point to it
//
// The links are for people (`best` also for retention): which checkpoint is the newest good one is always
// found by list() and verify(). A checkpoint of the same step is replaced by exchanging the two names in one
// system call. Where the file system cannot do that, the old one is first renamed to .old-step-00001000-PID,
// which counts as step-00001000 while there is none.
//
// Everything here runs on one rank and throws Error(checkpoint) with the path and what was expected.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "io/safetensors.h"

namespace motley::checkpoint {

// What goes into a checkpoint: borrowed host memory.
struct Contents {
  std::vector<io::SafetensorsEntry> model;            // parameters (and buffers) under their public names
  std::map<std::string, std::string> model_metadata;  // into the safetensors header
  std::vector<io::SafetensorsEntry> optimizer;        // named "exp_avg/conv1.weight": groups in optimizer.h5
  Json trainer;                                       // trainer.json, whole
  std::map<std::string, std::string> extra_files;     // config.json, vocab.txt, ... by name
};

// Writes and commits SAVE_DIR/step-<step> and points `latest` at it; returns its path. A committed checkpoint
// of the same step is replaced. When it throws, the earlier checkpoints are as they were and the temporary
// directory is removed. A `latest` that cannot be made is warned of.
std::filesystem::path write(const std::filesystem::path& save_dir, std::int64_t step,
                            const Contents& contents);

// Points SAVE_DIR/best at a committed checkpoint.
void mark_best(const std::filesystem::path& save_dir, const std::filesystem::path& checkpoint);

// Committed checkpoints of save_dir by ascending step: directories named step-<digits>. Not verified.
struct Listed {
  std::int64_t step = 0;
  std::filesystem::path path;
};
std::vector<Listed> list(const std::filesystem::path& save_dir);

// Checks every file of the manifest: present, of the right size, of the right hash, and nothing missing.
// Throws Error(checkpoint) naming the first file that is not as it should be.
void verify(const std::filesystem::path& checkpoint);

// The newest checkpoint of save_dir that verifies, and the newer ones that do not, newest first, each with the reason. Moves
// nothing.
struct Bad {
  Listed checkpoint;
  std::string reason;
};
struct Search {
  std::optional<std::filesystem::path> good;
  std::vector<Bad> bad;
};
Search search(const std::filesystem::path& save_dir);

// The same for a run that reads only: bad ones are warned of. nullopt when there is no checkpoint at all; Error(checkpoint)
// when there are some and all are bad.
std::optional<std::filesystem::path> newest_good(const std::filesystem::path& save_dir);
// The error of a search that found bad ones only.
Error none_is_good(const std::filesystem::path& save_dir, const std::vector<Bad>& bad);

// For a run that goes on without them: renames bad checkpoints to bad-step-00001000 (bad-2-..., when that is taken), so that
// people find them and no later start looks at them again. Each is said in a warning. Links as in supersede_after().
void set_aside(const std::filesystem::path& save_dir, const Search& found);
// Whether there is one under such a name.
bool has_set_aside(const std::filesystem::path& save_dir);

// Opens a verified checkpoint for reading.
class Reader {
 public:
  // `path` is a checkpoint directory or a link to one; verified first, unless search() has just done so.
  explicit Reader(const std::filesystem::path& path, bool is_verified = false);

  const std::filesystem::path& path() const { return path_; }
  const Json& trainer() const { return trainer_; }
  const io::SafetensorsFile& model() const { return model_; }
  // Reads float32 tensors by name and checks their shapes; `wanted[i].data` is where they go (it is written
  // to). All missing tensors, unknown ones and wrong shapes are listed in one sentence.
  void read_model(std::span<const io::SafetensorsEntry> wanted) const;
  void read_optimizer(std::span<const io::SafetensorsEntry> wanted) const;

 private:
  std::filesystem::path path_;
  Json trainer_;
  io::SafetensorsFile model_;
};

// For a run that goes back to an older checkpoint: renames the checkpoints beyond `step` in save_dir to
// superseded-step-00001000 (superseded-2-..., when that is taken), so that neither newest_good() nor
// retention takes what was abandoned for the newest. Said in a message; no checkpoint is removed. A `latest`
// that pointed to one of them points to the newest of the others, if there is one; such a `best` is removed.
void supersede_after(const std::filesystem::path& save_dir, std::int64_t step);

// Removes what killed processes left in save_dir under .tmp- names, and gives a checkpoint that was set aside
// its name back. Called when a run starts; what cannot be removed is warned of.
void remove_leftovers(const std::filesystem::path& save_dir);

}  // namespace motley::checkpoint
