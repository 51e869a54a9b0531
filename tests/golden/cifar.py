#!/usr/bin/env python3
"""Writes cifar.safetensors: a training pass of the image networks by PyTorch in float64.

Weights, images and labels follow from formulas that tests/unit/models/cifar_golden_test.cc repeats, with the program's
counted random numbers (Philox4x32-10, written out here in NumPy). Of each network are kept: the logits and the summed
loss in training mode, the logits in evaluation with the running statistics that the pass has left, and of every gradient
and running statistic its norm and four projections on random signs, in the order of the names. A difference between two
tensors shows in such projections as large as it is.

The networks are written from the papers and from what the dynamic-partition experiments change in them.
"""
import pathlib
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

SEED, STEP, FIRST_SLOT, BATCH = 5, 3, 11, 4
PURPOSE_INITIALIZATION, PURPOSE_DROPOUT = 1, 2
IMAGES, SIGNS = 0x1000, 0x2000  # indices of random streams


def philox(slot, blocks, time_word, purpose):
    """[blocks, 4] words of 32 bits."""
    mask = np.uint64(0xFFFFFFFF)
    c = [np.arange(blocks, dtype=np.uint64), np.full(blocks, slot, np.uint64), np.full(blocks, time_word, np.uint64),
         np.full(blocks, purpose, np.uint64)]
    k0, k1 = SEED & 0xFFFFFFFF, SEED >> 32
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), b & mask, (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), a & mask]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, 1)


