#!/usr/bin/env python3
"""Draws the runs of jobs/experiments/dynamic-partition.

    python3 jobs/experiments/draw_dynamic_partition.py DIR

DIR/NETWORK/DELAY/POLICY/seed-N/metrics.jsonl are read. Writes DIR/table.md and DIR/table.json (batch times), and, where
Matplotlib is installed, DIR/NETWORK-DELAY.svg: training loss and accuracy on the test images, over epochs and over hours or
seconds of training (validation not counted); lines are means over seeds, bands reach from the lowest to the highest.
"""
import json
import statistics
import sys
from pathlib import Path

POLICIES = {"sync": "Sync-SGD", "dp": "DP-SGD", "edp": "EDP-SGD", "auto": "Motley, --policy auto"}


def read_run(path):
    """Per epoch: loss, accuracy, seconds since the start. Per step, in the order of lines: (epoch, steps, step_s, ranks)."""
    epochs, steps, before, seconds = {}, [], 0, 0.0
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # the last line of a run that was killed
            continue
        epoch = epochs.setdefault(record["epoch"], {"loss": 0.0, "steps": 0})
        if "valid" in record:
            epoch["accuracy"] = record.get("accuracy")
            continue
        count = record["step"] - before
        before = record["step"]
        seconds += count * record["step_s"]
        epoch["loss"] += count * record["loss"]
        epoch["steps"] += count
        epoch["seconds"] = seconds
        steps.append((record["epoch"], count, record["step_s"], record["ranks"]))
    whole = [epochs[e] for e in sorted(epochs) if epochs[e]["steps"] > 0]
    for epoch in whole:
        epoch["loss"] /= epoch["steps"]
    return {"epochs": whole, "steps": steps}


def mean_of_steps(steps, value):
    total = sum(count for _, count, _, _ in steps)
    return sum(count * value(step_s, ranks) for _, count, step_s, ranks in steps) / total


def batch_times(run):
    """Seconds of a batch once partitions have settled: the first epoch, in which all shares are equal, is left out."""
    first = run["steps"][0][0]
    settled = [step for step in run["steps"] if step[0] > first] or run["steps"]
    ranks = range(len(settled[0][3]))
    return {
        "batch_s": mean_of_steps(settled, lambda step_s, _: step_s),
        "process_s": [mean_of_steps(settled, lambda _, of, r=r: of[r]["compute_s"]) for r in ranks],
        "share": [mean_of_steps(settled, lambda _, of, r=r: of[r]["n"]) for r in ranks],
    }


def table_of(groups):
    rows = []
    for (network, delay), policies in groups.items():
        for policy, runs in policies.items():
            times = [batch_times(run) for run in runs]
            accuracies = [max((e.get("accuracy") or 0.0) for e in run["epochs"]) for run in runs]
            ranks = range(len(times[0]["share"]))
            rows.append({
                "network": network, "delay": delay, "policy": policy, "seeds": len(runs),
                "batch_s": statistics.mean(t["batch_s"] for t in times),
                "process_s": [statistics.mean(t["process_s"][r] for t in times) for r in ranks],
                "share": [statistics.mean(t["share"][r] for t in times) for r in ranks],
                "loss": statistics.mean(run["epochs"][-1]["loss"] for run in runs),
                "accuracy": statistics.mean(accuracies),
                "seconds": statistics.mean(run["epochs"][-1]["seconds"] for run in runs),
            })
        sync = [row["batch_s"] for row in rows if (row["network"], row["delay"], row["policy"]) == (network, delay, "sync")]
        for row in rows:
            if (row["network"], row["delay"]) == (network, delay):
                row["speedup"] = sync[0] / row["batch_s"] if sync else None
    return rows


def markdown(rows):
    lines = ["| network | delay of rank 1 | policy | seeds | batch (ms) | work of each rank (ms) | share of each rank | times sync | "
             "last loss | best accuracy |", "|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        work = " / ".join(f"{1e3 * s:.0f}" for s in row["process_s"])
        share = " / ".join(f"{n:.0f}" for n in row["share"])
        speedup = "" if row["speedup"] is None else f"{row['speedup']:.2f}"
        lines.append(f"| {row['network']} | {row['delay']} | {row['policy']} | {row['seeds']} | {1e3 * row['batch_s']:.0f} | {work} | "
                     f"{share} | {speedup} | {row['loss']:.4f} | {100 * row['accuracy']:.2f} % |")
    return "\n".join(lines) + "\n"


def draw(path, title, policies):
    from matplotlib.figure import Figure

    longest = max(run["epochs"][-1]["seconds"] for runs in policies.values() for run in runs)
    unit, name = (3600.0, "hours") if longest > 7200 else (1.0, "seconds")
    figure = Figure(figsize=(10, 7), layout="constrained")
    axes = figure.subplots(2, 2)
    for policy, runs in policies.items():
        epochs = min(len(run["epochs"]) for run in runs)
        for row, (value, label) in enumerate((("loss", "training loss"), ("accuracy", "top-1 accuracy"))):
            known = [e for e in range(epochs) if all(run["epochs"][e].get(value) is not None for run in runs)]
            curves = [[run["epochs"][e][value] for run in runs] for e in known]
            hours = [statistics.mean(run["epochs"][e]["seconds"] for run in runs) / unit for e in known]
            for column, (x, words) in enumerate((([e + 1 for e in known], "epochs"), (hours, f"{name} of training"))):
                axis = axes[row][column]
                line, = axis.plot(x, [statistics.mean(c) for c in curves], label=POLICIES.get(policy, policy))
                axis.fill_between(x, [min(c) for c in curves], [max(c) for c in curves], color=line.get_color(), alpha=0.2)
                axis.set(xlabel=words, ylabel=label)
    axes[0][0].legend()
    figure.suptitle(title)
    figure.savefig(path)


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    top = Path(sys.argv[1])
    groups = {}
    for path in sorted(top.glob("*/*/*/seed-*/metrics.jsonl")):
        network, delay, policy = path.relative_to(top).parts[:3]
        run = read_run(path)
        if run["steps"]:
            groups.setdefault((network, delay), {}).setdefault(policy, []).append(run)
    if not groups:
        print(f"draw_dynamic_partition.py: {top} has no runs; expected NETWORK/DELAY/POLICY/seed-N/metrics.jsonl below it",
              file=sys.stderr)
        return 3
    groups = {key: {p: policies[p] for p in sorted(policies, key=list(POLICIES).index)} for key, policies in groups.items()}
    rows = table_of(groups)
    (top / "table.json").write_text(json.dumps(rows, indent=1) + "\n")
    (top / "table.md").write_text(markdown(rows))
    print(markdown(rows), end="")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("no figures: Matplotlib is not installed (Debian: python3-matplotlib)", file=sys.stderr)
        return 0
    for (network, delay), policies in groups.items():
        path = top / f"{network}-{delay}.svg"
        draw(path, f"{network}, rank 1 delayed by {delay} in each batch", policies)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
