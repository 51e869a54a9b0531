#!/usr/bin/env python3
"""Writes batch_norm.safetensors: what PyTorch computes in float64, for tests/unit/kernels/batch_norm_test.cc.

Run it with PyTorch and safetensors installed; it writes beside itself. Tensors are channels-last, and hold float32
values. Every case NAME has its inputs and results as NAME.<tensor>; NAME.numbers are momentum, eps, the activation
(0 none, 1 relu, 2 swish) and whether there is a residual.
"""
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
ACTIVATIONS = [lambda z: z, F.relu, F.silu]
out = {}


def last(x):
    return x.detach().movedim(1, -1)


def case(name, shape, activation, residual, momentum=0.1, eps=1e-5, mean=0.5, deviation=1.5):
    c = shape[1]
    rand = lambda *s: torch.randn(*s).double()
    x = (mean + deviation * torch.randn(*shape)).double().requires_grad_()
    gamma = (1 + 0.3 * rand(c)).float().double().requires_grad_()
    beta = (0.3 * rand(c)).float().double().requires_grad_()
    added = rand(*shape).requires_grad_() if residual else None
    running_mean = rand(c).float().double()
    running_var = (0.5 + rand(c).abs()).float().double()
    before = {"running_mean": running_mean.clone(), "running_var": running_var.clone()}

    def forward(training):
        z = F.batch_norm(x, running_mean, running_var, gamma, beta, training, momentum, eps)
        return ACTIVATIONS[activation](z + added if residual else z)

    evaluated = forward(False)
    y = forward(True)
    dy = rand(*shape)
    y.backward(dy)
    tensors = {"x": last(x), "gamma": gamma, "beta": beta, "dy": last(dy), "y": last(y), "evaluated": last(evaluated),
               "dx": last(x.grad), "dgamma": gamma.grad, "dbeta": beta.grad, "moved_mean": running_mean,
               "moved_var": running_var, "numbers": torch.tensor([momentum, eps, activation, residual]), **before}
    if residual:
        tensors |= {"residual": last(added), "dresidual": last(added.grad)}
    for key, tensor in tensors.items():
        out[f"{name}.{key}"] = tensor.detach().float().contiguous().clone()


torch.manual_seed(20240301)
case("plain", (4, 5, 3, 7), 0, False)
case("relu", (3, 16, 5, 4), 1, False, momentum=0.3)
case("swish", (2, 24, 4, 3), 2, False, eps=1e-3, momentum=0.01)
case("residual", (2, 7, 4, 5), 0, True)
case("residual_relu", (3, 8, 5, 3), 1, True)
case("rows", (33, 19), 1, False)
case("far_mean", (5, 3, 6, 6), 0, False, mean=1000, deviation=1)
save_file(out, HERE / "batch_norm.safetensors")
