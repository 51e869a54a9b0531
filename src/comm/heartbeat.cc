#include "comm/heartbeat.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "comm/mpi.h"
#include "comm/roll.h"
#include "core/clock.h"
#include "core/log.h"

namespace motley::comm {
namespace {

constexpr int state_tag = 1, answer_tag = 2;
constexpr double leave_s = 5;

// As it travels.
struct StateMessage {
  std::int64_t step = 0;
  std::uint64_t progress = 0;
  double for_s = 0;
  std::int32_t waiting = 0, leaves = 0;
  std::array<char, 80> doing{};
};
struct Answer {
  std::uint64_t movement = 0;
  std::int32_t leaves = 0;
};

StateMessage own_message(bool leaves) {
  const OwnState state = own_state();
  StateMessage message{
      state.step, state.progress, now_s() - state.since_s, state.waiting ? 1 : 0, leaves ? 1 : 0, {}};
  std::strncpy(message.doing.data(), state.doing.c_str(), message.doing.size() - 1);
  return message;
}

RankState to_state(const StateMessage& message) {
  return {message.step, message.progress, message.waiting != 0, message.for_s, message.doing.data()};
}

bool is_done(MPI_Request& request) {
  if (request == MPI_REQUEST_NULL) return true;
  int done = 0;
  MOTLEY_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
  return done != 0;
}

// One rank's messages to another and back. MPI may write to these as long as the communicator lives.
template <class Out, class In>
struct Line {
  Out out;
  In in;
  MPI_Request sending = MPI_REQUEST_NULL, receiving = MPI_REQUEST_NULL;
  bool left_by_us = false, left_by_them = false;

  void send(const Out& message, int rank, int tag, MPI_Comm comm) {
    out = message;
    MOTLEY_MPI(MPI_Isend(&out, sizeof out, MPI_BYTE, rank, tag, comm, &sending));
  }
  void receive(int rank, int tag, MPI_Comm comm) {
    MOTLEY_MPI(MPI_Irecv(&in, sizeof in, MPI_BYTE, rank, tag, comm, &receiving));
  }
};

}  // namespace

Heartbeat::Heartbeat(const Communicator& world, const std::string& device, End end)
    : world_(world.handle(), world.timeout_s()),
      end_(std::move(end)),
      interval_s_(std::clamp(world.timeout_s() / 20, 0.02, 1.0)),
      silence_s_(std::max(10 * interval_s_, 1.0)),
      moved_s_(now_s()),
      heard_s_(moved_s_) {
  world_.speak_as(world.spoken_rank());
  const std::string name = fmt::format("rank {} (host {}, {})", world.spoken_rank(), world.host(), device);
  for (int rank = 0; rank < world.size(); ++rank)
    names_.push_back(world_.broadcast(name, rank, "the names of the ranks"));
  use_stall_clock(this);
  if (world_.size() > 1) thread_ = std::thread([this] { run(); });
}

Heartbeat::~Heartbeat() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  use_stall_clock(nullptr);
}

double Heartbeat::stalled_s() const {
  const std::lock_guard lock(mutex_);
  return now_s() - moved_s_;
}

std::string Heartbeat::remark() const {
  const std::lock_guard lock(mutex_);
  const double silent_s = now_s() - heard_s_;
  if (world_.rank() == 0 || silent_s < silence_s_) return {};
  return fmt::format("; {} has not been heard of for {:.1f} s", names_[0], silent_s);
}

void Heartbeat::end_job(const std::string& sentence) {
  log::error("{}", sentence);
  abort_job(ExitCode::communication);
}

void Heartbeat::moved() {
  const std::lock_guard lock(mutex_);
  moved_s_ = now_s();
}

bool Heartbeat::pause() {
  std::unique_lock lock(mutex_);
  return !wake_.wait_for(lock, std::chrono::duration<double>(interval_s_), [this] { return stop_; });
}

// A heart that fails stops quietly: waits then end by themselves when nothing is heard any more.
void Heartbeat::run() {
  try {
    world_.rank() == 0 ? lead() : follow();
  } catch (const std::exception& problem) {
    world_.abandon();
    log::warn("the heartbeat stops: {}", problem.what());
  }
}

void Heartbeat::follow() {
  auto line = std::make_unique<Line<StateMessage, Answer>>();
  line->receive(0, answer_tag, world_.handle());
  std::uint64_t movement = 0;
  bool goes_on = true;
  for (double asked_to_leave_s = 0; !(line->left_by_us && line->left_by_them && is_done(line->sending));) {
    if (goes_on) {
      goes_on = pause();
      if (!goes_on) asked_to_leave_s = now_s();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (now_s() - asked_to_leave_s > leave_s) {
        world_.abandon();
        static_cast<void>(line.release());
        return;
      }
    }
    if (!line->left_by_us && is_done(line->sending)) {
      line->send(own_message(!goes_on), 0, state_tag, world_.handle());
      line->left_by_us = !goes_on;
    }
    while (!line->left_by_them && is_done(line->receiving)) {
      {
        const std::lock_guard lock(mutex_);
        heard_s_ = now_s();
      }
      if (line->in.movement != movement) moved();
      movement = line->in.movement;
      line->left_by_them = line->in.leaves != 0;
      if (!line->left_by_them) line->receive(0, answer_tag, world_.handle());
    }
  }
}

void Heartbeat::lead() {
  const auto ranks = static_cast<std::size_t>(world_.size());
  auto lines = std::make_unique<std::vector<Line<Answer, StateMessage>>>(ranks);
  const auto line = [&](std::size_t rank) -> Line<Answer, StateMessage>& { return (*lines)[rank]; };
  for (std::size_t r = 1; r < ranks; ++r) line(r).receive(static_cast<int>(r), state_tag, world_.handle());
  Roll roll(names_, now_s());
  bool goes_on = true, ended = false;
  for (double asked_to_leave_s = 0;;) {
    if (goes_on) {
      goes_on = pause();
      if (!goes_on) asked_to_leave_s = now_s();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    roll.heard(0, to_state(own_message(false)), now_s());
    for (std::size_t r = 1; r < ranks; ++r) {
      while (!line(r).left_by_them && is_done(line(r).receiving)) {
        roll.heard(static_cast<int>(r), to_state(line(r).in), now_s());
        line(r).left_by_them = line(r).in.leaves != 0;
        if (!line(r).left_by_them) line(r).receive(static_cast<int>(r), state_tag, world_.handle());
      }
    }
    bool all_left = true;
    for (std::size_t r = 1; r < ranks; ++r) {
      if (!line(r).left_by_us && is_done(line(r).sending)) {
        // To the end of the other's heartbeat: it wants to hear of movement as long as it beats.
        const bool leaves = !goes_on && line(r).left_by_them;
        line(r).send({roll.movement(), leaves ? 1 : 0}, static_cast<int>(r), answer_tag, world_.handle());
        line(r).left_by_us = leaves;
      }
      all_left = all_left && line(r).left_by_us && is_done(line(r).sending);
    }
    if (all_left) return;
    const double stalled_s = roll.stalled_s(now_s());
    if (stalled_s < interval_s_ * 2) moved();
    if (goes_on && !ended && stalled_s > world_.timeout_s()) {
      ended = true;
      end_(roll.verdict(now_s(), silence_s_));
    }
    if (!goes_on && now_s() - asked_to_leave_s > leave_s) {
      world_.abandon();
      static_cast<void>(lines.release());
      return;
    }
  }
}

}  // namespace motley::comm
