// What the window reader needs of MPI: a communicator of its own, an open file, and waits that do not burn a
// core.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/row_plan.h"

namespace motley::io {

// Throws Error(communication) naming the call when `result` is not MPI_SUCCESS.
void check_mpi_call(int result, const char* call);
// MPI's text for an error code.
std::string mpi_message(int result);

// A duplicate of a communicator, freed (collectively) at the end unless abandoned. No wait in it outlasts
// `give_up`: when that becomes true they throw Error(communication), and the memory that MPI may still write
// to is kept for ever.
class OwnCommunicator {
 public:
  // Collective. `give_up` must outlive the object.
  OwnCommunicator(MPI_Comm parent, const std::atomic<bool>& give_up);
  ~OwnCommunicator();
  OwnCommunicator(const OwnCommunicator&) = delete;
  OwnCommunicator& operator=(const OwnCommunicator&) = delete;

  MPI_Comm get() const { return comm_; }
  int size() const { return size_; }
  // Ranks that will not answer any more must not be waited for: the communicator is then leaked.
  void abandon() { comm_ = MPI_COMM_NULL; }

  // Collective, in place. `numbers` is null after an error: MPI has it.
  using Numbers = std::unique_ptr<std::vector<int>>;
  void all_reduce(Numbers& numbers, MPI_Op operation) const;

  // Collective. Runs `work`; when it threw on any rank, every rank throws AgreedError with the code and the
  // sentence of the lowest such rank.
  void agree(const std::function<void()>& work) const;

 private:
  template <class T>
  void wait(MPI_Request& request, std::unique_ptr<T>& buffer) const;
  std::string broadcast(const std::string& text, int root) const;

  const std::atomic<bool>& give_up_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
};

// Waits for a non-blocking operation by testing it between naps: MPI's own waits spin, and the cores are
// wanted by the compute. False when `give_up` became true first; the request is then still active and must be
// forgotten.
bool wait_napping(MPI_Request* request, const std::atomic<bool>& give_up);

// A file opened for reading by all ranks of a communicator. Errors are Error(input) with the file's name.
class MpiFile {
 public:
  // Collective. Throws on the ranks where it failed only.
  MpiFile(MPI_Comm comm, const std::string& path);
  ~MpiFile();  // collective, unless abandoned
  MpiFile(const MpiFile&) = delete;
  MpiFile& operator=(const MpiFile&) = delete;

  void abandon() { file_ = MPI_FILE_NULL; }
  std::uint64_t size() const;

  // Collective: `blocks` (offsets counted from `base`) into `out`, end to end, through a file view of them. A
  // rank with nothing to read passes no blocks. What could not be read, because the file has become shorter,
  // is not noticed here: MPI libraries may report the length that was asked for (open-mpi/ompi issue 14015);
  // compare size().
  void read_all(std::uint64_t base, std::span<const Block> blocks, std::byte* out);

  // On this rank alone: the bytes [offset, offset + out.size()). Only before the first read_all, which moves
  // the origin from which MPI counts.
  void read_alone(std::uint64_t offset, std::span<std::byte> out);

 private:
  void check(int result, const char* call) const;

  std::string path_;
  MPI_File file_ = MPI_FILE_NULL;
};

// Whether MPI_File_read_all of this library gives every rank its own bytes. In Open MPI 4.1.0 to 4.1.4 it
// does not: when a block of one rank lies inside a longer block of another, data sieving in OMPIO reads too
// little and bytes are silently missing (issue 10546). There the file view is read by the independent
// MPI_File_read instead, unless sieving is off (the MCA parameter fbtl_posix_read_datasieving as 0, from
// mpirun or the environment).
bool collective_reads_are_right(const std::string& library_version, const char* read_datasieving);

}  // namespace motley::io
