#!/usr/bin/env python3
"""Writes mnist_net.json: logits, loss and gradients of HetSeq's MNIST network by PyTorch in float64.

Weights, images and labels follow from formulas that tests/unit/models/mnist_net_test.cc repeats. Dropout masks are
those of the program: Philox4x32-10 of (seed, purpose, step, slot, element), written out here a second time.
Of each gradient the norm and 32 elements are kept.
"""
import json
import os

import numpy as np
import torch
import torch.nn.functional as F

SEED, STEP, FIRST_SLOT, BATCH = 42, 3, 11, 5
PURPOSE_DROPOUT = 2
SHAPES = {
    "conv1.weight": (32, 1, 3, 3), "conv1.bias": (32,),
    "conv2.weight": (64, 32, 3, 3), "conv2.bias": (64,),
    "fc1.weight": (128, 9216), "fc1.bias": (128,),
    "fc2.weight": (10, 128), "fc2.bias": (10,),
}
FAN_IN = {"conv1": 9, "conv2": 288, "fc1": 9216, "fc2": 128}


def philox(counter, key):
    c, k = [int(v) for v in counter], [int(v) for v in key]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def keep_mask(index, elements, probability):
    purpose = PURPOSE_DROPOUT | (index << 8)
    mask = np.zeros((BATCH, elements))
    for row in range(BATCH):
        for block in range((elements + 3) // 4):
            words = philox((block, FIRST_SLOT + row, STEP, purpose), (SEED & 0xFFFFFFFF, SEED >> 32))
            for i, word in enumerate(words):
                if 4 * block + i < elements:
                    mask[row, 4 * block + i] = word >= int(probability * 2**32)
    return torch.tensor(mask / (1 - probability))


def main():
    parameters = {}
    for index, (name, shape) in enumerate(SHAPES.items()):
        n = int(np.prod(shape))
        values = np.sin(0.37 * np.arange(n, dtype=np.float64) + 1.3 * (index + 1)) / np.sqrt(FAN_IN[name.split(".")[0]])
        parameters[name] = torch.tensor(values.astype(np.float32).astype(np.float64).reshape(shape), requires_grad=True)
    pixels = (np.arange(BATCH * 784) * 7919 + 13) % 256
    x = torch.tensor(((pixels / 255.0) - 0.1307) / 0.3081).reshape(BATCH, 1, 28, 28)
    labels = torch.arange(BATCH) * 3 % 10
    p = parameters
    x = F.relu(F.conv2d(x, p["conv1.weight"], p["conv1.bias"]))
    x = F.relu(F.conv2d(x, p["conv2.weight"], p["conv2.bias"]))
    x = F.max_pool2d(x, 2) * keep_mask(0, 64, 0.25).reshape(BATCH, 64, 1, 1)
    x = F.relu(F.linear(torch.flatten(x, 1), p["fc1.weight"], p["fc1.bias"])) * keep_mask(1, 128, 0.5)
    logits = F.linear(x, p["fc2.weight"], p["fc2.bias"])
    loss = F.nll_loss(F.log_softmax(logits, dim=1), labels, reduction="sum")
    loss.backward()
    golden = {"logits": logits.detach().flatten().tolist(), "loss_sum": loss.item(), "gradients": {}}
    for name, parameter in parameters.items():
        gradient = parameter.grad.flatten()
        picked = [(k * 104729) % gradient.numel() for k in range(32)]
        golden["gradients"][name] = {"norm": gradient.norm().item(), "values": gradient[picked].tolist()}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "mnist_net.json"), "w") as file:
        json.dump(golden, file, indent=1)


if __name__ == "__main__":
    main()
