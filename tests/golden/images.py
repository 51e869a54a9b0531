#!/usr/bin/env python3
"""Writes images.safetensors: what PyTorch computes in float64, for tests/unit/kernels/images_golden_test.cc.

Run it with PyTorch and safetensors installed; it writes beside itself. Activations are stored channels-last, weights as
PyTorch holds them, results rounded to float32. Every case NAME has its inputs and results as NAME.<tensor>.
"""
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
out = {}


def store(case, **tensors):
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        tensor = tensor.float() if tensor.is_floating_point() else tensor.int()
        out[f"{case}.{name}"] = tensor.contiguous().clone()


def nhwc(x):
    return x.detach().permute(0, 2, 3, 1)


def rand(*shape):
    """Numbers that float32 can hold, in float64."""
    return torch.randn(*shape).double()


def conv(case, n, c, h, w, k, kernel, stride, groups):
    pad = kernel // 2
    x = rand(n, c, h, w).requires_grad_()
    weight = rand(k, c // groups, kernel, kernel).requires_grad_()
    y = F.conv2d(x, weight, None, stride, pad, 1, groups)
    dy = rand(*y.shape)
    y.backward(dy)
    store(case, x=nhwc(x), weight=weight, y=nhwc(y), dy=nhwc(dy), dx=nhwc(x.grad), dweight=weight.grad,
          parameters=torch.tensor([kernel, kernel, stride, stride, pad, pad, groups]))


def avg_pool(case, n, c, h, w, kernel, stride, pad):
    x = rand(n, c, h, w).requires_grad_()
    y = F.avg_pool2d(x, kernel, stride, pad)
    dy = rand(*y.shape)
    y.backward(dy)
    store(case, x=nhwc(x), y=nhwc(y), dy=nhwc(dy), dx=nhwc(x.grad), parameters=torch.tensor([*kernel, *stride, *pad]))


def shuffle(case, n, c, h, w, groups):
    x = rand(n, c, h, w).requires_grad_()
    y = F.channel_shuffle(x, groups)
    dy = rand(*y.shape)
    # Its gradient by the definition: PyTorch has none for this function on the CPU.
    z = x.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)
    assert torch.equal(y, z)
    z.backward(dy)
    store(case, x=nhwc(x), y=nhwc(y), dy=nhwc(dy), dx=nhwc(x.grad), parameters=torch.tensor([groups]))


def concatenation(case, n, c1, c2, h, w):
    """cat([a, b]), of which the last c2 channels are used twice: gradients add up."""
    a, b = rand(n, c1, h, w).requires_grad_(), rand(n, c2, h, w).requires_grad_()
    y = torch.cat([a, b], 1)
    dy = rand(*y.shape)
    y.backward(dy, retain_graph=True)
    dy2 = rand(n, c2, h, w)
    y[:, c1:].backward(dy2)
    store(case, a=nhwc(a), b=nhwc(b), y=nhwc(y), dy=nhwc(dy), dy2=nhwc(dy2), da=nhwc(a.grad), db=nhwc(b.grad))


def squeeze_and_excitation(case, n, c, h, w):
    """Global average pool, 1x1 convolution with bias, sigmoid, scale, all with PyTorch's layers."""
    x = rand(n, c, h, w).requires_grad_()
    weight, bias = (rand(c, c, 1, 1) * 0.3).requires_grad_(), rand(c).requires_grad_()
    pooled = F.adaptive_avg_pool2d(x, 1)
    before = F.conv2d(pooled, weight, bias)
    s = torch.sigmoid(before)
    y = x * s
    dy = rand(*y.shape)
    y.backward(dy)
    store(case, x=nhwc(x), weight=weight, bias=bias, s=nhwc(s), y=nhwc(y), dy=nhwc(dy), dx=nhwc(x.grad),
          dweight=weight.grad, dbias=bias.grad)


def residual(case, count):
    a, b = rand(count).requires_grad_(), rand(count).requires_grad_()
    y = F.relu(a + b)
    dy = rand(count)
    y.backward(dy)
    store(case, a=a, b=b, y=y, dy=dy, dx=a.grad)


def activation(case, function):
    x = torch.cat([torch.tensor([0.0, -0.0, 1e-6, -1e-6, 20.0, -20.0, 80.0, -80.0]), torch.linspace(-7, 7, 93)])
    x = x.double().requires_grad_()
    y = function(x)
    dy = rand(*x.shape)
    y.backward(dy)
    store(case, x=x, y=y, dy=dy, dx=x.grad)


torch.manual_seed(20241130)
conv("conv_depthwise_3", 1, 7, 7, 6, 7, 3, 2, 7)
conv("conv_depthwise_5", 1, 8, 7, 6, 8, 5, 1, 8)
conv("conv_depthwise_7", 1, 5, 9, 8, 5, 7, 2, 5)
conv("conv_groups_1", 2, 12, 3, 4, 18, 1, 1, 3)
conv("conv_groups_8", 1, 32, 4, 5, 32, 3, 2, 8)
conv("conv_multiplier_7", 1, 3, 7, 7, 6, 7, 1, 3)
avg_pool("avg_2x2", 2, 5, 6, 4, (2, 2), (2, 2), (0, 0))
avg_pool("avg_padding", 2, 7, 7, 6, (3, 3), (2, 2), (1, 1))
avg_pool("avg_rest", 1, 17, 7, 5, (2, 3), (3, 2), (1, 0))
avg_pool("avg_global", 2, 19, 5, 4, (5, 4), (1, 1), (0, 0))
shuffle("shuffle_2", 2, 10, 3, 2, 2)
shuffle("shuffle_3", 1, 24, 2, 3, 3)
shuffle("shuffle_4", 2, 20, 2, 2, 4)
concatenation("concatenation", 2, 5, 8, 3, 2)
squeeze_and_excitation("squeeze", 2, 11, 4, 5)
residual("residual", 67)
activation("sigmoid", torch.sigmoid)
activation("swish", F.silu)
save_file(out, HERE / "images.safetensors")