def words(count, index, time_word, purpose=PURPOSE_INITIALIZATION, slot=0):
    return philox(slot, (count + 3) // 4, time_word, purpose | (index << 8)).reshape(-1)[:count]


def uniform(count, index, time_word):
    """In [-1, 1), exact in float32."""
    return 2.0 * (words(count, index, time_word) >> np.uint64(8)).astype(np.float64) / 2**24 - 1.0


def name_hash(name):
    h = 0x811C9DC5  # FNV-1a
    for byte in name.encode():
        h = ((h ^ byte) * 0x01000193) & 0xFFFFFFFF
    return h


class Net:
    """Parameters by name, made when they are first asked for, and the operations on [n, c, h, w]."""

    def __init__(self, spread):
        self.parameters, self.statistics, self.training, self.dropouts, self.spread = {}, {}, True, 0, spread

    def parameter(self, name, *shape):
        if name not in self.parameters:
            u = uniform(int(np.prod(shape)), 0, name_hash(name))
            if len(shape) > 1:
                values = u * np.sqrt(6.0 / np.prod(shape[1:]))
            else:
                # Keeps what comes before a ReLU three to five deviations (1 / spread) away from 0, on the same side in all
                # of a channel: in float32 a few of a million values that are near 0 fall to its other side, in PyTorch,
                # too, and move gradients by 1e-3.
                off = np.arange(len(u)) % 4 == 3
                values = self.spread * (1 + 0.2 * u) if name.endswith("weight") else np.where(off, -1, 1) * (1 + 0.2 * u)
            values = values.astype(np.float32).astype(np.float64).reshape(shape)
            self.parameters[name] = torch.tensor(values, requires_grad=True)
        return self.parameters[name]

    def conv(self, x, name, out, k=3, s=1, groups=1, bias=False, pad=None):
        weight = self.parameter(name + ".weight", out, x.shape[1] // groups, k, k)
        b = self.parameter(name + ".bias", out) if bias else None
        return F.conv2d(x, weight, b, s, (k - 1) // 2 if pad is None else pad, 1, groups)

    def bn(self, x, name):
        c = x.shape[1]
        if name not in self.statistics:
            self.statistics[name] = (torch.zeros(c, dtype=torch.float64), torch.ones(c, dtype=torch.float64))
        mean, var = self.statistics[name]
        return F.batch_norm(x, mean, var, self.parameter(name + ".weight", c), self.parameter(name + ".bias", c),
                            self.training, 0.1, 1e-5)

    def linear(self, x, name, out):
        x = x.flatten(1)
        return F.linear(x, self.parameter(name + ".weight", out, x.shape[1]), self.parameter(name + ".bias", out))

    def excite(self, x, fc1, fc2, hidden, activation):
        s = activation(self.conv(x.mean((2, 3), keepdim=True), fc1, hidden, 1, bias=True))
        return x * torch.sigmoid(self.conv(s, fc2, x.shape[1], 1, bias=True))

    def dropout(self, x, p):
        index, self.dropouts = self.dropouts, self.dropouts + 1
        if not self.training:
            return x
        keep = [words(x.shape[1], index, STEP, PURPOSE_DROPOUT, FIRST_SLOT + row) >= int(p * 2**32) for row in range(BATCH)]
        return x * torch.tensor(np.stack(keep) / (1 - p))


def average(x):
    return x.mean((2, 3))


def vgg(net, x, depths):
    index = 0
    for width, depth in zip((64, 128, 256, 512, 512), depths):
        for _ in range(depth):
            x = F.relu(net.bn(net.conv(x, f"features.{index}", width, bias=True), f"features.{index + 1}"))
            index += 3
        x = F.max_pool2d(x, 2)
        index += 1
    return net.linear(x, "classifier", 10)


def resnet(net, x, blocks, bottleneck, imagenet=False, first=64):
    x = F.relu(net.bn(net.conv(x, "conv1", first, *((7, 2) if imagenet else (3, 1))), "bn1"))
    if imagenet:
        x = F.max_pool2d(x, 3, 2, 1)
    for stage, depth in enumerate(blocks):
        width = first << stage
        out = width * 4 if bottleneck else width
        for i in range(depth):
            p, s = f"layer{stage + 1}.{i}.", 2 if stage and i == 0 else 1
            y = x
            if bottleneck:
                y = F.relu(net.bn(net.conv(y, p + "conv1", width, 1), p + "bn1"))
                y = F.relu(net.bn(net.conv(y, p + "conv2", width, 3, s), p + "bn2"))
                y = net.bn(net.conv(y, p + "conv3", out, 1), p + "bn3")
            else:
                y = F.relu(net.bn(net.conv(y, p + "conv1", width, 3, s), p + "bn1"))
                y = net.bn(net.conv(y, p + "conv2", width), p + "bn2")
            if s != 1 or x.shape[1] != out:
                x = net.bn(net.conv(x, p + "downsample.0", out, 1, s), p + "downsample.1")
            x = F.relu(y + x)
    return net.linear(average(x), "fc", 10)


def preact_resnet(net, x, blocks, bottleneck, excites=False):
    x = net.conv(x, "conv1", 64)
    if excites:  # SENet-18
        x = F.relu(net.bn(x, "bn1"))
    for stage, depth in enumerate(blocks):
        width = 64 << stage
        out = width * 4 if bottleneck else width
        for i in range(depth):
            p, s = f"layer{stage + 1}.{i}.", 2 if stage and i == 0 else 1
            y = F.relu(net.bn(x, p + "bn1"))
            shortcut = net.conv(y, p + "downsample.0", out, 1, s) if s != 1 or x.shape[1] != out else x
            y = net.conv(y, p + "conv1", width, *((1, 1) if bottleneck else (3, s)))
            y = F.relu(net.bn(y, p + "bn2"))
            y = net.conv(y, p + "conv2", width, 3, s if bottleneck else 1)
            if bottleneck:
                y = net.conv(F.relu(net.bn(y, p + "bn3")), p + "conv3", out, 1)
            if excites:
                y = net.excite(y, p + "fc1", p + "fc2", width // 16, F.relu)
            x = y + shortcut
    return net.linear(average(x), "fc", 10)


def resnext(net, x, cardinality, width):
    x = F.relu(net.bn(net.conv(x, "conv1", 64, 1), "bn1"))
    for stage in range(3):
        group_width = cardinality * width << stage
        for i in range(3):
            p, s = f"layer{stage + 1}.{i}.", 2 if stage and i == 0 else 1
            y = F.relu(net.bn(net.conv(x, p + "conv1", group_width, 1), p + "bn1"))
            y = F.relu(net.bn(net.conv(y, p + "conv2", group_width, 3, s, cardinality), p + "bn2"))
            y = net.bn(net.conv(y, p + "conv3", 2 * group_width, 1), p + "bn3")
            if i == 0:
                x = net.bn(net.conv(x, p + "downsample.0", 2 * group_width, 1, s), p + "downsample.1")
            x = F.relu(y + x)
    return net.linear(average(x), "fc", 10)


def densenet(net, x, layers, growth):
    x = net.conv(x, "features.conv0", 2 * growth)
    for block, depth in enumerate(layers):
        for i in range(depth):
            p = f"features.denseblock{block + 1}.denselayer{i + 1}."
            y = net.conv(F.relu(net.bn(x, p + "norm1")), p + "conv1", 4 * growth, 1)
            y = net.conv(F.relu(net.bn(y, p + "norm2")), p + "conv2", growth)
            x = torch.cat([y, x], 1)
        if block + 1 < len(layers):
            p = f"features.transition{block + 1}."
            x = F.avg_pool2d(net.conv(F.relu(net.bn(x, p + "norm")), p + "conv", x.shape[1] // 2, 1), 2)
    return net.linear(average(F.relu(net.bn(x, "features.norm5"))), "classifier", 10)


def dpn(net, x, blocks):
    x = F.relu(net.bn(net.conv(x, "conv1", 64), "bn1"))
    for stage, (width, out, depth) in enumerate(((96, 256, 16), (192, 512, 32), (384, 1024, 24), (768, 2048, 128))):
        for i in range(blocks[stage]):
            p, s = f"layer{stage + 1}.{i}.", 2 if stage and i == 0 else 1
            y = F.relu(net.bn(net.conv(x, p + "conv1", width, 1), p + "bn1"))
            y = F.relu(net.bn(net.conv(y, p + "conv2", width, 3, s, 32), p + "bn2"))
            y = net.bn(net.conv(y, p + "conv3", out + depth, 1), p + "bn3")
            if i == 0:
                x = net.bn(net.conv(x, p + "downsample.0", out + depth, 1, s), p + "downsample.1")
            x = F.relu(torch.cat([x[:, :out] + y[:, :out], x[:, out:], y[:, out:]], 1))
    return net.linear(average(x), "fc", 10)


def googlenet(net, x):
    def unit(x, name, out, k):
        return F.relu(net.bn(net.conv(x, name + ".conv", out, k, bias=True), name + ".bn"))

    def inception(x, name, a, b, c, d, e, f):
        third = unit(unit(unit(x, name + ".branch3.0", d, 1), name + ".branch3.1", e, 3), name + ".branch3.2", e, 3)
        return torch.cat([unit(x, name + ".branch1", a, 1), unit(unit(x, name + ".branch2.0", b, 1), name + ".branch2.1", c, 3),
                          third, unit(F.max_pool2d(x, 3, 1, 1), name + ".branch4.1", f, 1)], 1)

    x = unit(x, "conv1", 192, 3)
    x = inception(x, "inception3a", 64, 96, 128, 16, 32, 32)
    x = F.max_pool2d(inception(x, "inception3b", 128, 128, 192, 32, 96, 64), 3, 2, 1)
    x = inception(x, "inception4a", 192, 96, 208, 16, 48, 64)
    x = inception(x, "inception4b", 160, 112, 224, 24, 64, 64)
    x = inception(x, "inception4c", 128, 128, 256, 24, 64, 64)
    x = inception(x, "inception4d", 112, 144, 288, 32, 64, 64)
    x = F.max_pool2d(inception(x, "inception4e", 256, 160, 320, 32, 128, 128), 3, 2, 1)
    x = inception(x, "inception5a", 256, 160, 320, 32, 128, 128)
    x = inception(x, "inception5b", 384, 192, 384, 48, 128, 128)
    return net.linear(average(x), "fc", 10)


def mobilenet(net, x):
    x = F.relu(net.bn(net.conv(x, "conv1", 32), "bn1"))
    for i, (out, s) in enumerate([(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)] + [(512, 1)] * 5 + [(1024, 2), (1024, 1)]):
        p, c = f"layers.{i}.", x.shape[1]
        x = F.relu(net.bn(net.conv(x, p + "conv1", c, 3, s, c), p + "bn1"))
        x = F.relu(net.bn(net.conv(x, p + "conv2", out, 1), p + "bn2"))
    return net.linear(average(x), "fc", 10)


def mobilenet_v2(net, x):
    x = F.relu(net.bn(net.conv(x, "conv1", 32), "bn1"))
    index = 0
    for t, out, n, first in ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for s in [first] + [1] * (n - 1):
            p, c = f"layers.{index}.", x.shape[1]
            index += 1
            y = F.relu(net.bn(net.conv(x, p + "conv1", t * c, 1), p + "bn1"))
            y = F.relu(net.bn(net.conv(y, p + "conv2", t * c, 3, s, t * c), p + "bn2"))
            y = net.bn(net.conv(y, p + "conv3", out, 1), p + "bn3")
            if s == 1:
                y = y + (net.bn(net.conv(x, p + "downsample.0", out, 1), p + "downsample.1") if c != out else x)
            x = y
    x = F.relu(net.bn(net.conv(x, "conv2", 1280, 1), "bn2"))
    return net.linear(average(x), "fc", 10)


def pnasnet(net, x, cell, width):
    def sep(x, name, out, k, s):
        return net.bn(net.conv(x, name + ".conv1", out, k, s, x.shape[1]), name + ".bn1")

    def pool(x, p, out, s):
        y = F.max_pool2d(x, 3, s, 1)
        return net.bn(net.conv(y, p + "conv1", out, 1), p + "bn1") if s == 2 else y

    def cell_a(x, p, out, s):
        return F.relu(sep(x, p + "sep_conv1", out, 7, s) + pool(x, p, out, s))

    def cell_b(x, p, out, s):
        left = F.relu(sep(x, p + "sep_conv1", out, 7, s) + sep(x, p + "sep_conv2", out, 3, s))
        right = F.relu(pool(x, p, out, s) + sep(x, p + "sep_conv3", out, 5, s))
        return F.relu(net.bn(net.conv(torch.cat([left, right], 1), p + "conv2", out, 1), p + "bn2"))

    run = {"a": cell_a, "b": cell_b}[cell]
    x = F.relu(net.bn(net.conv(x, "conv1", width), "bn1"))
    for layer in range(1, 6):
        if layer % 2 == 0:
            width *= 2
            x = run(x, f"layer{layer}.", width, 2)
        else:
            for i in range(6):
                x = run(x, f"layer{layer}.{i}.", width, 1)
    return net.linear(average(x), "fc", 10)


def regnet(net, x, depths, widths, group_width, excites):
    x = F.relu(net.bn(net.conv(x, "conv1", 64), "bn1"))
    for stage, (depth, width, first) in enumerate(zip(depths, widths, (1, 1, 2, 2))):
        for i in range(depth):
            p, s, c = f"layer{stage + 1}.{i}.", first if i == 0 else 1, x.shape[1]
            y = F.relu(net.bn(net.conv(x, p + "conv1", width, 1), p + "bn1"))
            y = F.relu(net.bn(net.conv(y, p + "conv2", width, 3, s, width // group_width), p + "bn2"))
            if excites:
                y = net.excite(y, p + "se.fc1", p + "se.fc2", c // 4, F.relu)
            y = net.bn(net.conv(y, p + "conv3", width, 1), p + "bn3")
            if s != 1 or c != width:
                x = net.bn(net.conv(x, p + "downsample.0", width, 1, s), p + "downsample.1")
            x = F.relu(y + x)
    return net.linear(average(x), "fc", 10)


def efficientnet(net, x):
    x = F.silu(net.bn(net.conv(x, "conv1", 32), "bn1"))
    index = 0
    for t, out, n, k, first in ((1, 16, 1, 3, 1), (6, 24, 2, 3, 2), (6, 40, 2, 5, 2), (6, 80, 3, 3, 2), (6, 112, 3, 5, 1),
                                (6, 192, 4, 5, 2), (6, 320, 1, 3, 1)):
        for s in [first] + [1] * (n - 1):
            p, c = f"layers.{index}.", x.shape[1]
            index += 1
            y = x
            if t > 1:
                y = F.silu(net.bn(net.conv(y, p + "conv1", t * c, 1), p + "bn1"))
            y = F.silu(net.bn(net.conv(y, p + "conv2", t * c, k, s, t * c), p + "bn2"))
            y = net.excite(y, p + "se.fc1", p + "se.fc2", c // 4, F.silu)
            y = net.bn(net.conv(y, p + "conv3", out, 1), p + "bn3")
            x = x + y if s == 1 and c == out else y
    return net.linear(net.dropout(average(x), 0.2), "fc", 10)


def shuffle(x, groups):
    n, c, h, w = x.shape
    return x.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet(net, x, groups, width):
    x = F.relu(net.bn(net.conv(x, "conv1", 24, 1), "bn1"))
    for stage, depth in enumerate((4, 8, 4)):
        for i in range(depth):
            p, c = f"layer{stage + 1}.{i}.", x.shape[1]
            s, made = (2, width - c) if i == 0 else (1, width)
            g = 1 if c == 24 else groups
            y = shuffle(F.relu(net.bn(net.conv(x, p + "conv1", made // 4, 1, 1, g), p + "bn1")), g)
            y = F.relu(net.bn(net.conv(y, p + "conv2", made // 4, 3, s, made // 4), p + "bn2"))
            y = net.bn(net.conv(y, p + "conv3", made, 1, 1, groups), p + "bn3")
            x = F.relu(torch.cat([y, F.avg_pool2d(x, 3, 2, 1)], 1) if s == 2 else y + x)
        width *= 2
    return net.linear(average(x), "fc", 10)


def shufflenet_v2(net, x, widths):
    def branch(x, p, out, s):
        x = F.relu(net.bn(net.conv(x, p + "0", out, 1), p + "1"))
        x = net.bn(net.conv(x, p + "3", out, 3, s, out), p + "4")
        return F.relu(net.bn(net.conv(x, p + "5", out, 1), p + "6"))

    x = F.relu(net.bn(net.conv(x, "conv1.0", 24), "conv1.1"))
    for stage, depth in enumerate((3, 7, 3)):
        p, half, c = f"stage{stage + 2}.", widths[stage] // 2, x.shape[1]
        left = net.bn(net.conv(x, p + "0.branch1.0", c, 3, 2, c), p + "0.branch1.1")
        left = F.relu(net.bn(net.conv(left, p + "0.branch1.2", half, 1), p + "0.branch1.3"))
        x = shuffle(torch.cat([left, branch(x, p + "0.branch2.", half, 2)], 1), 2)
        for i in range(1, depth + 1):
            x = shuffle(torch.cat([x[:, :half], branch(x[:, half:], f"{p}{i}.branch2.", half, 1)], 1), 2)
    x = F.relu(net.bn(net.conv(x, "conv5.0", widths[3], 1), "conv5.1"))
    return net.linear(average(x), "fc", 10)


# Where windows of a max pool have two largest values that are one in float32, gradients take another way: the networks with
# many of them see small images, of the first draw with which PyTorch's float32 agrees with float64. A larger spread loses
# less where means are subtracted again.
DRAWS = {"googlenet": 1, "mobilenet": 2, "pnasnet_a": 7}
SPREADS = {"vgg11": 0.35, "mobilenet": 0.25, "efficientnet_b0": 0.35, "googlenet": 0.35, "pnasnet_a": 0.35, "pnasnet_b": 0.35, "densenet_cifar": 0.35}

# Name, side of the images, network.
NETWORKS = [
    ("vgg11", 32, lambda net, x: vgg(net, x, (1, 1, 2, 2, 2))),
    ("resnet18", 32, lambda net, x: resnet(net, x, (2, 2, 2, 2), False)),
    ("resnet50", 32, lambda net, x: resnet(net, x, (3, 4, 6, 3), True)),
    ("resnet18_imagenet", 96, lambda net, x: resnet(net, x, (2, 2, 2, 2), False, True)),
    ("resnet50_imagenet", 96, lambda net, x: resnet(net, x, (3, 4, 6, 3), True, True)),
    ("resnet8", 32, lambda net, x: resnet(net, x, (1, 1, 1), False, first=16)),
    ("preactresnet18", 32, lambda net, x: preact_resnet(net, x, (2, 2, 2, 2), False)),
    ("preactresnet50", 32, lambda net, x: preact_resnet(net, x, (3, 4, 6, 3), True)),
    ("resnext29_32x4d", 32, lambda net, x: resnext(net, x, 32, 4)),
    ("senet18", 32, lambda net, x: preact_resnet(net, x, (2, 2, 2, 2), False, True)),
    ("densenet_cifar", 32, lambda net, x: densenet(net, x, (6, 12, 24, 16), 12)),
    ("dpn26", 32, lambda net, x: dpn(net, x, (2, 2, 2, 2))),
    ("googlenet", 8, googlenet),
    ("mobilenet", 32, mobilenet),
    ("mobilenetv2", 32, mobilenet_v2),
    ("pnasnet_a", 8, lambda net, x: pnasnet(net, x, "a", 44)),
    ("pnasnet_b", 8, lambda net, x: pnasnet(net, x, "b", 32)),
    ("regnetx_200mf", 32, lambda net, x: regnet(net, x, (1, 1, 4, 7), (24, 56, 152, 368), 8, False)),
    ("regnety_400mf", 32, lambda net, x: regnet(net, x, (1, 2, 7, 12), (32, 64, 160, 384), 16, True)),
    ("efficientnet_b0", 32, efficientnet),
    ("shufflenet_g2", 32, lambda net, x: shufflenet(net, x, 2, 200)),
    ("shufflenet_g3", 32, lambda net, x: shufflenet(net, x, 3, 240)),
    ("shufflenetv2_0.5", 32, lambda net, x: shufflenet_v2(net, x, (48, 96, 192, 1024))),
    ("shufflenetv2_1", 32, lambda net, x: shufflenet_v2(net, x, (116, 232, 464, 1024))),
]


def digest(name, tensor):
    """Norm and four projections on signs."""
    values = tensor.detach().double().flatten().numpy()
    bits = words(len(values), SIGNS, name_hash(name))
    signs = [1.0 - 2.0 * ((bits >> np.uint64(k)) & np.uint64(1)).astype(np.float64) for k in range(4)]
    return [np.sqrt(values @ values)] + [float(values @ s) for s in signs]


def run(build, side, draw, spread):
    net = Net(spread)
    x = torch.tensor(2 * uniform(BATCH * side * side * 3, IMAGES + draw, side).reshape(BATCH, side, side, 3)).permute(0, 3, 1, 2)
    labels = torch.arange(BATCH) * 3 % 10
    logits = build(net, x)
    loss = F.cross_entropy(logits, labels, reduction="sum")
    loss.backward()
    statistics = {}
    for name, (mean, var) in net.statistics.items():
        statistics[name + ".running_mean"], statistics[name + ".running_var"] = mean, var
    statistics = {name: value.clone() for name, value in statistics.items()}
    net.training, net.dropouts = False, 0
    with torch.no_grad():
        evaluated = build(net, x)
    gradients = [digest(name, net.parameters[name].grad) for name in sorted(net.parameters)]
    return {"images": torch.tensor([side, draw], dtype=torch.int32), "spread": torch.tensor([spread], dtype=torch.float64),
            "logits": logits.detach().float(), "loss": loss.detach().reshape(1), "evaluated": evaluated.float(),
            "gradients": torch.tensor(gradients, dtype=torch.float32),
            "statistics": torch.tensor([digest(name, statistics[name]) for name in sorted(statistics)], dtype=torch.float32)}


def main():
    out = {}
    for name, side, build in NETWORKS:
        started = time.time()
        for key, value in run(build, side, DRAWS.get(name, 0), SPREADS.get(name, 0.2)).items():
            out[f"{name}.{key}"] = value.contiguous()
        print(f"{name}: {time.time() - started:.1f} s, loss {out[name + '.loss'].item():.6f}", file=sys.stderr)
    save_file(out, str(pathlib.Path(__file__).parent / "cifar.safetensors"))


if __name__ == "__main__":
    main()
