#!/usr/bin/env python3
"""Times training steps of ResNet-50 and VGG-16 (CIFAR form) against PyTorch (channels_last), in turn, on the same threads.

    python3 tests/bench/image_step.py build/release/bin/image_step_bench [THREADS [ARCH [BATCH [PRECISION]]]]

Needs PyTorch. A step is forward, backward and SGD with Nesterov momentum and weight decay. In bfloat16 the faster of autocast and
a bfloat16 model is the peer; the latter has no float32 weights. Prints one line of JSON per case: the medians over the rounds of
milliseconds per step on the clock, and ratios (above 1: Motley is faster); cpu_ratio is the same of processor time, for a machine
that is busy. peak_mib is the most memory that a process held. of_peak is what a step multiplies and adds by the definition of
its operations, over its time, as a part of the machine's fastest float32 matrix product, timed in turn with the steps.
"""
import json
import os
import resource
import statistics
import subprocess
import sys
import time

ARCHS = ["resnet50", "vgg16"]
BATCHES = [32, 128]
PRECISIONS = ["fp32", "bf16"]
ROUNDS = 5


def make_network(torch, arch):
    nn = torch.nn

    def conv_bn(inputs, out, kernel, stride=1):
        return [nn.Conv2d(inputs, out, kernel, stride, (kernel - 1) // 2, bias=False), nn.BatchNorm2d(out)]

    class Bottleneck(nn.Module):
        def __init__(self, inputs, width, stride):
            super().__init__()
            self.body = nn.Sequential(*conv_bn(inputs, width, 1), nn.ReLU(inplace=True), *conv_bn(width, width, 3, stride),
                                      nn.ReLU(inplace=True), *conv_bn(width, 4 * width, 1))
            projected = stride != 1 or inputs != 4 * width
            self.shortcut = nn.Sequential(*conv_bn(inputs, 4 * width, 1, stride) if projected else [])
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            return self.relu(self.body(x) + self.shortcut(x))

    layers = []
    if arch == "resnet50":
        channels = 64
        layers += [*conv_bn(3, 64, 3), nn.ReLU(inplace=True)]
        for stage, blocks in enumerate([3, 4, 6, 3]):
            for block in range(blocks):
                layers.append(Bottleneck(channels, 64 << stage, 2 if stage > 0 and block == 0 else 1))
                channels = 256 << stage
    else:
        channels = 3
        for width, count in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]:
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def peer(threads):
    """Answers the lines that image_step_bench answers, with one more word: the variant."""
    import torch

    torch.set_num_threads(threads)
    made, step = None, None

    def make(arch, batch, variant):
        torch.manual_seed(1)
        network = make_network(torch, arch).to(memory_format=torch.channels_last)
        images, labels = torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last), torch.arange(batch) % 10
        if variant == "bf16_model":
            network, images = network.bfloat16(), images.bfloat16()
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, nesterov=True, weight_decay=5e-4)

        def one():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=variant == "bf16_autocast"):
                logits = network(images)
            torch.nn.functional.cross_entropy(logits.float(), labels).backward()
            optimizer.step()

        return one

    for line in sys.stdin:
        arch, batch, _, count, variant = line.split()
        if made != (arch, batch, variant):
            made, step = (arch, batch, variant), make(arch, int(batch), variant)
        clock, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(count)):
            step()
        cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
        print(json.dumps({"ms": 1e3 * clock / int(count), "cpu_ms": 1e3 * cpu / int(count),
                          "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}), flush=True)


class Side:
    def __init__(self, command, environment):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def bench(program, threads, arch, batch, precision):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive")
    variants = {"motley": "", **({"pytorch": "fp32"} if precision == "fp32" else
                                 {"bf16_autocast": "bf16_autocast", "bf16_model": "bf16_model"})}
    sides = {name: Side([program, str(threads)] if name == "motley" else
                        [sys.executable, __file__, "--peer", str(threads)], environment) for name in variants}
    lines = {name: f"{arch} {batch} {precision} {{}} {variant}".strip() for name, variant in variants.items()}
    rounds = {name: [] for name in variants}
    # A process of its own, whose memory is nobody's.
    meter = Side([program, str(threads)], environment)
    peaks = []
    for name, side in sides.items():
        side.ask(lines[name].format(2))
    for _ in range(ROUNDS):
        peaks.append(meter.ask("peak")["gflops"])
        for name, side in sides.items():
            rounds[name].append(side.ask(lines[name].format(max(1, 64 // batch))))
    for side in [meter, *sides.values()]:
        side.close()
    medians = {key: {name: statistics.median(answer[key] for answer in answers) for name, answers in rounds.items()}
               for key in ("ms", "cpu_ms", "peak_mib")}
    peers = [name for name in variants if name != "motley"]
    ratio = {key: round(min(medians[key][name] for name in peers) / medians[key]["motley"], 2) for key in medians}
    of_peak = {name: round(rounds["motley"][0]["gflop"] / ms / statistics.median(peaks) * 1e3, 2)
               for name, ms in medians["ms"].items()}
    print(json.dumps({"bench": "image training step", "arch": arch, "batch": batch, "precision": precision, "threads": threads,
                      "ms": {name: round(ms, 1) for name, ms in medians["ms"].items()}, "peak_mib": medians["peak_mib"],
                      "peak_gflops": round(statistics.median(peaks), 1), "of_peak": of_peak,
                      "ratio": ratio["ms"], "cpu_ratio": ratio["cpu_ms"], "memory_ratio": ratio["peak_mib"]}), flush=True)


def main():
    arguments = sys.argv[2:] + [""] * 4
    threads = int(arguments[0] or 2)
    for arch in [arguments[1]] if arguments[1] else ARCHS:
        for batch in [int(arguments[2])] if arguments[2] else BATCHES:
            for precision in [arguments[3]] if arguments[3] else PRECISIONS:
                bench(sys.argv[1], threads, arch, batch, precision)


if __name__ == "__main__":
    if sys.argv[1] == "--peer":
        peer(int(sys.argv[2]))
    else:
        main()
