"""What bert_step.py and image_step.py share: a program of Motley's and PyTorch, each in a process of its own, that take turns.

A suite says what is timed:

    bench             "bert_step": name of the records; checks are "bert_check"
    size              name of the size of a sample in records: "seq", "side"
    cases, checks     by --size: (model, size, precision), the most telling first, and (model, size)
    batch             by --size: samples, or "fit"
    networks          which networks of PyTorch's there may be, the first that can be used counts: {name: can it be used}
    compile           what --compile may be, the default first; "none" does not compile
    extra             (network, compile): with these the first case is timed once more if time is left
    make_step         (torch, network, compile, device, model, batch, size, precision) -> (step, parameters); step() is one
                      training step and returns the loss; parameters is how many there are, or None
"""
import argparse
import importlib.util
import json
import os
import select
import statistics
import subprocess
import sys
import time
import types

ROUNDS = {"full": 3, "quick": 2, "tiny": 1}
SECONDS_PER_ROUND = {"full": 1.0, "quick": 0.3, "tiny": 0.0}


def suite(**what):
    return types.SimpleNamespace(**what)


def installed(module):
    return importlib.util.find_spec(module) is not None


# --- PyTorch -----------------------------------------------------------------------------------------------------------------

def kind_of(torch, precision):
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def autocast(torch, device, precision):
    kind = kind_of(torch, precision)
    return torch.autocast(device, kind or torch.bfloat16, enabled=kind is not None)


def peer(of, device):
    """Answers lines NETWORK COMPILED MODEL BATCH SIZE PRECISION STEPS as the program of Motley's does."""
    import torch

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda,
                      "device": torch.cuda.get_device_name(0) if device == "cuda" else "cpu"}), flush=True)
    made, step, parameters = None, None, None
    for line in sys.stdin:
        words = line.split()
        try:
            if words == ["drop"] or words[:-1] != made:
                made, step = None, None
                if device == "cuda":
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                if words == ["drop"]:
                    print(json.dumps({"dropped": True}), flush=True)
                    continue
                network, compiled, model, batch, size, precision = words[:-1]
                torch._dynamo.reset()
                torch.manual_seed(1)
                step, parameters = of.make_step(torch, network, compiled, device, model, int(batch), int(size), precision)
                for _ in range(3):  # compiles, and lets the allocator settle
                    step()
                wait()
                made = words[:-1]
            steps = int(words[-1])
            start = time.perf_counter()
            for _ in range(steps):
                loss = step()
            wait()
            answer = {"ms": 1e3 * (time.perf_counter() - start) / steps, "loss": float(loss.detach()), "parameters": parameters}
            if device == "cuda":
                answer["memory_mib"] = torch.cuda.max_memory_allocated() >> 20
        except Exception as error:  # whatever PyTorch throws is an answer, and the next case gets its own chance
            made, step = None, None
            answer = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"}
        print(json.dumps(answer), flush=True)


# --- Both in turn ------------------------------------------------------------------------------------------------------------

