#include "io/shard_reader.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <memory>
#include <tuple>
#include <unordered_map>

#include "core/error.h"
#include "io/bert_shard_file.h"

namespace motley::io {
namespace {

// The least recently used of these is closed when another is needed.
constexpr std::size_t open_files_limit = 32;

// A pool of N rows ends with the block that makes it N or more.
std::uint64_t largest_block(const RowSource& source) {
  std::uint64_t largest = 0;
  for (const Shard& shard : source.shards) largest = std::max(largest, shard.block_rows);
  return largest;
}

class ShardWorker final : public ReadWorker {
 public:
  ShardWorker(const RowSource& source, MPI_Comm comm, std::uint64_t cache_rows, RowWork work)
      : ReadWorker(source, comm, std::move(work)),
        cache_bytes_limit_((cache_rows + largest_block(source)) * source.bert.value().row_bytes()) {}

 private:
  // A block of a shard; ordered as the rows are.
  struct BlockId {
    std::size_t shard = 0;
    std::uint64_t index = 0;
    auto operator<=>(const BlockId&) const = default;
  };
  struct Block {
    BlockId id;
    std::vector<std::byte> records;
  };
  struct OpenFile {
    std::size_t shard;
    std::unique_ptr<BertShardFile> file;
  };
  // A wanted row: where it is, and its place in the window.
  struct Wanted {
    BlockId block;
    std::uint64_t row_in_block;
    std::size_t place;
  };
  using Blocks = std::list<Block>;  // the most recently used first

  void open() override;
  void read(Job& job) noexcept override;
  void shut_down() noexcept override;
  void fill(const std::vector<std::uint64_t>& asked, Window& window);
  std::vector<Wanted> locate(const std::vector<std::uint64_t>& asked) const;
  Blocks::iterator find(const BlockId& id);
  const Block& get(const BlockId& id);
  const Block& decode(const BlockId& id);
  BertShardFile& open_shard(std::size_t shard);
  void make_room(std::size_t bytes);

  std::uint64_t cache_bytes_limit_, cached_bytes_ = 0;
  std::vector<std::uint64_t> first_row_;  // of each shard; one more at the end
  Blocks blocks_;
  std::vector<std::unordered_map<std::uint64_t, Blocks::iterator>> known_;  // by shard: block index -> block
  std::list<OpenFile> files_;                                               // the most recently used first
};

void ShardWorker::open() {
  first_row_.assign(1, 0);
  for (const Shard& shard : source_.shards) first_row_.push_back(first_row_.back() + shard.rows);
  MOTLEY_CHECK(first_row_.back() == source_.rows && source_.fields.size() == 1);
  known_.resize(source_.shards.size());
}

void ShardWorker::read(Job& job) noexcept {
  try {
    set_doing("decoding shards");
    check_rows(job.rows);
    fill(job.rows, job.result.window);
  } catch (...) {
    note_failure(job.result);
  }
}

void ShardWorker::shut_down() noexcept {
  set_doing("closing the shards");
  files_.clear();
  blocks_.clear();
}

std::vector<ShardWorker::Wanted> ShardWorker::locate(const std::vector<std::uint64_t>& asked) const {
  std::vector<Wanted> wanted(asked.size());
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const auto after = std::upper_bound(first_row_.begin(), first_row_.end(), asked[i]);
    const auto shard = static_cast<std::size_t>(after - first_row_.begin()) - 1;
    const std::uint64_t row = asked[i] - first_row_[shard], block_rows = source_.shards[shard].block_rows;
    wanted[i] = {{shard, row / block_rows}, row % block_rows, i};
  }
  return wanted;
}

void ShardWorker::fill(const std::vector<std::uint64_t>& asked, Window& window) {
  const std::size_t row_bytes = source_.bert->row_bytes();
  window.rows = asked.size();
  std::vector<std::byte>& out = window.fields.emplace_back(asked.size() * row_bytes);
  std::vector<Wanted> wanted = locate(asked);
  std::sort(wanted.begin(), wanted.end(), [](const Wanted& a, const Wanted& b) {
    return std::tie(a.block, a.place) < std::tie(b.block, b.place);
  });
  // What is there already comes first: decoding the rest may push it out.
  for (const bool there : {true, false}) {
    for (auto begin = wanted.begin(); begin != wanted.end();) {
      const auto end =
          std::find_if(begin, wanted.end(), [&](const Wanted& one) { return one.block != begin->block; });
      const bool copied = begin->place == asked.size();
      if (!copied && (!there || find(begin->block) != blocks_.end())) {
        const Block& block = get(begin->block);
        for (auto one = begin; one != end; ++one) {
          std::memcpy(out.data() + one->place * row_bytes,
                      block.records.data() + one->row_in_block * row_bytes, row_bytes);
        }
        begin->place = asked.size();
      }
      begin = end;
    }
  }
}

ShardWorker::Blocks::iterator ShardWorker::find(const BlockId& id) {
  const auto found = known_[id.shard].find(id.index);
  return found == known_[id.shard].end() ? blocks_.end() : found->second;
}

const ShardWorker::Block& ShardWorker::get(const BlockId& id) {
  const auto found = find(id);
  if (found == blocks_.end()) return decode(id);
  blocks_.splice(blocks_.begin(), blocks_, found);
  return *found;
}

const ShardWorker::Block& ShardWorker::decode(const BlockId& id) {
  const Shard& shard = source_.shards[id.shard];
  const std::uint64_t first = id.index * shard.block_rows,
                      count = std::min(shard.block_rows, shard.rows - first);
  const std::size_t bytes = count * source_.bert->row_bytes();
  make_room(bytes);
  Blocks fresh;
  fresh.push_back({id, std::vector<std::byte>(bytes)});
  open_shard(id.shard).decode(first, count, fresh.front().records.data());
  known_[id.shard][id.index] = fresh.begin();
  blocks_.splice(blocks_.begin(), fresh);
  cached_bytes_ += bytes;
  return blocks_.front();
}

void ShardWorker::make_room(std::size_t bytes) {
  while (!blocks_.empty() && cached_bytes_ + bytes > cache_bytes_limit_) {
    const Block& oldest = blocks_.back();
    cached_bytes_ -= oldest.records.size();
    known_[oldest.id.shard].erase(oldest.id.index);
    blocks_.pop_back();
  }
}

BertShardFile& ShardWorker::open_shard(std::size_t shard) {
  const auto found =
      std::find_if(files_.begin(), files_.end(), [&](const OpenFile& open) { return open.shard == shard; });
  if (found != files_.end()) {
    files_.splice(files_.begin(), files_, found);
    return *files_.front().file;
  }
  while (files_.size() >= open_files_limit) files_.pop_back();
  const Shard& described = source_.shards[shard];
  files_.push_front({shard, std::make_unique<BertShardFile>(described.path, described.rows, *source_.bert,
                                                            source_.limits)});
  return *files_.front().file;
}

}  // namespace

ShardReader::ShardReader(const RowSource& source, MPI_Comm comm, double timeout_s, std::uint64_t cache_rows,
                         RowWork work)
    : owner_(std::make_shared<ShardWorker>(source, comm, cache_rows, std::move(work)), timeout_s) {}

}  // namespace motley::io
