#!/usr/bin/env python3
"""Writes exchange/, a tiny BertForPreTraining as Hugging Face saves it, and exchange.safetensors: inputs, the logits
that Hugging Face computes for them in float64, and the parameters as torch casts them to float16 and bfloat16.

The last position, which no input reaches, holds numbers that are hard to round.
"""
import os

import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForPreTraining

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "Tower", "of", "Babel", "##s", "was", "tall"]
SEQ, POSITIONS = 7, 9
# Halfway cases with even and odd neighbours, the edge of what float16 holds, its subnormals, and zeros.
HARD = [1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 65504.0, 65519.0, -65519.996, 2**-14 - 2**-26,
        2**-24, 2**-25, 3 * 2**-25, -(2**-26), 2.0**-120, -0.0, 1e-7, -3.3e-5]


def config():
    return BertConfig(vocab_size=len(TOKENS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                      intermediate_size=10, hidden_act="gelu", max_position_embeddings=POSITIONS,
                      type_vocab_size=2, initializer_range=0.3)


def make():
    torch.manual_seed(5)
    model = BertForPreTraining(config()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape))
        model.bert.embeddings.position_embeddings.weight[-1] = torch.tensor(HARD)
    return model


def inputs():
    generator = torch.Generator().manual_seed(11)
    ids = torch.randint(5, len(TOKENS), (3, SEQ), generator=generator)
    mask, types = torch.ones(3, SEQ, dtype=torch.long), torch.zeros(3, SEQ, dtype=torch.long)
    for sample, (length, second) in enumerate([(7, 4), (5, 2), (6, 6)]):
        ids[sample, 0], ids[sample, length:], mask[sample, length:] = 2, 0, 0
        types[sample, second:length] = 1
    return ids, mask, types


def main():
    model = make()
    model.save_pretrained(os.path.join(HERE, "exchange"))
    with open(os.path.join(HERE, "exchange", "vocab.txt"), "w", encoding="utf-8") as out:
        out.write("".join(token + "\n" for token in TOKENS))
    ids, mask, types = inputs()
    tensors = {"ids": ids.int(), "mask": mask.int(), "types": types.int()}
    for name, parameter in model.named_parameters():
        if not name.endswith("decoder.bias"):  # the same as predictions.bias
            tensors["fp16/" + name] = parameter.detach().half()
            tensors["bf16/" + name] = parameter.detach().bfloat16()
    with torch.no_grad():
        out = model.double()(input_ids=ids, attention_mask=mask, token_type_ids=types)
    tensors["prediction_logits"], tensors["nsp_logits"] = out.prediction_logits, out.seq_relationship_logits
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, os.path.join(HERE, "exchange.safetensors"))


if __name__ == "__main__":
    main()
