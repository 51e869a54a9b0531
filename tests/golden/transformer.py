#!/usr/bin/env python3
"""Writes transformer.safetensors: what PyTorch computes in float64, for tests/unit/kernels.

Run it with PyTorch and safetensors installed; it writes beside itself. Every case NAME has its inputs and results as
NAME.<tensor>; sizes are odd on purpose. Results are rounded to float32; of 16-bit floats the bits are stored as int32.
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


def rand(*shape):
    """Numbers that float32 can hold, in float64."""
    return torch.randn(*shape).double()


def activation(case, function):
    special = torch.tensor([0.0, -0.0, 1e-6, -1e-6, 1e-3, 0.6249, 0.6251, -0.625, 5.0, -5.0, 9.0, -9.0, 13.0, -13.0, 30.0,
                            -30.0]).double()
    x = torch.cat([special, torch.linspace(-7, 7, 285).float().double()]).requires_grad_()
    y = function(x)
    dy = rand(*x.shape)
    y.backward(dy)
    store(case, x=x, y=y, dy=dy, dx=x.grad)


def layer_norm(case, n, seq, width, residual):
    x = rand(n, seq, width).requires_grad_()
    added = (rand(n, seq, width) * 2 + 1).requires_grad_()
    gamma, beta = rand(width).requires_grad_(), rand(width).requires_grad_()
    total = x + added if residual else x
    total.retain_grad()
    y = F.layer_norm(total, (width,), gamma, beta, 1e-12)
    dy = rand(*y.shape)
    y.backward(dy)
    store(case, x=x, gamma=gamma, beta=beta, y=y, dy=dy, dsum=x.grad, dgamma=gamma.grad, dbeta=beta.grad,
          **({"residual": added} if residual else {}))


def attention(case, n, seq, heads, dim, lengths):
    qkv = rand(n, seq, 3, heads, dim).requires_grad_()
    mask = torch.arange(seq)[None] < torch.tensor(lengths)[:, None]
    mask[0, 1] = False  # a hole
    q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
    context = context.transpose(1, 2).reshape(n, seq, heads * dim)
    scores = (q @ k.transpose(2, 3) / dim**0.5).masked_fill(~mask[:, None, None, :], float("-inf"))
    dcontext = rand(n, seq, heads * dim)
    context.backward(dcontext)
    store(case, qkv=qkv, mask=mask, context=context, log_sum_exp=scores.logsumexp(3), dcontext=dcontext, dqkv=qkv.grad,
          parameters=torch.tensor([n, seq, heads, dim]))


def embedding(case, n, seq, words, width):
    word, position, kind = (rand(rows, width).requires_grad_() for rows in (words, seq + 2, 2))
    ids, types = torch.randint(0, words, (n, seq)), torch.randint(0, 2, (n, seq))
    y = F.embedding(ids, word) + position[:seq] + F.embedding(types, kind)
    dy = rand(*y.shape)
    y.backward(dy)
    store(case, word=word, position=position, type=kind, ids=ids, types=types, y=y, dy=dy, dword=word.grad,
          dposition=position.grad, dtype=kind.grad)


def casts():
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 65504, 65519.99, 65520, -65520, 3.4e38, 1e-40, 2.0**-14,
                            2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 2.0**-14 * 0.9999, 1 + 2.0**-8, 1 + 3 * 2.0**-8,
                            1 + 2.0**-11, 1 + 3 * 2.0**-11])
    x = torch.cat([special, torch.randn(100), torch.randn(100) * 1e-5, torch.randn(50) * 1e4])
    half = torch.arange(0, 65536, 7).to(torch.int32).to(torch.int16).view(torch.float16)
    half = half[~half.isnan()]
    store("cast", x=x, bf16=x.bfloat16().view(torch.int16), f16=x.half().view(torch.int16), half=half.view(torch.int16),
          half_as_f32=half.float())


torch.manual_seed(20240301)
activation("gelu", F.gelu)
activation("swish", F.silu)
activation("tanh", torch.tanh)
activation("relu", F.relu)
layer_norm("layer_norm", 3, 7, 33, True)
layer_norm("layer_norm_plain", 2, 3, 130, False)
attention("attention", 3, 7, 3, 5, [7, 4, 1])
attention("attention_tiles", 1, 90, 2, 16, [83])
embedding("embedding", 3, 5, 11, 33)
casts()
save_file(out, HERE / "transformer.safetensors")
