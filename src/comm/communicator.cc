#include "comm/communicator.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "comm/backoff.h"
#include "comm/liveness.h"
#include "comm/mpi.h"

namespace motley::comm {
namespace {

constexpr int barrier_tag = 1;

// Memory that MPI reads or writes. Once the communicator is broken it is never freed: the call that was late
// may still be under way.
template <class T>
class Staging {
 public:
  Staging(const bool& broken, std::vector<T> values)
      : broken_(broken), values_(std::make_unique<std::vector<T>>(std::move(values))) {}
  ~Staging() {
    if (broken_) static_cast<void>(values_.release());
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  T* data() { return values_->data(); }
  T& operator[](std::size_t i) { return (*values_)[i]; }
  std::vector<T>& vector() { return *values_; }

 private:
  const bool& broken_;
  std::unique_ptr<std::vector<T>> values_;
};

// "rank 3 has", "ranks 3 and 5 have", "ranks 3, 5, 7 and 12 more have".
std::string name_ranks(std::span<const int> ranks) {
  constexpr std::size_t most = 8;
  if (ranks.size() == 1) return fmt::format("rank {} has", ranks[0]);
  const std::size_t named = ranks.size() > most ? most : ranks.size() - 1;
  std::string text = "ranks ";
  for (std::size_t i = 0; i < named; ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  if (ranks.size() > most) return text + fmt::format(" and {} more have", ranks.size() - most);
  return text + fmt::format(" and {} have", ranks.back());
}

std::string host_name() {
  char name[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  MOTLEY_MPI(MPI_Get_processor_name(name, &length));
  return {name, static_cast<std::size_t>(length)};
}

}  // namespace

Communicator::Communicator(MPI_Comm parent, double timeout_s, std::size_t message_bytes)
    : timeout_s_(timeout_s), message_bytes_(message_bytes), host_(host_name()) {
  MOTLEY_CHECK(message_bytes >= 2 * sizeof(std::uint64_t) && message_bytes <= max_message_bytes);
  MOTLEY_MPI(MPI_Comm_rank(parent, &rank_));
  MOTLEY_MPI(MPI_Comm_size(parent, &size_));
  spoken_rank_ = rank_;
  Staging<MPI_Comm> duplicate(broken_, {MPI_COMM_NULL});
  MPI_Request request = MPI_REQUEST_NULL;
  MOTLEY_MPI(MPI_Comm_idup(parent, duplicate.data(), &request));
  wait(request, "a new communicator");
  handle_ = duplicate[0];
  MOTLEY_MPI(MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN));
}

Communicator::~Communicator() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!broken_ && !finalized) MPI_Comm_free(&handle_);
}

Error Communicator::late(const char* what, std::span<const int> missing) const {
  abandon();
  std::string sentence =
      fmt::format("rank {} (host {}) waited {:g} s for {}", spoken_rank_, host_, timeout_s_, what);
  if (!missing.empty()) sentence += fmt::format(": {} not arrived", name_ranks(missing));
  sentence += stall_remark();
  return {ExitCode::communication, sentence};
}

void Communicator::wait(MPI_Request& request, const char* what) const {
  const WaitMark mark(what);
  Backoff backoff;
  for (;;) {
    int done = 0;
    MOTLEY_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done) return;
    if (deadline_passed(backoff.waited_s(), timeout_s_)) throw late(what);
    backoff.pause();
  }
}

// Waits for one request per rank (MPI_REQUEST_NULL for none); the error names the ranks whose request is
// left.
void Communicator::wait_each(std::span<MPI_Request> by_rank, const char* what) const {
  const int count = static_cast<int>(by_rank.size());
  std::vector<int> finished(by_rank.size());
  const WaitMark mark(what);
  Backoff backoff;
  for (;;) {
    int found = 0;
    MOTLEY_MPI(MPI_Testsome(count, by_rank.data(), &found, finished.data(), MPI_STATUSES_IGNORE));
    if (found == MPI_UNDEFINED) return;  // none is active any more
    if (found > 0) continue;
    if (deadline_passed(backoff.waited_s(), timeout_s_)) break;
    backoff.pause();
  }
  std::vector<int> missing;
  for (int rank = 0; rank < count; ++rank) {
    if (by_rank[static_cast<std::size_t>(rank)] != MPI_REQUEST_NULL) missing.push_back(rank);
  }
  throw late(what, missing);
}

