// When a run stops by itself before its end, so that it has saved when its time is up.
#pragma once

#include <string>

namespace motley::train {

struct StopTimes {
  double stop_after_s = 0;           // --stop-after, since the start; 0: none
  double checkpoint_deadline_s = 0;  // --checkpoint-deadline: from a signal, or --stop-after, to the end
  double job_ends_s = 0;             // what the batch system says, since the start; 0: nothing
};

// Pure functions of numbers of seconds since the start.
class StopClock {
 public:
  explicit StopClock(const StopTimes& times) : times_(times) {}

  // What the newest checkpoint and the newest step took.
  void saved_in(double seconds) { save_s_ = seconds; }
  void stepped_in(double seconds) { step_s_ = seconds; }

  // Whether a run that is asked at `now_s`, between two steps, shall save and stop: another step and a checkpoint would
  // come too late. Half as long again is left for either.
  bool time_is_up(double now_s) const { return ends_s() > 0 && now_s >= ends_s() - needed_s(); }
  // Before that the process may be killed; 0: nobody knows.
  double ends_s() const;
  // Whether a checkpoint takes longer than a signal leaves.
  bool is_too_slow() const { return save_s_ + step_s_ > times_.checkpoint_deadline_s; }
  double save_s() const { return save_s_; }

 private:
  double needed_s() const;

  StopTimes times_;
  double save_s_ = 0, step_s_ = 0;
};

// Seconds from now to the end of the job as Slurm tells it to a job (SLURM_JOB_END_TIME, in seconds since 1970); 0 when it
// does not, or when that is past.
double seconds_to_job_end();

}  // namespace motley::train
