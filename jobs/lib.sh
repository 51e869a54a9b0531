# Functions that the shell commands of this repository share. Sourced, never run. The caller sets `root`, the top of
# the checkout, before it sources this file.
# shellcheck shell=bash

: "${root:?set by the script that sources lib.sh}"
program=$(basename "$(cd "$(dirname "$0")" && pwd)")/${0##*/} # jobs/quickstart, tests/run

say() { printf '%s\n' "$*"; }
warn() { printf '%s: %s\n' "$program" "$*" >&2; }
die() {
  warn "$*"
  exit 1
}

# A path as it is pleasant to read: relative to the checkout where it lies in it.
shown() { printf '%s' "${1#"$root"/}"; }

# Processors this process may use. nproc would believe OMP_NUM_THREADS, which is about something else.
cores() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }

# --- Steps --------------------------------------------------------------------------------------------------
# Every step says in one line what it is about to do; what it prints goes to a log file. When it fails, the step, the
# reason (its last lines) and the log file are named, and the script ends with the step's exit code.

step_count=0  # set by the caller
step_number=0
log_dir=      # set by the caller
last_log=     # of the newest step

# step NAME WORDS COMMAND...: runs COMMAND with its output in $log_dir/N-NAME.log. WORDS complete "[2/5] ...".
step() { run_step quiet "$@"; }

# The same, with the output on the terminal too.
step_shown() { run_step shown "$@"; }

run_step() {
  local how=$1 name=$2 words=$3 status
  shift 3
  step_number=$((step_number + 1))
  last_log=$log_dir/$step_number-$name.log
  say "[$step_number/$step_count] $words"
  mkdir -p "$log_dir"
  # The command runs in a subshell of its own, outside any condition: only there does `set -e` hold in functions.
  set +e
  if [[ $how == quiet ]]; then
    (set -e; "$@") >"$last_log" 2>&1
    status=$?
  else
    (set -e; "$@") 2>&1 | tee "$last_log"
    status=${PIPESTATUS[0]}
  fi
  set -e
  ((status == 0)) || step_failed "$how" "$words" "$status"
}

step_failed() {
  local how=$1 words=$2 status=$3
  {
    printf '\n%s: step %d of %d (%s) failed with exit code %d.\n' \
      "$program" "$step_number" "$step_count" "$words" "$status"
    if [[ $how == quiet ]]; then
      printf 'The last lines it printed:\n\n'
      tail -n "${MOTLEY_LOG_LINES:-30}" "$last_log" | sed 's/^/    /'
      printf '\n'
    fi
    printf 'All of it: %s\n' "$last_log"
  } >&2
  exit "$status"
}

# --- Where things are ---------------------------------------------------------------------------------------

# Makes DIR, or says why it can't be used. The usual reasons: a checkout that belongs to somebody else, or a build
# made by root that is now continued by an ordinary user.
need_writable() {
  local dir=$1 reason
  if ! reason=$(mkdir -p "$dir" 2>&1); then
    die "$dir can't be made (${reason##*: }). Run this in a checkout that belongs to $(id -un):" \
      "git clone $root some/folder/of/yours"
  fi
  [[ -w $dir ]] || die "$(id -un) can't write to $dir, which belongs to $(stat -c %U "$dir")." \
    "Remove it as that user, or run this in a checkout of your own: git clone $root some/folder/of/yours"
}

# The folder that holds the four IDX files of Fashion-MNIST.
fashion_mnist_dir() { printf '%s' "${MOTLEY_FASHION_MNIST:-/usr/share/datasets/fashion-mnist}"; }

# Where WordNet's dictionary files lie.
wordnet_dir() { printf '%s' "${MOTLEY_WORDNET:-/usr/share/wordnet}"; }

# Makes what environment modules, Spack and distributions set up visible to CMake and to the looking in
# install-dependencies.
prepare_environment() {
  local dir
  # Fedora and its relatives keep Open MPI off the PATH until `module load mpi`.
  if ! command -v mpirun >/dev/null && [[ -x /usr/lib64/openmpi/bin/mpirun ]]; then
    export PATH=/usr/lib64/openmpi/bin:$PATH
    export LD_LIBRARY_PATH=/usr/lib64/openmpi/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  fi
  # Modules often set CPATH alone, which the compiler reads and CMake does not.
  while IFS= read -r dir; do
    [[ $dir == */include && -d $dir ]] && add_prefix "${dir%/include}"
  done < <(tr ':' '\n' <<<"${CPATH:-}:${CPLUS_INCLUDE_PATH:-}:${C_INCLUDE_PATH:-}")
  # Names that sites give to the place of HDF5.
  for dir in "${HDF5_HOME:-}" "${EBROOTHDF5:-}" "${HDF5_DIR:-}"; do
    [[ -z ${HDF5_ROOT:-} && -n $dir && -d $dir/include ]] && export HDF5_ROOT=$dir
  done
  # A home directory that can't be written to (or none at all) must not stop the compiler cache, and with it the build.
  [[ -n ${HOME:-} && -w ${HOME:-} ]] || export CCACHE_DISABLE=1
  # mpirun and the compiler need somewhere for temporary files.
  if [[ -z ${TMPDIR:-} && ! -w /tmp ]]; then
    export TMPDIR=$root/build/tmp
    mkdir -p "$TMPDIR"
  fi
}

add_prefix() {
  case ":${CMAKE_PREFIX_PATH:-}:" in
    *":$1:"*) ;;
    *) export CMAKE_PREFIX_PATH=${CMAKE_PREFIX_PATH:+$CMAKE_PREFIX_PATH:}$1 ;;
  esac
}

# --- Building -----------------------------------------------------------------------------------------------

# configured PRESET VARIABLE: the value of a CMake variable in a build folder that was configured; fails without one.
configured() {
  local cache=$root/build/$1/CMakeCache.txt
  [[ -f $cache && -f $root/build/$1/build.ninja ]] || return 1
  sed -n "s/^$2:[A-Z]*=//p" "$cache"
}

# build PRESET TARGET [VARIABLE=VALUE...]: configures when the build folder is new or was configured with another
# value of one of the variables, then builds what is out of date. Two of these at once wait for each other.
build() {
  local preset=$1 target=$2 setting stale=
  shift 2
  need_writable "$root/build/$preset"
  exec 9>"$root/build/.$preset.lock"
  flock 9
  configured "$preset" CMAKE_BUILD_TYPE >/dev/null || stale=yes
  for setting in "$@"; do
    [[ $(configured "$preset" "${setting%%=*}") == "${setting#*=}" ]] || stale=yes
  done
  if [[ -n $stale ]]; then
    (cd "$root" && cmake --preset "$preset" "${@/#/-D}" 9>&-)
  fi
  cmake --build "$root/build/$preset" --target "$target" -j "$(cores)" 9>&-
  exec 9>&-
}

# --- Running ------------------------------------------------------------------------------------------------

# Sets the environment under which several ranks on few cores get along: they yield while they wait, and use one thread
# each. Fills `mpirun_command`.
# shellcheck disable=SC2034  # read by the scripts that source this file
prepare_mpirun() {
  export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
  # Containers rarely allow one process to read another's memory; Open MPI then complains at every message.
  export OMPI_MCA_btl_vader_single_copy_mechanism=none
  if (($(id -u) == 0)); then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  mpirun_command=(mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1)
}
