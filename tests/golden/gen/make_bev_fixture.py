#!/usr/bin/env python3
"""Makes fixtures of the bird's-eye-view model for bev_parity from the eager reference, with random sizes.

    PYTHONPATH=bench/peers python3 tests/golden/gen/make_bev_fixture.py --out DIR --count 8 --seed 1
    build/bev_parity DIR/*.safetensors

Needs torch (CPU) and numpy. Every file holds weights, a batch, and what one training step of a float64 run leaves: activations and
their gradients, gradients of all parameters, running statistics, losses, parameters after clipping and AdamW, probabilities after it.
Camera counts, ragged picture sizes, asymmetric ranges, several height cells, both roundings, both networks, all losses, other windows
and both rules for the shift are drawn. Cells are those of float32 geometry; a batch with a point too near to the edge of a cell is
drawn again, as is one where a ReLU has an input so near to zero that float32 may take it for the other side: gradients jump there.
"""
import argparse
import copy
import json
import os
import struct

import numpy as np
import torch
from bev_peer import (BevModel, Config, fill_weights, frustum_axes, frustum_points, fused_geometry, losses, param_groups,
                      synthetic_batch)

CLASSES = ("drivable_area", "ped_crossing", "walkway", "stop_line")


def save(path, tensors, metadata):
    names = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8"}
    head, data, at = {"__metadata__": metadata}, [], 0
    for name, t in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        raw = t.contiguous().numpy().tobytes()
        head[name] = dict(dtype=names[t.dtype], shape=list(t.shape), data_offsets=[at, at + len(raw)])
        data.append(raw)
        at += len(raw)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def random_config(rng, name):
    pick = lambda *values: values[int(rng.integers(len(values)))]
    bev = pick("encode", "fpn")
    first = pick(1, 2)
    down = pick(1, 2) if bev == "fpn" else 1
    nx, ny = (8 * int(rng.integers(2, 4)) for _ in range(2)) if bev == "encode" else (int(rng.integers(16, 31)) for _ in range(2))
    low_x, low_y, step = -float(rng.integers(0, 8)), -float(rng.integers(2, 8)), pick(0.4, 0.5)
    nz = pick(1, 1, 2, 3)
    return Config(name=name, image=(int(rng.integers(34, 70)), int(rng.integers(34, 90))), cams=int(rng.integers(1, 5)), embed=8,
                  depths=tuple(int(rng.integers(1, 3)) for _ in range(4)), heads=pick((1, 2, 2, 4), (2, 4, 8, 8)), window=pick(7, 7, 5, 4),
                  mlp_ratio=pick(2, 3), drop_path=0.0, zero_shift_single_window=bool(pick(0, 0, 1)), neck=12, first_stage=first,
                  dbound=pick((1.0, 9.0, 1.0), (1.5, 8.2, 0.7), (1.0, 6.0, 0.5)), context=pick(4, 6), xbound=(low_x, low_x + nx * step, step),
                  ybound=(low_y, low_y + ny * step, step), zbound=(-4.0, -4.0 + 3.0 * nz, 3.0), rounding=pick("trunc", "floor"), downsample=down,
                  bev=bev, bev_width=4, dec=pick(((8, 2), (12, 2), (16, 1)), ((8, 1), (12, 2))), dec_out=10, out_x=(low_x + 1, low_x + 7, 0.5),
                  out_y=(low_y - 1, low_y + 5, 0.5), classes=CLASSES[:int(rng.integers(1, 5))], loss=pick("focal", "xent"))


