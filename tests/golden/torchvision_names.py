#!/usr/bin/env python3
"""Writes torchvision_names.json: what the tensors of torchvision's networks are called and how large they are.

Of each network the number of tensors and a digest: FNV-1a (64 bits) over the lines "NAME AxBxC\n" of its state_dict, sorted,
without the counters of steps (num_batches_tracked).
"""
import json
import pathlib

import torchvision

NETWORKS = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"] + [
    f"vgg{depth}{suffix}" for depth in (11, 13, 16, 19) for suffix in ("", "_bn")]


def digest(lines):
    h = 0xCBF29CE484222325
    for byte in "".join(sorted(lines)).encode():
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def main():
    out = {"torchvision": torchvision.__version__}
    for name in NETWORKS:
        state = getattr(torchvision.models, name)().state_dict()
        lines = [f"{tensor} {'x'.join(map(str, value.shape))}\n" for tensor, value in state.items()
                 if not tensor.endswith("num_batches_tracked")]
        out[name + "_imagenet"] = {"tensors": len(lines), "digest": digest(lines)}
    (pathlib.Path(__file__).parent / "torchvision_names.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
