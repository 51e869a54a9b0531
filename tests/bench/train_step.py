#!/usr/bin/env python3
"""Times a training step of the mnist network against PyTorch's, in turn, on the same number of threads.

    python3 tests/bench/train_step.py build/release/bin/train_step_bench

Needs PyTorch. A step is forward, backward, clipping of the gradient norm and Adadelta. PyTorch is timed with its default
layout and with channels_last, on images that are normalised beforehand. Prints one line of JSON per case: the median over the
rounds of milliseconds per step, and the ratio (above 1: motley is faster than the faster of the two).
"""
import json
import os
import statistics
import subprocess
import sys
import time

THREADS = [1, 2]
BATCHES = [64, 256]
ROUNDS = 7


def make_peer(torch, batch, channels_last):
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
            self.pool, self.drop1, self.drop2 = nn.MaxPool2d(2), nn.Dropout2d(0.25), nn.Dropout(0.5)
            self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

        def forward(self, x):
            x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
            x = torch.flatten(self.drop1(self.pool(x)), 1)
            return torch.log_softmax(self.fc2(self.drop2(torch.relu(self.fc1(x)))), dim=1)

    torch.manual_seed(1)
    net = Net()
    x, y = torch.randn(batch, 1, 28, 28), torch.arange(batch) % 10
    if channels_last:
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)

    def steps(count):
        start = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad()
            torch.nn.functional.nll_loss(net(x), y).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 25)
            optimizer.step()
        return (time.perf_counter() - start) / count

    return steps


def bench(threads, program):
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["OMP_WAIT_POLICY"] = "passive"
    import torch

    torch.set_num_threads(threads)
    ours = subprocess.Popen([program, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def our_steps(batch, count):
        ours.stdin.write(f"{batch} {count}\n")
        ours.stdin.flush()
        return float(ours.stdout.readline().split()[0])

    for batch in BATCHES:
        count = 2048 // batch // 2
        peers = [make_peer(torch, batch, False), make_peer(torch, batch, True)]
        times = {"motley": [], "default": [], "channels_last": []}
        our_steps(batch, 3), peers[0](3), peers[1](3)
        for _ in range(ROUNDS):
            times["motley"].append(our_steps(batch, count))
            times["default"].append(peers[0](count))
            times["channels_last"].append(peers[1](count))
        ms = {name: 1e3 * statistics.median(values) for name, values in times.items()}
        print(json.dumps({
            "bench": "mnist training step", "threads": threads, "batch": batch, "peer": f"PyTorch {torch.__version__}",
            "motley_ms": round(ms["motley"], 2), "pytorch_ms": round(ms["default"], 2),
            "pytorch_channels_last_ms": round(ms["channels_last"], 2),
            "ratio": round(min(ms["default"], ms["channels_last"]) / ms["motley"], 2)}), flush=True)
    ours.stdin.close()
    ours.wait()


def main():
    if len(sys.argv) == 2:  # a process of its own per thread count: thread pools cannot be resized reliably
        for threads in THREADS:
            subprocess.run([sys.executable, __file__, sys.argv[1], str(threads)], check=True)
    else:
        bench(int(sys.argv[2]), sys.argv[1])


if __name__ == "__main__":
    main()