class Side:
    """A process that answers lines with lines of JSON."""

    def __init__(self, command, environment=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.rest = b""

    def read(self, timeout_s):
        deadline = time.monotonic() + timeout_s
        while True:
            line, found, rest = self.rest.partition(b"\n")
            if found:
                self.rest = rest
                if line.startswith(b"{"):
                    return json.loads(line)
                continue  # what a library prints
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                self.stop()
                return {"error": f"no answer in {timeout_s:.0f} s"}
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                return {"error": f"it ended with code {self.process.wait()}"}
            self.rest += data

    def ask(self, line, timeout_s):
        if self.process.poll() is not None:
            return {"error": "it has ended"}
        try:
            self.process.stdin.write((line + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # read() says how it ended
        return self.read(timeout_s)

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.stop()


class Bench:
    def __init__(self, of, options):
        self.suite = of
        self.options = options
        self.deadline = time.monotonic() + options.budget
        environment = dict(os.environ)
        # Only Motley's program needs the folders that tests/gpu/run has found; PyTorch brings its own libraries.
        if "MOTLEY_GPU_LIBRARIES" in environment:
            environment["LD_LIBRARY_PATH"] = environment["MOTLEY_GPU_LIBRARIES"]
        self.ours = Side([options.program, "--device", options.device, "--size", options.size], environment)
        self.peer = None
        # What a case takes with a peer, and Motley's part of it: guesses until one was seen.
        self.peer_case_s, self.ours_case_s = 60.0, 8.0
        self.failed = False

    def left(self):
        return self.deadline - time.monotonic()

    def start_peer(self):
        if self.options.no_peer:
            return
        if not installed("torch"):
            print("PyTorch is not installed: Motley's steps alone", file=sys.stderr)
            return
        self.peer = None
        if self.left() < 2:
            return
        self.peer = Side([sys.executable, os.path.abspath(sys.argv[0]), "--peer", self.options.device])
        hello = self.peer.read(min(120, self.left()))
        if "error" in hello:
            print(f"PyTorch cannot be used: {hello['error']}: Motley's steps alone", file=sys.stderr)
            self.peer = None
            return
        self.network = hello["network"] = next(name for name, usable in self.suite.networks.items() if usable())
        print(json.dumps({"bench": "peer", "of": self.suite.bench, **hello}), flush=True)

    def check(self):
        for model, size in self.suite.checks[self.options.size]:
            for precision in ("fp32", "bf16", "fp16") if self.options.device == "cuda" else ("fp32", "bf16"):
                answer = self.ours.ask(f"check {model} {size} {precision}", max(1, min(90, self.left())))
                self.failed |= not answer.get("correct", False)
                print(json.dumps({"bench": self.suite.bench.replace("_step", "_check"), **answer}), flush=True)

    def record(self, case, rest):
        """Of a case that Motley has no answer to."""
        print(json.dumps({"bench": self.suite.bench, "model": case[0], self.suite.size: case[1], "precision": case[2], **rest}),
              flush=True)

    def time(self, case, network=None, compiled=None):
        """One case; with a peer if `network` says which."""
        model, size, precision = case
        start = time.monotonic()
        first = self.ours.ask(f"{model} {self.options.batch} {size} {precision} 1", min(120, max(self.left(), 20)))
        if "error" in first:
            self.failed = True
            self.record(case, first)
            return
        per_round = SECONDS_PER_ROUND[self.options.size]
        steps = max(1, min(20, int(1e3 * per_round / first["ms"])))
        ours_line = f"{model} {first['batch']} {size} {precision} {steps}"
        peer_line = f"{network} {compiled} {ours_line}"
        peer = self.peer if network else None
        note = None
        ours_s = time.monotonic() - start
        if peer:
            warm = peer.ask(peer_line.rsplit(" ", 1)[0] + " 1", min(240, self.left()))
            if "error" in warm and compiled != "none":
                note, compiled = warm["error"], "none"
                peer_line = f"{network} {compiled} {ours_line}"
                warm = peer.ask(peer_line.rsplit(" ", 1)[0] + " 1", min(120, max(1, self.left())))
            if "error" in warm:
                note, peer = note or warm["error"], None
        answers, peer_answers = [], []
        for _ in range(ROUNDS[self.options.size]):
            begin = time.monotonic()
            answers.append(self.ours.ask(ours_line, 120))
            ours_s += time.monotonic() - begin
            if peer:
                peer_answers.append(peer.ask(peer_line, 120))
        self.ours_case_s = ours_s
        for answer in answers + peer_answers:
            note = answer.get("error", note)
        for answer in peer_answers:
            # A peer that is another network is no peer.
            if answer.get("parameters") is not None and answer["parameters"] != first.get("parameters"):
                note, self.failed = f"PyTorch's network has {answer['parameters']} parameters", True
        good = all("error" not in answer and answer.get("correct", False) for answer in answers)
        self.failed |= not good
        middle = sorted((a for a in answers if "ms" in a), key=lambda a: a["ms"])
        record = {"bench": self.suite.bench, **(middle[len(middle) // 2] if middle else first), "correct": good}
        times = [answer["ms"] for answer in peer_answers if "ms" in answer]
        if times and middle:
            record["peer"] = {"network": network, "compiled": compiled, "ms": statistics.median(times),
                              "loss": peer_answers[-1].get("loss"), "memory_mib": peer_answers[-1].get("memory_mib")}
            record["ratio"] = round(record["peer"]["ms"] / record["ms"], 3)
            self.peer_case_s = time.monotonic() - start
        if note:
            record["note"] = note
        print(json.dumps(record), flush=True)
        if self.peer:
            if self.peer.process.poll() is None:
                self.peer.ask("drop", 60)
            else:
                self.start_peer()

    def run(self):
        cases = self.suite.cases[self.options.size]
        if self.options.device == "cpu":  # float16 is for GPUs
            cases = [case for case in cases if case[2] != "fp16"]
        self.check()
        self.start_peer()
        for i, case in enumerate(cases):
            # Time for Motley's part of the cases that follow, but not so much that the most telling have no peer.
            rest = min(self.ours_case_s * (len(cases) - i - 1), self.left() / 3) if self.options.size == "full" else 0
            if self.peer and self.left() > 1.3 * self.peer_case_s + rest:
                self.time(case, self.network, self.options.compile)
            elif self.left() > 5:
                self.time(case)
            else:
                self.record(case, {"skipped": "no time was left"})
        if self.peer and self.options.size == "full":
            for network, compiled in self.suite.extra:
                if (network, compiled) != (self.network, self.options.compile) and self.left() > 2 * self.peer_case_s:
                    self.time(cases[0], network, compiled)
        for side in (self.ours, self.peer):
            if side:
                side.close()
        return 1 if self.failed else 0


def main(of, description):
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("program", nargs="?")
    parser.add_argument("--peer", metavar="DEVICE", help=argparse.SUPPRESS)
    parser.add_argument("--size", choices=sorted(of.cases), default="full")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--budget", type=float, default=270, metavar="SECONDS")
    parser.add_argument("--compile", choices=of.compile, default=of.compile[0])
    parser.add_argument("--batch", help="samples; default: " + ", ".join(f"{n} ({size})" for size, n in of.batch.items()))
    parser.add_argument("--no-peer", action="store_true", help="Motley's steps alone")
    options = parser.parse_args()
    if options.peer:
        return peer(of, options.peer)
    if not options.program:
        parser.error("which program?")
    options.batch = options.batch or of.batch[options.size]
    return Bench(of, options).run()
