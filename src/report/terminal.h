// Whether a person watches, and how wide their terminal is.
//
// isatty() cannot tell: mpirun gives its processes pseudo-terminals of its own, wherever its own output goes.
// So the process looks at the standard output of the mpirun that started it, on the same host.
#pragma once

namespace motley::report {

// Standard output ends up on a terminal. False under srun and on another host than mpirun's.
bool stdout_is_terminal();

// Columns of that terminal; 80 when it does not say.
int terminal_columns();

}  // namespace motley::report
