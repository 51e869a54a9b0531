#include "io/field_reader.h"

#include <algorithm>
#include <climits>

#include "core/error.h"

namespace motley::io {

FieldReader::FieldReader(const RowSource& source, std::size_t index, MpiFile* mpi_file)
    : path_(source.path),
      field_(source.fields.at(index)),
      row_bytes_(field_.row_bytes()),
      mpi_file_(mpi_file) {
  MOTLEY_CHECK(row_bytes_ > 0 && row_bytes_ <= INT_MAX);
  if (field_.packed) {
    const std::uint64_t end = field_.file_offset + source.rows * row_bytes_, found = mpi_file->size();
    if (found < end) {
      fail(ExitCode::input,
           "{}: data set `{}` ends at byte {}, but the file has {} bytes here: it was cut short, or is not "
           "the same on all machines",
           path_, field_.name, end, found);
    }
  } else {
    hdf5_ = std::make_unique<Hdf5Rows>(source.path, field_, source.rows);
  }
  if (row_bytes_ > tiny_row_bytes || source.rows > held_bytes_limit / row_bytes_) return;
  held_.resize(source.rows * row_bytes_);
  if (field_.packed) {
    mpi_file->read_alone(field_.file_offset, held_);
  } else {
    hdf5_->read_range(0, source.rows, held_.data());
    hdf5_.reset();
  }
}

void FieldReader::read_locally(const SortedRows& wanted, std::byte* out) {
  if (hdf5_ != nullptr) return hdf5_->read(wanted, out);
  for (std::size_t i = 0; i < wanted.rows.size(); ++i) {
    wanted.scatter(i, held_.data() + wanted.rows[i] * row_bytes_, row_bytes_, out);
  }
}

void FieldReader::prepare(const SortedRows& wanted) {
  passes_ = plan_passes(wanted.rows, row_bytes_, gap_bytes, pass_bytes);
  std::uint64_t largest = 0;
  for (const ReadPass& pass : passes_) largest = std::max(largest, pass.bytes);
  if (staging_.size() < largest) staging_.resize(largest);
}

void FieldReader::read_pass(std::size_t pass, const SortedRows& wanted, std::byte* out) {
  if (pass >= passes_.size()) return mpi_file_->read_all(field_.file_offset, {}, nullptr);
  const ReadPass& plan = passes_[pass];
  mpi_file_->read_all(field_.file_offset, plan.blocks, staging_.data());
  for (std::size_t i = 0; i < plan.landing.size(); ++i) {
    wanted.scatter(plan.first_row + i, staging_.data() + plan.landing[i], row_bytes_, out);
  }
}

void FieldReader::check_length(const SortedRows& wanted, std::uint64_t file_bytes) const {
  const auto end_of = [this](std::uint64_t row) { return field_.file_offset + (row + 1) * row_bytes_; };
  if (wanted.rows.empty() || end_of(wanted.rows.back()) <= file_bytes) return;
  const auto cut = std::find_if(wanted.rows.begin(), wanted.rows.end(),
                                [&](std::uint64_t row) { return end_of(row) > file_bytes; });
  fail(ExitCode::input,
       "{} was cut short while it was in use: row {} of `{}` ends at byte {}, and the file now has {} bytes",
       path_, *cut, field_.name, end_of(*cut), file_bytes);
}

}  // namespace motley::io
