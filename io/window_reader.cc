#include "io/window_reader.h"

#include <memory>
#include <utility>

#include "io/reader_thread.h"

namespace motley::io {

WindowReader::WindowReader(const RowSource& source, MPI_Comm parent, double timeout_s, RowWork work)
    : owner_(std::make_shared<ReaderThread>(source, parent, std::move(work)), timeout_s) {}

}  // namespace motley::io
