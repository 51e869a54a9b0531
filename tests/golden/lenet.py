#!/usr/bin/env python3
"""Writes lenet.json: logits, loss and gradients of LeNet (CIFAR form) by PyTorch in float64.

Weights, images and labels follow from formulas that tests/unit/models/lenet_test.cc repeats. Of each gradient the norm
and 32 elements are kept.
"""
import json
import os

import numpy as np
import torch
import torch.nn.functional as F

BATCH = 4
SHAPES = {
    "conv1.weight": (6, 3, 5, 5), "conv1.bias": (6,),
    "conv2.weight": (16, 6, 5, 5), "conv2.bias": (16,),
    "fc1.weight": (120, 400), "fc1.bias": (120,),
    "fc2.weight": (84, 120), "fc2.bias": (84,),
    "fc3.weight": (10, 84), "fc3.bias": (10,),
}
FAN_IN = {"conv1": 75, "conv2": 150, "fc1": 400, "fc2": 120, "fc3": 84}


def main():
    p = {}
    for index, (name, shape) in enumerate(SHAPES.items()):
        n = int(np.prod(shape))
        values = np.sin(0.37 * np.arange(n, dtype=np.float64) + 1.3 * (index + 1)) / np.sqrt(FAN_IN[name.split(".")[0]])
        p[name] = torch.tensor(values.astype(np.float32).astype(np.float64).reshape(shape), requires_grad=True)
    # [n, height, width, channels], as in the program
    x = np.cos(0.011 * np.arange(BATCH * 32 * 32 * 3, dtype=np.float64)).astype(np.float32).astype(np.float64)
    x = torch.tensor(x).reshape(BATCH, 32, 32, 3).permute(0, 3, 1, 2)
    labels = torch.arange(BATCH) * 3 % 10
    x = F.max_pool2d(F.relu(F.conv2d(x, p["conv1.weight"], p["conv1.bias"])), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, p["conv2.weight"], p["conv2.bias"])), 2)
    x = torch.flatten(x, 1)
    x = F.relu(F.linear(x, p["fc1.weight"], p["fc1.bias"]))
    x = F.relu(F.linear(x, p["fc2.weight"], p["fc2.bias"]))
    logits = F.linear(x, p["fc3.weight"], p["fc3.bias"])
    loss = F.cross_entropy(logits, labels, reduction="sum")
    loss.backward()
    gradients = {}
    for name, value in p.items():
        g = value.grad.numpy().ravel()
        gradients[name] = {"norm": float(np.linalg.norm(g)), "values": [float(g[k * 104729 % g.size]) for k in range(32)]}
    golden = {"logits": logits.detach().numpy().ravel().tolist(), "loss_sum": float(loss.detach()), "gradients": gradients}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "lenet.json"), "w") as file:
        json.dump(golden, file, indent=1)


if __name__ == "__main__":
    main()
