#!/usr/bin/env python3
"""Writes bert.safetensors: a tiny BertForPreTraining of Hugging Face in float64, dropout 0.

Inputs, parameters, both losses and every gradient for each hidden_act, and the parameters after ten steps of
torch.optim.AdamW, of LAMB and of HetSeq's Adam on the same batch. LAMB is written out here from algorithm 2 of the paper (You et al.,
ICLR 2020) with bias correction; biases and normalisations are not scaled by the trust ratio.
"""
import os

import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForPreTraining

VOCABULARY, SEQ, SAMPLES = 37, 11, 3
LR, BETAS, EPS, DECAY, STEPS = 1e-3, (0.9, 0.999), 1e-6, 0.01, 10
HETSEQ_EPS = 1e-4


def config(activation):
    return BertConfig(vocab_size=VOCABULARY, hidden_size=12, num_hidden_layers=2, num_attention_heads=3,
                      intermediate_size=20, hidden_act=activation, hidden_dropout_prob=0.0,
                      attention_probs_dropout_prob=0.0, max_position_embeddings=14, type_vocab_size=2,
                      layer_norm_eps=1e-12, initializer_range=0.2)


def inputs():
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(1, VOCABULARY, (SAMPLES, SEQ), generator=generator)
    mask = torch.ones(SAMPLES, SEQ, dtype=torch.long)
    types = torch.zeros(SAMPLES, SEQ, dtype=torch.long)
    for sample, (length, second) in enumerate([(11, 6), (8, 5), (5, 3)]):
        mask[sample, length:] = 0
        ids[sample, length:] = 0
        types[sample, second:length] = 1
    labels = torch.full((SAMPLES, SEQ), -100)
    for sample, position in [(0, 2), (0, 7), (0, 9), (1, 1), (2, 3)]:
        labels[sample, position] = int(torch.randint(1, VOCABULARY, (1,), generator=generator))
    return ids, mask, types, labels, torch.tensor([1, 0, 1])


def losses(model, batch):
    ids, mask, types, labels, following = batch
    out = model(input_ids=ids, attention_mask=mask, token_type_ids=types)
    masked = torch.nn.functional.cross_entropy(out.prediction_logits.view(-1, VOCABULARY), labels.view(-1))
    return masked, torch.nn.functional.cross_entropy(out.seq_relationship_logits, following)


def named(model):
    return {name: parameter for name, parameter in model.named_parameters() if not name.endswith("decoder.bias")}


def make(activation, start=None):
    torch.manual_seed(3)
    model = BertForPreTraining(config(activation)).double().eval()
    with torch.no_grad():
        for name, parameter in named(model).items():
            if start is not None:
                parameter.copy_(start[name])
            elif parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64))
        for parameter in model.parameters():  # float32 holds the same values
            parameter.copy_(parameter.float().double())
    return model


def decays(name):
    return not (name.endswith("bias") or "LayerNorm" in name)


def adamw(model):
    with_decay = [p for n, p in named(model).items() if decays(n)]
    without = [p for n, p in named(model).items() if not decays(n)]
    return torch.optim.AdamW([{"params": with_decay, "weight_decay": DECAY}, {"params": without, "weight_decay": 0.0}],
                             lr=LR, betas=BETAS, eps=EPS).step


def with_moments(model, update):
    """A step that brings both moments of each gradient up to date and calls update(name, parameter, m, v, count)."""
    state = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in named(model).items()}
    count = 0

    @torch.no_grad()
    def step():
        nonlocal count
        count += 1
        for name, p in named(model).items():
            m, v = state[name]
            m.mul_(BETAS[0]).add_((1 - BETAS[0]) * p.grad)
            v.mul_(BETAS[1]).add_((1 - BETAS[1]) * p.grad ** 2)
            update(name, p, m, v, count)
    return step


def hetseq_adam(model):
    """HetSeq's optim.Adam: decay off all weights, eps beside the uncorrected root; a large eps tells it from PyTorch's."""
    def update(name, p, m, v, count):
        rate = LR * (1 - BETAS[1] ** count) ** 0.5 / (1 - BETAS[0] ** count)
        p.mul_(1 - DECAY * LR)
        p.sub_(rate * m / (v.sqrt() + HETSEQ_EPS))
    return with_moments(model, update)


def lamb(model, decay=DECAY):
    def update(name, p, m, v, count):
        direction = m / (1 - BETAS[0] ** count) / ((v / (1 - BETAS[1] ** count)).sqrt() + EPS)
        ratio = 1.0
        if decays(name):
            direction = direction + decay * p
            ratio = float(p.norm() / direction.norm()) if p.norm() > 0 and direction.norm() > 0 else 1.0
        p.sub_(LR * ratio * direction)
    return with_moments(model, update)


def train(start, batch, optimizer):
    model = make("gelu", start)
    step = optimizer(model)
    for _ in range(STEPS):
        model.zero_grad()
        sum(losses(model, batch)).backward()
        step()
    return {name: parameter.detach() for name, parameter in named(model).items()}


def main():
    batch = inputs()
    out = {}
    for name, tensor in zip(["ids", "mask", "types", "labels", "next_sentence"], batch):
        out["input/" + name] = tensor.int()
    start = {name: parameter.detach().clone() for name, parameter in named(make("gelu")).items()}
    for activation in ["gelu", "relu", "silu"]:
        model = make(activation, start)
        masked, following = losses(model, batch)
        (masked + following).backward()
        out[activation + "/losses"] = torch.tensor([masked.item(), following.item()], dtype=torch.float64)
        for name, parameter in named(model).items():
            out[activation + "/gradient/" + name] = parameter.grad.float()
    for name, tensor in start.items():
        out["start/" + name] = tensor.float()
    for label, optimizer in [("adamw", adamw), ("lamb", lamb), ("adam", hetseq_adam),
                             ("lamb_without_decay", lambda model: lamb(model, 0.0))]:
        for name, tensor in train(start, batch, optimizer).items():
            out[label + "/" + name] = tensor.float()
    out = {name: tensor.contiguous() for name, tensor in out.items()}
    save_file(out, os.path.join(os.path.dirname(os.path.abspath(__file__)), "bert.safetensors"))


if __name__ == "__main__":
    main()
