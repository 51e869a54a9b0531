#!/usr/bin/env python3
"""Writes kernels.safetensors and optimizers.safetensors: what PyTorch computes, for tests/unit/kernels.

Run it with PyTorch and safetensors installed; it writes beside itself. Activations are stored channels-last and weights
as PyTorch holds them. Every case NAME has its inputs and results as NAME.<tensor>.
"""
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
out = {}


def nhwc(x):
    return x.detach().permute(0, 2, 3, 1).contiguous()


def store(case, **tensors):
    for name, tensor in tensors.items():
        out[f"{case}.{name}"] = tensor.detach().contiguous().clone()


def rand(*shape):
    return torch.randn(*shape)


def conv(case, n, c, h, w, k, kernel, stride, pad, groups, relu):
    x = rand(n, c, h, w).requires_grad_()
    weight = (rand(k, c // groups, *kernel) * 0.3).requires_grad_()
    bias = rand(k).requires_grad_()
    y = F.conv2d(x, weight, bias, stride, pad, 1, groups)
    y = F.relu(y) if relu else y
    dy = rand(*y.shape)
    y.backward(dy)
    store(case, x=nhwc(x), weight=weight, bias=bias, y=nhwc(y), dy=nhwc(dy), dx=nhwc(x.grad), dweight=weight.grad,
          dbias=bias.grad, parameters=torch.tensor([*kernel, *stride, *pad, groups, int(relu)], dtype=torch.int32))


def pool(case, n, c, h, w, kernel, stride, pad):
    # Few different values, so that windows have ties.
    x = torch.randint(-3, 4, (n, c, h, w)).float().requires_grad_()
    y = F.max_pool2d(x, kernel, stride, pad)
    dy = rand(*y.shape)
    y.backward(dy)
    store(case, x=nhwc(x), y=nhwc(y), dy=nhwc(dy), dx=nhwc(x.grad),
          parameters=torch.tensor([*kernel, *stride, *pad], dtype=torch.int32))


def linear(case, n, inputs, outputs):
    x = rand(n, inputs).requires_grad_()
    weight = (rand(outputs, inputs) * 0.3).requires_grad_()
    bias = rand(outputs).requires_grad_()
    y = F.relu(F.linear(x, weight, bias))
    dy = rand(*y.shape)
    y.backward(dy)
    store(case, x=x, weight=weight, bias=bias, y=y, dy=dy, dx=x.grad, dweight=weight.grad, dbias=bias.grad)


def nll(case, n, classes, factor):
    logits = (rand(n, classes) * factor).requires_grad_()
    labels = torch.randint(0, classes, (n,))
    labels[1] = -1
    loss = F.nll_loss(F.log_softmax(logits, 1), labels, ignore_index=-1, reduction="sum")
    loss.backward()
    counted = labels >= 0
    top3 = (logits.topk(min(3, classes), 1).indices == labels[:, None]).any(1) & counted
    store(case, logits=logits, labels=labels.int(), dlogits=logits.grad,
          sums=torch.stack([loss.detach().double(), counted.sum().double(),
                            (logits.argmax(1) == labels).sum().double(), top3.sum().double()]))


torch.manual_seed(20240229)
conv("conv_plain", 2, 3, 7, 9, 5, (3, 3), (1, 1), (0, 0), 1, True)
conv("conv_stride_pad", 2, 4, 9, 8, 6, (5, 3), (2, 3), (2, 1), 1, False)
conv("conv_groups", 2, 6, 7, 7, 9, (3, 3), (1, 2), (1, 1), 3, True)
conv("conv_depthwise", 2, 5, 8, 8, 5, (3, 3), (1, 1), (1, 1), 5, False)
conv("conv_pointwise", 3, 17, 4, 5, 19, (1, 1), (2, 2), (0, 0), 1, True)
pool("pool_2x2", 2, 5, 8, 6, (2, 2), (2, 2), (0, 0))
pool("pool_overlap", 2, 3, 9, 11, (3, 3), (2, 2), (1, 1))
pool("pool_rest", 1, 17, 7, 5, (2, 3), (3, 2), (1, 0))
linear("linear", 7, 37, 13)
linear("linear_one", 1, 600, 1)
nll("nll", 9, 10, 3.0)
nll("nll_large", 5, 3, 200.0)
save_file(out, HERE / "kernels.safetensors")

# Ten steps of each optimizer on 41 parameters; step t is given gradients[t] times 0.5, as Motley's scale does.
out = {}
STEPS, COUNT, SCALE = 10, 41, 0.5
start = rand(COUNT)
gradients = rand(STEPS, COUNT)
store("common", start=start, gradients=gradients)


def optimizer(case, make, states):
    p = start.clone().requires_grad_()
    opt = make([p])
    for t in range(STEPS):
        p.grad = gradients[t] * SCALE
        opt.step()
    store(case, param=p, **{name: opt.state[p][key] for name, key in states.items()})


SGD, ADADELTA = torch.optim.SGD, torch.optim.Adadelta
momentum = {"momentum": "momentum_buffer"}
adam = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
adadelta = {"square_avg": "square_avg", "acc_delta": "acc_delta"}
optimizer("sgd", lambda p: SGD(p, lr=0.1), {})
optimizer("sgd_decay", lambda p: SGD(p, lr=0.1, weight_decay=0.05), {})
optimizer("sgd_momentum", lambda p: SGD(p, lr=0.1, momentum=0.9), momentum)
optimizer("sgd_nesterov", lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.05), momentum)
optimizer("sgd_dampening", lambda p: SGD(p, lr=0.1, momentum=0.8, dampening=0.3), momentum)
optimizer("adam", lambda p: torch.optim.Adam(p, lr=0.01), adam)
optimizer("adam_decay", lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1), adam)
optimizer("adamw", lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1), adam)
optimizer("adadelta", lambda p: ADADELTA(p, lr=1.0), adadelta)
optimizer("adadelta_decay", lambda p: ADADELTA(p, lr=0.7, rho=0.95, eps=1e-5, weight_decay=0.1), adadelta)
save_file(out, HERE / "optimizers.safetensors")
