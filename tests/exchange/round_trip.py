#!/usr/bin/env python3
"""Takes models from Hugging Face's transformers through `motley import` and `motley export` and back.

Needs torch and transformers, which CI does not have: tests/golden/exchange.py and its test stand in for this there.
For each model: it is imported and exported in each --dtype; transformers loads every export, and the checkpoint
itself, with no parameter missing, unexpected or of another shape; with fp32 the outputs are those of the original,
and with fp16 and bf16 the parameters are the original's as torch casts them. Prints a line per model; ends with 1
when something differs.

usage: round_trip.py MOTLEY [--checkpoint DIR ...]   (DIR: checkpoints of `motley train` that must load as well)
"""
import argparse
import os
import subprocess
import sys
import tempfile

import torch
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, BertModel, BertTokenizer

TOLERANCE = 1e-5
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "tower", "of", "##s", "babel", "was", "built"]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr}")


def load(directory, dtype=None):
    model, info = BertForPreTraining.from_pretrained(directory, output_loading_info=True, dtype=dtype or "auto")
    for kind, names in info.items():
        if names:
            sys.exit(f"{directory}: transformers tells of {kind}: {names}")
    return model.eval()


def check_tokenizer(directory, words):
    tokenizer = BertTokenizer.from_pretrained(directory)
    ids = tokenizer("a tower of babel")["input_ids"]
    if ids != [words.index(w) for w in ["[CLS]", "a", "tower", "of", "babel", "[SEP]"]]:
        sys.exit(f"{directory}: the tokenizer gives {ids}")


def batch(vocabulary, seq):
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(5, vocabulary, (4, seq), generator=generator)
    mask = (torch.arange(seq)[None] < torch.tensor([seq, seq - 3, seq // 2, 5])[:, None]).long()
    types = (torch.arange(seq)[None] > 2).long().repeat(4, 1) * mask
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": types}


def difference(original, exported, inputs):
    """The largest between the outputs that the original has: logits, or hidden states and pooled output."""
    with torch.no_grad():
        ours = exported(**inputs)
        if isinstance(original, BertForPreTraining):
            theirs = original(**inputs)
            pairs = [(theirs.prediction_logits, ours.prediction_logits),
                     (theirs.seq_relationship_logits, ours.seq_relationship_logits)]
        elif isinstance(original, BertForMaskedLM):
            pairs = [(original(**inputs).logits, ours.prediction_logits)]
        else:
            a, b = original(**inputs), exported.bert(**inputs)
            pairs = [(a.last_hidden_state, b.last_hidden_state), (a.pooler_output, b.pooler_output)]
    return max(float((a - b).abs().max()) for a, b in pairs)


def casts_agree(original, exported, dtype):
    theirs, ours = original.state_dict(), exported.state_dict()
    prefix = "bert." if type(original) is BertModel else ""
    return all(torch.equal(value.to(dtype), ours[prefix + name]) for name, value in theirs.items())


def check_model(motley, kind, config, directory):
    torch.manual_seed(1)
    original = kind(config).eval()
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    source, saved = os.path.join(directory, "source"), os.path.join(directory, "run")
    original.save_pretrained(source, max_shard_size="40KB" if kind is BertForMaskedLM else "5GB")
    with open(os.path.join(source, "vocab.txt"), "w", encoding="utf-8") as out:
        out.write("".join(word + "\n" for word in WORDS))
    run(motley, "import", "--from", source, "--save-dir", saved)
    worst = difference(original, load(os.path.join(saved, "latest")), batch(len(WORDS), 20))
    check_tokenizer(os.path.join(saved, "latest"), WORDS)
    for name, dtype in DTYPES.items():
        out = os.path.join(directory, name)
        run(motley, "export", "--save-dir", saved, "--out", out, "--dtype", name)
        exported = load(out)
        if exported.dtype != dtype or not casts_agree(original, exported, dtype):
            sys.exit(f"{kind.__name__}: the parameters of {out} are not the original's as {dtype}")
        check_tokenizer(out, WORDS)
    worst = max(worst, difference(original, load(os.path.join(directory, "fp32")), batch(len(WORDS), 20)))
    print(f"{kind.__name__} {config.hidden_size} x {config.num_hidden_layers}, {config.hidden_act}: "
          f"largest difference of an output {worst:.3g} (allowed: {TOLERANCE})")
    return worst < TOLERANCE


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("motley")
    parser.add_argument("--checkpoint", nargs="*", default=[])
    arguments = parser.parse_args()
    good = True
    for kind in [BertForPreTraining, BertForMaskedLM, BertModel]:
        for activation in ["gelu", "relu", "silu"]:
            config = BertConfig(vocab_size=len(WORDS), hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
                                intermediate_size=96, max_position_embeddings=24, hidden_act=activation)
            with tempfile.TemporaryDirectory() as directory:
                good = check_model(arguments.motley, kind, config, directory) and good
    for checkpoint in arguments.checkpoint:
        model = load(checkpoint)
        print(f"{checkpoint}: {sum(p.numel() for p in model.parameters())} parameters, all there")
        if os.path.exists(os.path.join(checkpoint, "vocab.txt")):
            print(f"{checkpoint}: a tokenizer of {len(BertTokenizer.from_pretrained(checkpoint))} tokens")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
