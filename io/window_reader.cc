#include "io/window_reader.h"

#include <memory>

#include "io/reader_thread.h"

namespace motley::io {

WindowReader::WindowReader(const RowSource& source, MPI_Comm parent, double timeout_s)
    : owner_(std::make_shared<ReaderThread>(source, parent), timeout_s) {}

}  // namespace motley::io
