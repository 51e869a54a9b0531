// A thread on each rank that tells rank 0 what the rank does, on a communicator of its own and so beside whatever collective is
// stuck, and hears from it whether anything moves anywhere. When nothing has moved on any rank for the timeout, rank 0 says who
// keeps the others waiting and ends the job with code 5. A rank that does not hear from rank 0 takes nothing for moving: its
// own waits then end by themselves (comm/liveness.h), a little later, so that rank 0 gets to speak first.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/liveness.h"

namespace motley::comm {

class Heartbeat final : public StallClock {
 public:
  // `device` is this rank's, for sentences. Made and destroyed by the main thread. Collective. `end` is called on rank 0, from
  // the thread, with the sentence; by itself it is said, and the job ends.
  using End = std::function<void(const std::string& sentence)>;
  Heartbeat(const Communicator& world, const std::string& device, End end = end_job);
  // Takes leave of the others; not for longer than a few seconds.
  ~Heartbeat() override;
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  double stalled_s() const override;
  std::string remark() const override;

  static void end_job(const std::string& sentence);

 private:
  void run();
  void lead();
  void follow();
  bool pause();  // false: it is time to stop
  void moved();

  Communicator world_;
  std::vector<std::string> names_;  // of all ranks
  End end_;
  double interval_s_, silence_s_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  double moved_s_;  // when something moved, as far as this rank knows
  double heard_s_;  // when rank 0 was last heard of
  std::thread thread_;
};

}  // namespace motley::comm
