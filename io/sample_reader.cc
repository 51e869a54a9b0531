#include "io/sample_reader.h"

#include "io/window_reader.h"

namespace motley::io {

std::unique_ptr<SampleReader> make_reader(const RowSource& source, MPI_Comm comm, double timeout_s,
                                          std::uint64_t cache_rows) {
  static_cast<void>(cache_rows);
  return std::make_unique<WindowReader>(source, comm, timeout_s);
}

}  // namespace motley::io
