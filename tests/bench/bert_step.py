#!/usr/bin/env python3
"""Times a training step of BERT-base against Hugging Face's model in PyTorch, in turn, on the same number of threads.

    python3 tests/bench/bert_step.py build/release/bin/bert_step_bench [THREADS ...]

Needs PyTorch and transformers. A step is forward, backward, clipping of the gradient norm and AdamW, with dropout 0.1. The peer is
BertForPreTraining with SDPA attention; "masked" is the same model with its head applied to the masked positions only, as Motley does
(Hugging Face applies it to all). In bfloat16 the faster of autocast and a bfloat16 model is the peer; the latter has no float32 weights.
Prints one line of JSON per case: the medians over the rounds of milliseconds per step on the clock, and ratios (above 1: Motley is
faster); cpu_ratio is the same of processor time, for a machine that is busy. peak_mib is the most memory that the process held.
"""
import json
import os
import resource
import statistics
import subprocess
import sys
import time

CASES = [(8, 128), (2, 512)]
ROUNDS = 3


def peer(threads):
    """Answers the lines that bert_step_bench answers, with one more word: the variant."""
    import torch
    from transformers import BertConfig, BertForPreTraining

    torch.set_num_threads(threads)
    state = {}

    def make(batch, seq, variant):
        torch.manual_seed(1)
        model = BertForPreTraining(BertConfig(attn_implementation="sdpa"))
        if "bf16_model" in variant:
            model = model.bfloat16()
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)
        ids = torch.randint(0, 30522, (batch, seq))
        mask = torch.ones_like(ids)
        masked = batch * (seq * 5 // 32)
        labels = torch.full((batch, seq), -100)
        places = torch.arange(masked) * (batch * seq) // masked
        labels.view(-1)[places] = torch.randint(0, 30522, (masked,))

        def forward():
            if "masked" not in variant:
                return model(ids, mask, torch.zeros_like(ids), labels=labels,
                             next_sentence_label=torch.zeros(batch, dtype=torch.long)).loss
            hidden = model.bert(ids, mask, torch.zeros_like(ids)).last_hidden_state.view(-1, 768)
            scores = model.cls.predictions(hidden[places])
            return torch.nn.functional.cross_entropy(scores.float(), labels.view(-1)[places])

        def step():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in variant):
                loss = forward()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        return step

    for line in sys.stdin:
        batch, seq, _, count, variant = line.split()
        wanted = (batch, seq, variant)
        if state.get("made") != wanted:
            state.clear()
            state.update(made=wanted, step=make(int(batch), int(seq), variant))
        clock, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(count)):
            state["step"]()
        cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
        print(json.dumps({"ms": 1e3 * clock / int(count), "cpu_ms": 1e3 * cpu / int(count),
                          "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}), flush=True)


class Side:
    def __init__(self, command, environment):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def steps(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def bench(threads, program):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive")
    for batch, seq in CASES:
        for precision in ("fp32", "bf16"):
            case = f"{batch} {seq} {precision}"
            variants = {"motley": ""}
            for kind in ("fp32",) if precision == "fp32" else ("bf16_autocast", "bf16_model"):
                variants[kind] = kind
                variants[kind + "_masked"] = kind + "_masked"
            sides = {name: Side([program, str(threads)] if name == "motley" else
                                [sys.executable, __file__, "--peer", str(threads)], environment) for name in variants}
            times, cpu, memory = {name: [] for name in variants}, {name: [] for name in variants}, {}
            for name, side in sides.items():
                side.steps(f"{case} 1 {variants[name]}".strip())
            for _ in range(ROUNDS):
                for name, side in sides.items():
                    answer = side.steps(f"{case} 1 {variants[name]}".strip())
                    times[name].append(answer["ms"])
                    cpu[name].append(answer["cpu_ms"])
                    memory[name] = answer["peak_mib"]
            for side in sides.values():
                side.close()
            ms = {name: round(statistics.median(values), 1) for name, values in times.items()}
            cpu = {name: statistics.median(values) for name, values in cpu.items()}
            whole = [name for name in ms if name != "motley" and "masked" not in name]
            masked = [name for name in ms if "masked" in name]
            print(json.dumps({"bench": "bert-base training step", "threads": threads, "batch": batch, "seq": seq,
                              "precision": precision, "ms": ms, "peak_mib": memory,
                              "ratio": round(min(ms[n] for n in whole) / ms["motley"], 2),
                              "cpu_ratio": round(min(cpu[n] for n in whole) / cpu["motley"], 2),
                              "ratio_masked": round(min(ms[n] for n in masked) / ms["motley"], 2)}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--peer":
        peer(int(sys.argv[2]))
    else:
        for count in [int(t) for t in sys.argv[2:]] or [1, 2]:
            bench(count, sys.argv[1])
