"""Runs balance_bench for every number of ranks, case and policy in turn, prints its lines, and in the end a table.

  python3 tests/bench/balance.py build/release/bin/balance_bench [--ranks 2,4,8] [--steps 120] [--batch-ms 80]
"""

import argparse
import json
import os
import subprocess
import sys

CASES = {
    2: ["equal", "+0.35", "+0.175", "+0.9", "+0.45", "1:8"],
    4: ["equal", "1:1:2:4", "1:8", "gamma", "exp", "slows down"],
    8: ["equal", "1:1:2:4", "1:8", "gamma", "exp", "slows down"],
}
POLICIES = ["sync", "dp", "edp", "auto"]

# What is promised of auto (README.md).
MOST_OVER_IDEAL, MOST_STEPS, MOST_STEPS_AFTER_CHANGE, CHANCE, MOST_COST_WHEN_EQUAL = 1.05, 40, 48, 1.015, 1.01


def run(bench, ranks, case, policy, steps, batch_ms):
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "-n", str(ranks),
               bench, case, policy, str(steps), str(batch_ms)]
    if os.geteuid() == 0:
        command.insert(1, "--allow-run-as-root")
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or len(lines) != 1:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    print(lines[0], flush=True)
    return json.loads(lines[0])


def broken_promises(case, of):
    """Sentences about what `auto` did not keep; `of`: the lines of the policies."""
    auto = of["auto"]
    others = min(of[policy]["step_ms"] for policy in POLICIES if policy != "auto")
    checks = [
        (auto["ratio"] <= MOST_OVER_IDEAL, f"{auto['ratio']} of ideal"),
        (auto.get("settled_steps", 0) <= MOST_STEPS, f"settled after {auto.get('settled_steps')} steps"),
        (auto.get("settled_steps_after_change", 0) <= MOST_STEPS_AFTER_CHANGE,
         f"settled {auto.get('settled_steps_after_change')} steps after the change"),
        (auto["step_ms"] <= CHANCE * others, f"{auto['step_ms']} ms, another policy {others}"),
        (case != "equal" or auto["step_ms"] <= MOST_COST_WHEN_EQUAL * of["sync"]["step_ms"],
         f"{auto['step_ms']} ms on equal ranks, sync {of['sync']['step_ms']}"),
    ]
    return [f"{auto['ranks']} ranks, {case}: {what}" for held, what in checks if not held]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-ms", type=float, default=80)
    parser.add_argument("--cases", default="")
    options = parser.parse_args()
    table = []
    for ranks in map(int, options.ranks.split(",")):
        for case in CASES[ranks]:
            if options.cases and case not in options.cases.split(","):
                continue
            # Chance needs more steps than habit.
            steps = 2 * options.steps if case in ("gamma", "exp") else options.steps
            table.append([run(options.bench, ranks, case, policy, steps, options.batch_ms) for policy in POLICIES])
    print(f"\n| ranks | case | ideal ms | {' | '.join(POLICIES)} | auto settles after |")
    print("|---|---|---|" + "---|" * (len(POLICIES) + 1))
    broken = []
    for row in table:
        of = dict(zip(POLICIES, row))
        settled = [str(of["auto"][key]) for key in ("settled_steps", "settled_steps_after_change") if key in of["auto"]]
        cells = [f"{line['step_ms']:.1f} ({line['ratio']:.3f})" for line in row]
        first = row[0]
        print(f"| {first['ranks']} | {first['case']} | {of['auto']['ideal_ms']:.1f} | {' | '.join(cells)} "
              f"| {', '.join(settled) or '-'} |")
        broken += broken_promises(first["case"], of)
    for sentence in broken:
        print(f"not kept: {sentence}")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
