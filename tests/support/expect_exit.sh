#!/bin/sh
# expect_exit.sh CODE PATTERN COMMAND...: succeeds when COMMAND ends with exit code CODE and some line of what it prints
# matches the extended regular expression PATTERN.
code=$1
pattern=$2
shift 2
output=$("$@" 2>&1)
got=$?
printf '%s\n' "$output"
if [ "$got" -ne "$code" ]; then
  echo "exit code $got, expected $code"
  exit 1
fi
if ! printf '%s\n' "$output" | grep -Eq -- "$pattern"; then
  echo "no line matches: $pattern"
  exit 1
fi
