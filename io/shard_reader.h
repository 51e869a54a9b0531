// Fetches the rows of a window out of shards that have to be decoded, one window ahead of the compute, in a
// thread of its own. No rank waits for another here: each decodes what its own rows need.
//
// The wanted rows are grouped by block, and whole blocks are decoded, since a compressed chunk costs the same
// for one of its rows as for all. Decoded blocks are kept until newer ones need their memory.
// train/sample_order.h draws samples from few blocks at a time, so that each block is decoded about once per
// epoch.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "io/read_worker.h"
#include "io/row_source.h"
#include "io/sample_reader.h"

namespace motley::io {

class ShardReader final : public SampleReader {
 public:
  // Local. `comm` says which rank this is. Keeps decoded blocks of up to `cache_rows` rows and one block
  // more.
  ShardReader(const RowSource& source, MPI_Comm comm, double timeout_s = 600,
              std::uint64_t cache_rows = default_cache_rows, RowWork work = {});

  // Errors name the shard, the data set and the row in it.
  Window take(double timeout_s) override { return owner_.take(timeout_s); }

 private:
  void ask(std::vector<std::uint64_t> rows, std::vector<SlotRun> runs) override {
    owner_.request(std::move(rows), std::move(runs));
  }

  ReadOwner owner_;
};

}  // namespace motley::io
