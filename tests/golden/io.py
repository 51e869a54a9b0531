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

# A BERT shard as the scripts of NVIDIA and HetSeq write it (h5py chooses the chunks), and the same samples as a
# structured array, which is what a packed file is.
N, S, P = 300, 32, 5
row, token, mask = np.arange(N)[:, None], np.arange(S)[None, :], np.arange(P)[None, :]
bert = {
    "input_ids": ((row * 131 + token * 17) % 30522).astype("i4"),
    "input_mask": (token < 1 + row % S).astype("i1"),
    "segment_ids": (token >= row % 7 + 3).astype("i1"),
    "masked_lm_positions": ((row + mask * 3) % (1 + row % S)).astype("i4"),
    "masked_lm_ids": ((row * 977 + mask) % 30522).astype("i4"),
    "next_sentence_labels": (np.arange(N) % 3 == 0).astype("i1"),
}
with h5py.File(os.path.join(here, "io_bert_shard.h5"), "w") as f:
    for name, values in bert.items():
        f.create_dataset(name, data=values, dtype=values.dtype, compression="gzip")

record = np.dtype([("input_ids", "<u2", (S,)), ("input_mask", "u1", (S,)), ("segment_ids", "u1", (S,)),
                   ("masked_lm_positions", "<u2", (P,)), ("masked_lm_ids", "<u2", (P,)),
                   ("next_sentence_labels", "u1")])
samples = np.zeros(N, record)
for name, values in bert.items():
    samples[name] = values
with h5py.File(os.path.join(here, "io_bert_packed.h5"), "w") as f:
    f.create_dataset("samples", data=samples)

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
