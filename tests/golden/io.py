#!/usr/bin/env python3
"""Makes the golden files of tests/unit/io with the libraries that other people's files come from.

    python3 tests/golden/io.py        needs h5py, numpy, torch and safetensors

The tests know the contents by the formulas below.
"""
import os

import h5py
import numpy as np
import torch
from safetensors.torch import save_file

here = os.path.dirname(os.path.abspath(__file__))


def images(n, h, w, c):
    index = np.arange(n * h * w * c, dtype=np.int64)
    return (index * 37 % 251).astype(np.uint8).reshape(n, h, w, c)


# Compressed, chunked across every dimension, labels big-endian, and data sets that an image set does not have.
with h5py.File(os.path.join(here, "io_gzip.h5"), "w") as f:
    f.create_dataset("images", data=images(23, 5, 4, 3), chunks=(6, 3, 4, 2), compression="gzip",
                     compression_opts=9, shuffle=True)
    f.create_dataset("labels", data=(np.arange(23) * 3 % 5).astype(">i8"))
    f.create_dataset("weights", data=np.linspace(0, 1, 23, dtype=np.float32))
    f.create_dataset("class_names", data=["a", "b", "c", "d", "e"])
    f.create_group("origin").create_dataset("year", data=np.int16([2017]))

# A compression that comes with h5py and not with HDF5.
with h5py.File(os.path.join(here, "io_lzf.h5"), "w") as f:
    f.create_dataset("images", data=images(4, 2, 2, 1), chunks=(2, 2, 2, 1), compression="lzf")
    f.create_dataset("labels", data=np.zeros(4, np.uint8))

tensors = {
    "encoder.weight": (torch.arange(12, dtype=torch.float32) / 8 - 0.5).reshape(3, 4),
    "encoder.half": torch.tensor([0.5, -2.0, 65504.0], dtype=torch.float16),
    "encoder.brain": torch.tensor([[1.0, -3.0]], dtype=torch.bfloat16),
    "position_ids": torch.arange(5, dtype=torch.int64),
    "scalar": torch.tensor(0.25, dtype=torch.float64),
    "empty": torch.zeros(0, 3),
    "bytes": torch.tensor([7, 255], dtype=torch.uint8),
}
save_file(tensors, os.path.join(here, "io_tensors.safetensors"), metadata={"format": "pt", "note": "ä \" \\"})