def rows(t, m=32):
    v = t.detach().reshape(-1)
    v = v if v.numel() <= m else v[(torch.arange(m) * v.numel()) // m]
    return v.repeat(-(-m // v.numel()))[:m]


def batch_for(config, samples, seed):
    """A batch whose points stay away from the edges of cells and of which some lie inside."""
    for attempt in range(200):
        batch = synthetic_batch(config, samples, seed * 1000 + attempt)
        h, w = (-(-(-(-s // 4)) // 2) for s in config.image)
        for _ in range(config.first_stage - 1):
            h, w = -(-h // 2), -(-w // 2)
        points = frustum_points(*fused_geometry(*(batch[k] for k in ("camera2lidar", "intrin", "img_aug", "bev_aug"))),
                                *frustum_axes(config.image, (h, w), config.dbound))
        low, step = (torch.tensor([b[i] for b in (config.xbound, config.ybound, config.zbound)]) for i in (0, 2))
        t = ((points.double() - low) / step)
        if ((t - t.round()).abs().amin() > 1e-4) and ((t > 0) & (t < torch.tensor(config.cells()))).all(-1).any():
            return batch
    raise SystemExit("no batch keeps away from the edges of cells")


def normalised(batch):
    mean, std = (torch.tensor(v).double().view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return dict(batch, img=(batch["img"].double() / 255 - mean) / std)


def nearest_to_zero(model, wide):
    """The smallest absolute input of any ReLU in a training pass, which leaves the model as it is."""
    relu, nearest = torch.nn.functional.relu, [float("inf")]

    def watch(x, *args, **kwargs):
        nearest[0] = min(nearest[0], x.abs().amin().item())
        return relu(x, *args, **kwargs)
    torch.nn.functional.relu = watch
    try:
        with torch.no_grad():
            copy.deepcopy(model)(wide)
    finally:
        torch.nn.functional.relu = relu
    return nearest[0]


def make(path, config, samples, seed, vehicle):
    torch.manual_seed(0)
    model = fill_weights(BevModel(config), seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.half().float())
    out = {"w/" + n: p.detach().half() for n, p in model.named_parameters()}
    model = model.double().train()
    for attempt in range(100):
        batch = batch_for(config, samples, seed + 100_000 * attempt)
        wide = normalised(batch)
        if nearest_to_zero(model, wide) > 1e-5:
            break
    else:
        raise SystemExit("no batch keeps the inputs of ReLU away from zero")
    taps = {}

    def tap(name, t):
        if t.requires_grad:
            t.retain_grad()
        taps[name] = t
    logits = model(wide, tap)
    if vehicle:
        z = logits
        ls = {"loss": torch.nn.functional.binary_cross_entropy_with_logits(z, batch["gt"].double(), pos_weight=torch.tensor([2.13]).double())}
    else:
        ls = losses(logits, batch["gt"], config)
    ls["loss"].backward()
    out.update({"in/" + k: v for k, v in batch.items()})
    for name, t in taps.items():
        out["x/" + name] = t.detach().int() if name == "cell" else t.detach().float()
        if t.grad is not None and name in ("context", "depth_logits", "l0", "l1", "logits", "neck0", "pooled"):
            out["dx/" + name] = t.grad.float()
    out.update({k: v.detach().reshape(1).double() for k, v in ls.items()})
    named = list(model.named_parameters())
    out.update({"g/" + n: p.grad.float() for n, p in named})
    out.update({"bn/" + n: b.float() for n, b in model.named_buffers() if n.endswith(("running_mean", "running_var"))})
    out["gnorm"] = torch.stack([p.grad.norm() for _, p in named]).double()
    out["g_sampled"] = torch.stack([rows(p.grad) for _, p in named]).float()
    clip, lr, decay = (0.05 if seed % 2 else 35.0), 2e-4, 0.01
    out["grad_norm"] = torch.nn.utils.clip_grad_norm_(model.parameters(), clip).reshape(1).double()
    torch.optim.AdamW(param_groups(model, decay), lr=lr).step()
    out["step_sampled"] = torch.stack([rows(p) for _, p in named]).float()
    model.eval()
    with torch.no_grad():
        out["eval_prob"] = model(wide).sigmoid().float()
    meta = dict(config=json.dumps(vars(config)), lr=str(lr), clip=str(clip), weight_decay=str(decay), loss="vehicle" if vehicle else config.loss,
                parameters=json.dumps([n for n, _ in named]))
    save(path, out, meta)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    torch.set_num_threads(1)
    rng = np.random.default_rng(args.seed)
    for i in range(args.count):
        config = random_config(rng, f"random{i}")
        vehicle = bool(rng.integers(4) == 0)
        path = os.path.join(args.out, f"random{args.seed}_{i}.safetensors")
        make(path, config, int(rng.integers(1, 4)), args.seed * 100 + i, vehicle)
        print(path, config, flush=True)
