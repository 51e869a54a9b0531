// Signals that ask a run to save and stop: SIGTERM, SIGINT, SIGUSR1 and SIGUSR2.
#pragma once

namespace motley {

// From here on these signals are noted instead of ending the process. A second SIGINT ends it at once.
void note_stop_signals();
// The first signal that was noted since; 0: none.
int noted_stop_signal();
// "SIGTERM"; "a signal" for any but these four.
const char* signal_name(int signal);

}  // namespace motley
