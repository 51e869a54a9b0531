#include "io/sample_reader.h"

#include "io/hdf5.h"
#include "io/shard_reader.h"
#include "io/window_reader.h"

namespace motley::io {

void check_reachable(const RowSource& source) {
  open_hdf5(source.shards.empty() ? source.path : source.shards.front().path);
}

std::unique_ptr<SampleReader> make_reader(const RowSource& source, MPI_Comm comm, double timeout_s,
                                          std::uint64_t cache_rows, RowWork work) {
  if (!source.shards.empty())
    return std::make_unique<ShardReader>(source, comm, timeout_s, cache_rows, std::move(work));
  return std::make_unique<WindowReader>(source, comm, timeout_s, std::move(work));
}

}  // namespace motley::io
