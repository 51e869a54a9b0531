# What the tests of the job scripts share. Sourced by *_test MOTLEY TEST.
# shellcheck shell=bash
# shellcheck disable=SC2034  # read by the tests
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
program=${1:?the program}
test=${2:?the test}
work=$(mktemp -d)

failed() {
  printf 'FAILED: %s\n' "$*" >&2
  cat "$work"/*.log >&2 2>/dev/null || true
  exit 1
}

# wait_until SECONDS COMMAND...
wait_until() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || return 1
    sleep 0.2
  done
}

make_data() {
  mkdir -p "$work/data"
  "$program" data synth --samples 600 --height 16 --width 16 --out "$work/data/train.h5" >/dev/null 2>&1
}

newest_step() {
  local link
  link=$(readlink "$work/run/latest") || link=step-0
  printf '%d' "$((10#${link#step-}))"
}
saved_beyond() { (($(newest_step) > $1)); }
log_says() { grep -q -E -e "$2" "$1" 2>/dev/null; }
# The checkpoint can be used: its hashes are looked at, and the model is written elsewhere.
expect_good_checkpoint() {
  "$program" export --save-dir "$work/run" --out "$work/exported" >"$work/export.log" 2>&1 || failed "no checkpoint can be used"
}

run_test() {
  declare -F "$test" >/dev/null || failed "there is no test $test"
  "$test"
  printf 'ok %s\n' "$test"
}
