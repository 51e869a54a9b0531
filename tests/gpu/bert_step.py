#!/usr/bin/env python3
"""Times training steps of BERT on one GPU, and the same steps in PyTorch, in turn.

    python3 tests/gpu/bert_step.py PROGRAM [--size full|quick|tiny] [--device cuda|cpu] [--budget SECONDS]
                                   [--compile layers|whole|none] [--batch N]

PROGRAM is gpu_bert_step_bench. A step is forward, backward, clipping of the gradient norm and AdamW, dropout 0.1, 15 % of the
positions masked; its heads see the masked positions only, as in Motley. The peer is Hugging Face's BertForPreTraining with
SDPA attention and no attention mask (full sequences), or, where transformers is not installed, the same network in plain
torch.nn; autocast in bf16 and fp16, GradScaler in fp16, fused AdamW, torch.compile. "layers" compiles the encoder's layers,
which PyTorch compiles once for all of them; "whole" compiles everything in one piece, which takes minutes. In float32 neither
side uses TF32. The case listed first is also run with the plain network and compiled whole if time is left.

Prints a line of JSON per case: Motley's (see gpu_bert_step_bench), and in "peer" the milliseconds of PyTorch's step; "ratio"
is PyTorch's time over Motley's: above 1, Motley is faster. Where PyTorch is not installed, or time has run out, Motley's alone.
--budget is the time in which all cases are done.
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

# Model, tokens of a sequence, precision; the most telling first.
CASES = {
    "full": [("large", 128, "bf16"), ("large", 512, "bf16"), ("large", 128, "fp32"), ("large", 512, "fp32"),
             ("large", 128, "fp16"), ("large", 512, "fp16"), ("base", 128, "bf16"), ("base", 512, "bf16"),
             ("base", 128, "fp32"), ("base", 512, "fp32")],
    "quick": [("base", 128, "bf16"), ("base", 128, "fp32")],
    "tiny": [("tiny", 16, "fp32"), ("tiny", 16, "bf16"), ("tiny", 16, "fp16")],
}
CHECKS = {"full": ("base", 128), "quick": ("base", 128), "tiny": ("tiny", 16)}
BATCH = {"full": "fit", "quick": "8", "tiny": "2"}
ROUNDS = {"full": 3, "quick": 2, "tiny": 1}
SECONDS_PER_ROUND = {"full": 1.0, "quick": 0.3, "tiny": 0.0}
OURS_ALONE_S = 12  # what a case without a peer takes at most, on a card that the full size is for

SIZES = {  # hidden, layers, heads, words
    "large": (1024, 24, 16, 30522),
    "base": (768, 12, 12, 30522),
    "tiny": (16, 2, 2, 101),
}


# --- PyTorch -----------------------------------------------------------------------------------------------------------------

def hugging_face(torch, model):
    """(network, its parts to compile one by one, function of inputs that gives [tokens, hidden] and the pooled output, heads)"""
    from transformers import BertConfig, BertForPreTraining

    hidden, layers, heads, words = SIZES[model]
    config = BertConfig(vocab_size=words, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                        intermediate_size=4 * hidden, attn_implementation="sdpa")
    network = BertForPreTraining(config)

    def encode(ids, types):
        out = network.bert(ids, token_type_ids=types)
        return out.last_hidden_state, out.pooler_output

    return network, list(network.bert.encoder.layer), encode, network.cls.predictions, network.cls.seq_relationship


def plain(torch, model):
    """The same network in torch.nn: post-norm encoder, query, key and value in one product, tied decoder."""
    nn, functional = torch.nn, torch.nn.functional
    hidden, layers, heads, words = SIZES[model]

    def linear(inputs, outputs):
        layer = nn.Linear(inputs, outputs)
        nn.init.normal_(layer.weight, std=0.02)
        nn.init.zeros_(layer.bias)
        return layer

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = linear(hidden, 3 * hidden), linear(hidden, hidden)
            self.up, self.down = linear(hidden, 4 * hidden), linear(4 * hidden, hidden)
            self.norm1, self.norm2 = nn.LayerNorm(hidden, 1e-12), nn.LayerNorm(hidden, 1e-12)
            self.dropout = nn.Dropout(0.1)

        def forward(self, x):
            n, seq, _ = x.shape
            q, k, v = self.qkv(x).view(n, seq, 3, heads, hidden // heads).permute(2, 0, 3, 1, 4).unbind(0)
            context = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0)
            context = context.transpose(1, 2).reshape(n, seq, hidden)
            x = self.norm1(x + self.dropout(self.out(context)))
            return self.norm2(x + self.dropout(self.down(functional.gelu(self.up(x)))))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.word, self.position, self.kind = nn.Embedding(words, hidden), nn.Embedding(512, hidden), nn.Embedding(2, hidden)
            for table in (self.word, self.position, self.kind):
                nn.init.normal_(table.weight, std=0.02)
            self.norm, self.dropout = nn.LayerNorm(hidden, 1e-12), nn.Dropout(0.1)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.pooler, self.next_sentence = linear(hidden, hidden), linear(hidden, 2)
            self.transform, self.transform_norm = linear(hidden, hidden), nn.LayerNorm(hidden, 1e-12)
            self.bias = nn.Parameter(torch.zeros(words))

        def encode(self, ids, types):
            places = torch.arange(ids.shape[1], device=ids.device)
            x = self.dropout(self.norm(self.word(ids) + self.position(places) + self.kind(types)))
            for layer in self.layers:
                x = layer(x)
            return x, torch.tanh(self.pooler(x[:, 0]))

        def predict(self, x):
            x = self.transform_norm(functional.gelu(self.transform(x)))
            return functional.linear(x, self.word.weight, self.bias)

    network = Network()
    return network, list(network.layers), network.encode, network.predict, network.next_sentence


def make_step(torch, network_kind, compiled, device, model, batch, seq, precision):
    torch._dynamo.reset()
    torch.manual_seed(1)
    network, parts, encode, predict, next_sentence = (hugging_face if network_kind == "hf" else plain)(torch, model)
    network.to(device).train()
    words = SIZES[model][3]
    ids = torch.randint(0, words, (batch, seq), device=device)
    types = (torch.arange(seq, device=device) >= seq // 2).long().expand(batch, seq)
    masked = batch * (seq * 5 // 32)
    places = torch.arange(masked, device=device) * (batch * seq) // masked
    labels = torch.randint(0, words, (masked,), device=device)
    follows = torch.arange(batch, device=device) % 2
    kind = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    cross_entropy = torch.nn.functional.cross_entropy

    def forward():
        with torch.autocast(device, kind or torch.bfloat16, enabled=kind is not None):
            tokens, pooled = encode(ids, types)
            scores = predict(tokens.reshape(batch * seq, -1)[places])
            return cross_entropy(scores.float(), labels) + cross_entropy(next_sentence(pooled).float(), follows)

    if compiled == "layers":
        for part in parts:
            part.compile(dynamic=False)
    elif compiled == "whole":
        forward = torch.compile(forward, dynamic=False)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5, weight_decay=0.01, fused=device == "cuda")
    scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step


def peer(device):
    """Answers lines NETWORK COMPILED MODEL BATCH SEQ PRECISION STEPS as gpu_bert_step_bench does."""
    import torch

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    torch.backends.cuda.matmul.allow_tf32 = False
    print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda,
                      "device": torch.cuda.get_device_name(0) if device == "cuda" else "cpu"}), flush=True)
    made, step = None, None
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
                network, compiled, model, batch, seq, precision = words[:-1]
                step = make_step(torch, network, compiled, device, model, int(batch), int(seq), precision)
                for _ in range(3):  # compiles, and lets the allocator settle
                    step()
                wait()
                made = words[:-1]
            steps = int(words[-1])
            start = time.perf_counter()
            for _ in range(steps):
                loss = step()
            wait()
            answer = {"ms": 1e3 * (time.perf_counter() - start) / steps, "loss": float(loss.detach())}
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
    def __init__(self, options):
        self.options = options
        self.deadline = time.monotonic() + options.budget
        environment = dict(os.environ)
        # Only Motley's program needs the folders that tests/gpu/run has found; PyTorch brings its own libraries.
        if "MOTLEY_GPU_LIBRARIES" in environment:
            environment["LD_LIBRARY_PATH"] = environment["MOTLEY_GPU_LIBRARIES"]
        self.ours = Side([options.program, "--device", options.device, "--size", options.size], environment)
        self.peer = None
        self.peer_case_s = 60.0  # what a case with a peer takes: a guess until one was seen
        self.failed = False

    def left(self):
        return self.deadline - time.monotonic()

    def start_peer(self):
        if importlib.util.find_spec("torch") is None:
            print("PyTorch is not installed: Motley's steps alone", file=sys.stderr)
            return
        self.peer = None
        if self.left() < 2:
            return
        self.peer = Side([sys.executable, os.path.abspath(__file__), "--peer", self.options.device])
        hello = self.peer.read(min(120, self.left()))
        if "error" in hello:
            print(f"PyTorch cannot be used: {hello['error']}: Motley's steps alone", file=sys.stderr)
            self.peer = None
            return
        hello["network"] = "hf" if importlib.util.find_spec("transformers") is not None else "plain"
        print(json.dumps({"bench": "peer", **hello}), flush=True)
        self.network = hello["network"]

    def check(self):
        model, seq = CHECKS[self.options.size]
        for precision in ("fp32", "bf16", "fp16") if self.options.device == "cuda" else ("fp32", "bf16"):
            answer = self.ours.ask(f"check {model} {seq} {precision}", min(90, self.left()))
            self.failed |= not answer.get("correct", False)
            print(json.dumps({"bench": "bert_check", **answer}), flush=True)

    def time(self, case, network=None, compiled=None):
        """One case; with a peer if `network` says which."""
        model, seq, precision = case
        start = time.monotonic()
        first = self.ours.ask(f"{model} {self.options.batch} {seq} {precision} 1", min(120, max(self.left(), 20)))
        if "error" in first:
            self.failed = True
            print(json.dumps({"bench": "bert_step", "model": model, "seq": seq, "precision": precision, **first}), flush=True)
            return
        per_round = SECONDS_PER_ROUND[self.options.size]
        # Each answer times steps with CUDA graphs and without.
        steps = max(1, min(20, int(1e3 * per_round / (first["ms"] + first.get("plain_ms", 0)))))
        ours_line = f"{model} {first['batch']} {seq} {precision} {steps}"
        peer_line = f"{network} {compiled} {ours_line}"
        peer = self.peer if network else None
        note = None
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
            answers.append(self.ours.ask(ours_line, 120))
            if peer:
                peer_answers.append(peer.ask(peer_line, 120))
        for answer in answers + peer_answers:
            note = answer.get("error", note)
        good = all("error" not in answer and answer.get("correct", False) for answer in answers)
        self.failed |= not good
        middle = sorted((a for a in answers if "ms" in a), key=lambda a: a["ms"])
        record = {"bench": "bert_step", **(middle[len(middle) // 2] if middle else first), "correct": good}
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
        cases = CASES[self.options.size]
        if self.options.device == "cpu":  # float16 is for GPUs
            cases = [case for case in cases if case[2] != "fp16"]
        self.check()
        self.start_peer()
        for i, case in enumerate(cases):
            rest = OURS_ALONE_S * (len(cases) - i - 1) if self.options.size == "full" else 0
            if self.peer and self.left() > 1.3 * self.peer_case_s + rest:
                self.time(case, self.network, self.options.compile)
            elif self.left() > 5:
                self.time(case)
            else:
                print(json.dumps({"bench": "bert_step", "model": case[0], "seq": case[1], "precision": case[2],
                                  "skipped": "no time was left"}), flush=True)
        if self.peer and self.options.size == "full":
            for network, compiled in (("plain", "layers"), ("plain", "whole")):
                if (network, compiled) != (self.network, self.options.compile) and self.left() > 2 * self.peer_case_s:
                    self.time(cases[0], network, compiled)
        for side in (self.ours, self.peer):
            if side:
                side.close()
        return 1 if self.failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", nargs="?")
    parser.add_argument("--peer", metavar="DEVICE", help=argparse.SUPPRESS)
    parser.add_argument("--size", choices=sorted(CASES), default="full")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--budget", type=float, default=270, metavar="SECONDS")
    parser.add_argument("--compile", choices=["layers", "whole", "none"], default="layers")
    parser.add_argument("--batch", help="sequences; default: what fits (full), 8 (quick), 2 (tiny)")
    parser.add_argument("--no-peer", action="store_true", help="Motley's steps alone")
    options = parser.parse_args()
    if options.peer:
        return peer(options.peer)
    if not options.program:
        parser.error("which program?")
    options.batch = options.batch or BATCH[options.size]
    bench = Bench(options)
    if options.no_peer:
        bench.start_peer = lambda: None
    return bench.run()


if __name__ == "__main__":
    sys.exit(main())
