#!/usr/bin/env python3
"""Takes networks of torchvision through `motley import` and `motley export` and back.

Needs torch, torchvision and safetensors, which CI does not have: tests/golden/torchvision_names.py and unit.train stand in for this
there. Of each network with random weights and running statistics: its state_dict is imported, what is exported loads with
strict=True into a new network, and both give the same outputs, bit for bit. Prints a line per network; ends with 1 when
something differs.

usage: torchvision_round_trip.py MOTLEY [NETWORK ...]
"""
import pathlib
import subprocess
import sys
import tempfile

import torch
import torchvision
from safetensors.torch import load_file, save_file


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr}")


def outputs(network, images):
    with torch.no_grad():
        return network.eval()(images)


def main():
    motley, names = sys.argv[1], sys.argv[2:] or ["resnet18", "resnet50", "vgg11", "vgg11_bn"]
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    same = True
    for name in names:
        torch.manual_seed(5)
        make = getattr(torchvision.models, name)
        network = make().train()
        with torch.no_grad():
            network(images)  # moves the running statistics
        with tempfile.TemporaryDirectory() as at:
            source = pathlib.Path(at, "from")
            source.mkdir()
            save_file(network.state_dict(), str(source / "model.safetensors"))
            run(motley, "import", "--task", "images", "--arch", name + "_imagenet", "--from", source, "--save-dir", f"{at}/run")
            run(motley, "export", "--save-dir", f"{at}/run", "--out", f"{at}/out")
            other = make()
            other.load_state_dict(load_file(f"{at}/out/model.safetensors"), strict=True)
        equal = torch.equal(outputs(network, images), outputs(other, images))
        same = same and equal
        print(f"{name}: {'the same outputs' if equal else 'OTHER OUTPUTS'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