// Rank 0 collects a message from each rank and then releases all: unlike after MPI_Ibarrier it can say who is
// missing.
void Communicator::barrier(const char* what) const {
  if (size_ == 1) return;
  if (rank_ == 0) {
    std::vector<MPI_Request> requests(static_cast<std::size_t>(size_), MPI_REQUEST_NULL);
    for (int rank = 1; rank < size_; ++rank) {
      MOTLEY_MPI(MPI_Irecv(nullptr, 0, MPI_BYTE, rank, barrier_tag, handle_,
                           &requests[static_cast<std::size_t>(rank)]));
    }
    wait_each(requests, what);
  } else {
    MPI_Request request = MPI_REQUEST_NULL;
    MOTLEY_MPI(MPI_Isend(nullptr, 0, MPI_BYTE, 0, barrier_tag, handle_, &request));
    wait(request, what);
  }
  MPI_Request release = MPI_REQUEST_NULL;
  MOTLEY_MPI(MPI_Ibarrier(handle_, &release));
  wait(release, what);
}

void Communicator::broadcast(void* data, std::size_t bytes, int root, const char* what) const {
  MOTLEY_CHECK(root >= 0 && root < size_);
  if (size_ == 1) return;
  for (std::size_t first = 0; first < bytes; first += message_bytes_) {
    const int count = static_cast<int>(std::min(message_bytes_, bytes - first));
    MPI_Request request = MPI_REQUEST_NULL;
    MOTLEY_MPI(MPI_Ibcast(static_cast<char*>(data) + first, count, MPI_BYTE, root, handle_, &request));
    wait(request, what);
  }
}

double Communicator::broadcast(double value, int root, const char* what) const {
  Staging<double> staged(broken_, {value});
  broadcast(staged.data(), sizeof(double), root, what);
  return staged[0];
}

std::string Communicator::broadcast(std::string text, int root, const char* what) const {
  MOTLEY_CHECK(root >= 0 && root < size_);
  if (size_ == 1) return text;
  Staging<std::uint64_t> length(broken_, {text.size()});
  broadcast(length.data(), sizeof(std::uint64_t), root, what);
  Staging<char> characters(broken_, std::vector<char>(length[0]));
  if (rank_ == root) std::copy(text.begin(), text.end(), characters.data());
  broadcast(characters.data(), length[0], root, what);
  return {characters.data(), length[0]};
}

void Communicator::all_reduce(std::span<double> values, MPI_Op operation, const char* what) const {
  if (size_ == 1) return;
  Staging<double> staged(broken_, std::vector<double>(values.begin(), values.end()));
  const std::size_t most = message_bytes_ / sizeof(double);
  for (std::size_t first = 0; first < values.size(); first += most) {
    const int count = static_cast<int>(std::min(most, values.size() - first));
    MPI_Request request = MPI_REQUEST_NULL;
    MOTLEY_MPI(
        MPI_Iallreduce(MPI_IN_PLACE, staged.data() + first, count, MPI_DOUBLE, operation, handle_, &request));
    wait(request, what);
  }
  std::copy_n(staged.data(), values.size(), values.begin());
}

void Communicator::all_reduce_sum(std::span<double> values, const char* what) const {
  all_reduce(values, MPI_SUM, what);
}

void Communicator::all_reduce_max(std::span<double> values, const char* what) const {
  all_reduce(values, MPI_MAX, what);
}

std::vector<double> Communicator::all_gather(std::span<const double> values, const char* what) const {
  if (size_ == 1) return {values.begin(), values.end()};
  const auto ranks = static_cast<std::size_t>(size_);
  const std::size_t most = std::max<std::size_t>(1, message_bytes_ / sizeof(double) / ranks);
  std::vector<double> gathered(ranks * values.size());
  for (std::size_t first = 0; first < values.size(); first += most) {
    const std::size_t count = std::min(most, values.size() - first);
    const auto part = values.subspan(first, count);
    Staging<double> mine(broken_, std::vector<double>(part.begin(), part.end())),
        all(broken_, std::vector<double>(ranks * count));
    MPI_Request request = MPI_REQUEST_NULL;
    MOTLEY_MPI(MPI_Iallgather(mine.data(), static_cast<int>(count), MPI_DOUBLE, all.data(),
                              static_cast<int>(count), MPI_DOUBLE, handle_, &request));
    wait(request, what);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::copy_n(all.data() + rank * count, count, gathered.data() + rank * values.size() + first);
    }
  }
  return gathered;
}

