"""Shared by the fixture generators: quiet NeMo, one thread, seeded tensors, injected draws, and the file format.

Format of a fixture (see ../README.md): one safetensors file, tensors `w.*` (state dict), `in.*` (inputs shared by
all cases), `case<i>.{in,out,grad,after,draw}.*`; metadata strings `kind`, `config`, `cases`, `nemo_version`,
`torch_version`, of which config and cases are JSON.
"""
import contextlib
import json
import logging
import os
import random
import sys
import warnings

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import numpy as np
import torch

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True, warn_only=True)
import nemo
from nemo.utils import logging as nemo_logging

nemo_logging.setLevel(logging.ERROR)

OUT_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "data", "fixtures")


def rng(seed):
    return np.random.default_rng(seed)


def randn(r, *shape, scale=1.0):
    return torch.from_numpy(np.asarray(scale * r.standard_normal(shape), dtype=np.float32))


def randomize(module, seed):
    """Fresh weights with no accidental zeros or ones: constructors leave biases of norms, pos_bias and running
    statistics at neutral values, which would hide an implementation that ignores them."""
    r = rng(seed)
    with torch.no_grad():
        for name, t in module.state_dict().items():
            leaf = name.rsplit(".", 1)[-1]
            if not t.is_floating_point():
                t.fill_(3)  # num_batches_tracked
            elif leaf == "running_var":
                t.copy_(1.0 + 0.5 * torch.from_numpy(r.uniform(-1, 1, tuple(t.shape))))
            elif leaf == "running_mean":
                t.copy_(randn(r, *t.shape, scale=0.3))
            elif leaf in ("pos_bias_u", "pos_bias_v"):
                t.copy_(randn(r, *t.shape, scale=0.5))
            elif leaf == "bias":
                t.copy_(randn(r, *t.shape, scale=0.2))
            elif t.dim() == 1:
                t.copy_(1.0 + randn(r, *t.shape, scale=0.2))
            else:
                fan_in = t.numel() / t.shape[0]
                t.copy_(randn(r, *t.shape, scale=1.3 / fan_in**0.5))
    return module


def tensor_dict(module):
    """State dict without aliasing (untied tensors that share storage are stored once per name, as NeMo does)."""
    return {k: v.detach().clone().contiguous() for k, v in module.state_dict().items()}


@contextlib.contextmanager
def patched(obj, name, fn):
    old = getattr(obj, name)
    setattr(obj, name, fn)
    try:
        yield
    finally:
        setattr(obj, name, old)


def rel_dev(a, b):
    """max |a-b| over max |b|: the yardstick for 'how far float32 is from float64 here'."""
    a, b = a.double(), b.double()
    if not torch.isfinite(a).all():
        return 0.0
    return float((a - b).abs().max() / max(float(b.abs().max()), 1e-12)) if a.numel() else 0.0


def jsonable(x):
    if isinstance(x, dict):
        return {k: jsonable(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [jsonable(v) for v in x]
    if isinstance(x, (np.integer,)):
        return int(x)
    if isinstance(x, (np.floating,)):
        return float(x)
    return x


DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.uint8: "U8", torch.bfloat16: "BF16"}


def save(path, tensors, metadata):
    """The safetensors package orders its header by hash, so equal content gives different bytes; this does not."""
    header, blobs, pos = {"__metadata__": metadata}, [], 0
    for k in sorted(tensors, key=lambda k: (-tensors[k].element_size(), k)):
        t = tensors[k].detach()
        raw = (t.contiguous().view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy().tobytes()
        header[k] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [pos, pos + len(raw)]}
        blobs.append(raw)
        pos += len(raw)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(len(head).to_bytes(8, "little") + head + b"".join(blobs))


def write(name, kind, config, cases, tensors):
    for k, v in tensors.items():
        if k.startswith(("w.", "case")) and v.is_floating_point() and ".out.loss" not in k:
            assert torch.isfinite(v).all(), f"{name}: {k} is not finite"
    meta = dict(kind=kind, config=json.dumps(jsonable(config)), cases=json.dumps(jsonable(cases)),
                nemo_version=nemo.__version__, torch_version=torch.__version__)
    os.makedirs(OUT_DIR, exist_ok=True)
    path = os.path.join(OUT_DIR, name + ".safetensors")
    save(path, tensors, meta)
    print(f"{name:34s} {os.path.getsize(path)/1024:8.1f} KiB  {len(cases)} cases", flush=True)
