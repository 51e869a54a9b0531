# What the tests of the shell commands share: a machine made of stubs, and checks. Sourced by *_test.
#
# A test is a function whose name says what must hold. It runs with PATH leading to nothing but stubs and a few harmless
# tools, so that it sees a machine with exactly what the test gave it, whatever this machine has.
# shellcheck shell=bash

# shellcheck disable=SC2034  # read by the tests
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
fake=$(mktemp -d)
trap 'rm -rf "$fake"' EXIT
mkdir "$fake/bin"
for tool in awk bash basename cat cp cut date dirname env flock grep head ln ls mkdir mktemp nproc readlink rm sed seq sort stat \
  tail tee touch tr wc; do
  ln -s "$(command -v "$tool")" "$fake/bin/$tool"
done

# stub NAME <<<SCRIPT: a program of that name, in bash; FAKE in it is the folder of this machine.
stub() {
  {
    printf '#!%s/bin/bash\nFAKE=%q\n' "$fake" "$fake"
    cat
  } >"$fake/bin/$1"
  chmod +x "$fake/bin/$1"
}

unstub() { rm -f "${@/#/$fake/bin/}"; }

# run COMMAND...: on the stub machine; leaves `output` (both streams) and `status`.
run() {
  set +e
  output=$(env -i PATH="$fake/bin" HOME="$fake" TMPDIR="$fake" "${machine_environment[@]}" "$@" 2>&1 </dev/null)
  status=$?
  set -e
}
machine_environment=()

failed() {
  printf 'FAILED: %s\n--- exit code %s, output:\n%s\n---\n' "$*" "${status-none}" "${output-}" >&2
  exit 1
}

expect_status() { [[ $status == "$1" ]] || failed "exit code $1 was expected"; }
expect_output() { grep -q -E -e "$1" <<<"$output" || failed "no line matches: $1"; }
expect_no_output() { ! grep -q -E -e "$1" <<<"$output" || failed "a line matches: $1"; }
expect_equal() { [[ $1 == "$2" ]] || failed "expected: $2 -- got: $1"; }

# Runs the test named on the command line.
run_test() {
  declare -F "$1" >/dev/null || {
    printf 'there is no test %s\n' "$1" >&2
    exit 1
  }
  "$1"
  printf 'ok %s\n' "$1"
}
