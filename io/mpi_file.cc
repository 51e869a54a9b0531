#include "io/mpi_file.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "core/error.h"

namespace motley::io {
namespace {

// A committed indexed type of bytes.
class BlockType {
 public:
  explicit BlockType(std::span<const Block> blocks) {
    std::vector<int> lengths(blocks.size());
    std::vector<MPI_Aint> offsets(blocks.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      MOTLEY_CHECK(blocks[i].bytes <= INT_MAX);
      lengths[i] = static_cast<int>(blocks[i].bytes);
      offsets[i] = static_cast<MPI_Aint>(blocks[i].offset);
    }
    check_mpi_call(MPI_Type_create_hindexed(static_cast<int>(blocks.size()), lengths.data(), offsets.data(),
                                            MPI_BYTE, &type_),
                   "MPI_Type_create_hindexed");
    check_mpi_call(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  ~BlockType() {
    if (type_ != MPI_DATATYPE_NULL) MPI_Type_free(&type_);
  }
  BlockType(const BlockType&) = delete;
  BlockType& operator=(const BlockType&) = delete;
  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

bool this_library_reads_right() {
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(version, &length);
  return collective_reads_are_right(version, std::getenv("OMPI_MCA_fbtl_posix_read_datasieving"));
}

}  // namespace

bool collective_reads_are_right(const std::string& library_version, const char* read_datasieving) {
  const std::string_view sieving = read_datasieving == nullptr ? "" : read_datasieving;
  if (sieving == "0" || sieving == "false") return true;
  const std::string_view affected = "Open MPI v4.1.";
  if (!library_version.starts_with(affected)) return true;
  const std::string patch = library_version.substr(affected.size());
  return std::atoi(patch.c_str()) > 4;
}

std::string mpi_message(int result) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(result, text, &length) != MPI_SUCCESS) return fmt::format("MPI error {}", result);
  return {text, static_cast<std::size_t>(length)};
}

void check_mpi_call(int result, const char* call) {
  if (result != MPI_SUCCESS) fail(ExitCode::communication, "{} failed: {}", call, mpi_message(result));
}

OwnCommunicator::OwnCommunicator(MPI_Comm parent, const std::atomic<bool>& give_up) : give_up_(give_up) {
  auto duplicate = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi_call(MPI_Comm_idup(parent, duplicate.get(), &request), "MPI_Comm_idup");
  wait(request, duplicate);
  comm_ = *duplicate;
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
}

OwnCommunicator::~OwnCommunicator() {
  if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
}

template <class T>
void OwnCommunicator::wait(MPI_Request& request, std::unique_ptr<T>& buffer) const {
  if (wait_napping(&request, give_up_)) return;
  static_cast<void>(buffer.release());
  fail(ExitCode::communication, "the window reader stopped waiting for the other ranks");
}

void OwnCommunicator::all_reduce(Numbers& numbers, MPI_Op operation) const {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi_call(MPI_Iallreduce(MPI_IN_PLACE, numbers->data(), static_cast<int>(numbers->size()), MPI_INT,
                                operation, comm_, &request),
                 "MPI_Iallreduce");
  wait(request, numbers);
}

std::string OwnCommunicator::broadcast(const std::string& text, int root) const {
  const auto send = [&](auto& buffer, int count, MPI_Datatype type) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi_call(MPI_Ibcast(buffer->data(), count, type, root, comm_, &request), "MPI_Ibcast");
    wait(request, buffer);
  };
  auto length = std::make_unique<std::vector<int>>(1, static_cast<int>(text.size()));
  send(length, 1, MPI_INT);
  auto characters = std::make_unique<std::string>(rank_ == root ? text : "");
  characters->resize(static_cast<std::size_t>(length->front()));
  send(characters, length->front(), MPI_CHAR);
  return *characters;
}

void OwnCommunicator::agree(const std::function<void()>& work) const {
  std::optional<Error> mine;
  try {
    work();
  } catch (const Error& error) {
    mine = error;
  } catch (const std::bad_alloc&) {
    mine.emplace(ExitCode::device, "the memory of this machine ran out");
  } catch (const std::exception& error) {
    mine.emplace(ExitCode::internal, error.what());
  }
  // The lowest rank that failed, and whether any did not.
  auto votes = std::make_unique<std::vector<int>>(std::vector<int>{mine ? rank_ : size_, mine ? 1 : 0});
  all_reduce(votes, MPI_MIN);
  const int first_failed = votes->front();
  if (first_failed == size_) return;
  const bool all_failed = votes->back() == 1;

  const bool speaker = rank_ == first_failed;
  const std::string code =
      broadcast(speaker ? std::to_string(static_cast<int>(mine->code())) : "", first_failed);
  std::string sentence = broadcast(speaker ? mine->what() : "", first_failed);
  if (!all_failed) sentence = fmt::format("on rank {}: {}", first_failed, sentence);
  throw AgreedError(static_cast<ExitCode>(std::stoi(code)), sentence);
}

bool wait_napping(MPI_Request* request, const std::atomic<bool>& give_up) {
  using std::chrono::microseconds;
  constexpr int tests_without_nap = 16;
  constexpr microseconds longest_nap(500);
  microseconds nap(20);
  for (int tests = 0;; ++tests) {
    int done = 0;
    check_mpi_call(MPI_Test(request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) return true;
    if (give_up.load()) return false;
    if (tests < tests_without_nap) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(nap);
      nap = std::min(nap * 5 / 4, longest_nap);
    }
  }
}

MpiFile::MpiFile(MPI_Comm comm, const std::string& path) : path_(path) {
  check(MPI_File_open(comm, path.c_str(), MPI_MODE_RDONLY, MPI_INFO_NULL, &file_), "MPI_File_open");
}

MpiFile::~MpiFile() {
  if (file_ != MPI_FILE_NULL) MPI_File_close(&file_);
}

void MpiFile::check(int result, const char* call) const {
  if (result != MPI_SUCCESS)
    fail(ExitCode::input, "cannot read {}: {} failed: {}", path_, call, mpi_message(result));
}

std::uint64_t MpiFile::size() const {
  MPI_Offset bytes = 0;
  check(MPI_File_get_size(file_, &bytes), "MPI_File_get_size");
  return static_cast<std::uint64_t>(bytes);
}

void MpiFile::read_all(std::uint64_t base, std::span<const Block> blocks, std::byte* out) {
  // Every rank makes the same two collective calls whatever it has to read and whatever went wrong before.
  std::optional<BlockType> type;
  std::exception_ptr failure;
  std::uint64_t bytes = 0;
  try {
    if (!blocks.empty()) type.emplace(blocks);
    for (const Block& block : blocks) bytes += block.bytes;
    MOTLEY_CHECK(bytes <= INT_MAX);
  } catch (...) {
    failure = std::current_exception();
    type.reset();
    bytes = 0;
  }
  const MPI_Datatype layout = type ? type->get() : MPI_BYTE;
  const int viewed =
      MPI_File_set_view(file_, static_cast<MPI_Offset>(base), MPI_BYTE, layout, "native", MPI_INFO_NULL);
  MPI_Status status;
  const int count = viewed == MPI_SUCCESS ? static_cast<int>(bytes) : 0;
  static const bool together = this_library_reads_right();
  const int got = together ? MPI_File_read_all(file_, out, count, MPI_BYTE, &status)
                           : MPI_File_read(file_, out, count, MPI_BYTE, &status);
  if (failure) std::rethrow_exception(failure);
  check(viewed, "MPI_File_set_view");
  check(got, together ? "MPI_File_read_all" : "MPI_File_read");
}

void MpiFile::read_alone(std::uint64_t offset, std::span<std::byte> out) {
  constexpr std::size_t step = 64 << 20;
  for (std::size_t done = 0; done < out.size();) {
    const std::size_t bytes = std::min(step, out.size() - done);
    const std::uint64_t at = offset + done;
    MPI_Status status;
    check(MPI_File_read_at(file_, static_cast<MPI_Offset>(at), out.data() + done, static_cast<int>(bytes),
                           MPI_BYTE, &status),
          "MPI_File_read_at");
    int got = 0;
    MPI_Get_count(&status, MPI_BYTE, &got);
    if (got != static_cast<int>(bytes)) {
      fail(ExitCode::input, "{}: ends at byte {}; at least {} were expected", path_,
           at + static_cast<std::size_t>(std::max(got, 0)), offset + out.size());
    }
    done += bytes;
  }
}

}  // namespace motley::io