std::vector<double> Communicator::gather(std::span<const double> values, int root, const char* what) const {
  MOTLEY_CHECK(root >= 0 && root < size_);
  if (size_ == 1) return {values.begin(), values.end()};
  const std::size_t on_root = rank_ == root ? static_cast<std::size_t>(size_) : 0;
  const std::size_t most =
      std::max<std::size_t>(1, message_bytes_ / sizeof(double) / static_cast<std::size_t>(size_));
  std::vector<double> gathered(on_root * values.size());
  for (std::size_t first = 0; first < values.size(); first += most) {
    const std::size_t count = std::min(most, values.size() - first);
    const auto part = values.subspan(first, count);
    Staging<double> mine(broken_, std::vector<double>(part.begin(), part.end())),
        all(broken_, std::vector<double>(on_root * count));
    MPI_Request request = MPI_REQUEST_NULL;
    MOTLEY_MPI(MPI_Igather(mine.data(), static_cast<int>(count), MPI_DOUBLE, all.data(),
                           static_cast<int>(count), MPI_DOUBLE, root, handle_, &request));
    wait(request, what);
    for (std::size_t rank = 0; rank < on_root; ++rank) {
      std::copy_n(all.data() + rank * count, count, gathered.data() + rank * values.size() + first);
    }
  }
  return gathered;
}

std::vector<std::uint64_t> Communicator::scatter(const std::vector<std::vector<std::uint64_t>>& parts,
                                                 int root, const char* what) const {
  MOTLEY_CHECK(root >= 0 && root < size_);
  const auto ranks = static_cast<std::size_t>(size_);
  if (rank_ == root) MOTLEY_CHECK(parts.size() == ranks);
  if (size_ == 1) return parts[0];

  // A round moves at most `most` numbers to each rank; one round is enough but for parts of many gigabytes.
  const std::size_t most = std::max<std::size_t>(1, message_bytes_ / sizeof(std::uint64_t) / ranks);
  const std::size_t on_root = rank_ == root ? ranks : 0;
  Staging<std::uint64_t> sizes(broken_, std::vector<std::uint64_t>(2 * on_root)), mine(broken_, {0, 0});
  if (rank_ == root) {
    std::size_t longest = 0;
    for (const auto& part : parts) longest = std::max(longest, part.size());
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      sizes[2 * rank] = parts[rank].size();
      sizes[2 * rank + 1] = (longest + most - 1) / most;
    }
  }
  MPI_Request request = MPI_REQUEST_NULL;
  MOTLEY_MPI(
      MPI_Iscatter(sizes.data(), 2, MPI_UINT64_T, mine.data(), 2, MPI_UINT64_T, root, handle_, &request));
  wait(request, what);

  Staging<std::uint64_t> received(broken_, std::vector<std::uint64_t>(mine[0]));
  const std::uint64_t rounds = mine[1];
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto begin_of = [&](std::size_t size) { return std::min(size, round * most); };
    const auto count_of = [&](std::size_t size) { return std::min(most, size - begin_of(size)); };
    Staging<std::uint64_t> sent(broken_, {});
    Staging<int> counts(broken_, std::vector<int>(on_root)), offsets(broken_, std::vector<int>(on_root));
    if (rank_ == root) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const auto& part = parts[rank];
        const auto first = part.begin() + static_cast<std::ptrdiff_t>(begin_of(part.size()));
        counts[rank] = static_cast<int>(count_of(part.size()));
        offsets[rank] = static_cast<int>(sent.vector().size());
        sent.vector().insert(sent.vector().end(), first, first + counts[rank]);
      }
    }
    MOTLEY_MPI(MPI_Iscatterv(sent.data(), counts.data(), offsets.data(), MPI_UINT64_T,
                             received.data() + begin_of(mine[0]), static_cast<int>(count_of(mine[0])),
                             MPI_UINT64_T, root, handle_, &request));
    wait(request, what);
  }
  return std::move(received.vector());
}

}  // namespace motley::comm
