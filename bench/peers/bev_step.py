#!/usr/bin/env python3
"""Times one training step of the eager PyTorch model (bev_peer.py): forward, losses, backward, clipping, AdamW. Data lies on the device.

usage: python3 bench/peers/bev_step.py CASE ... [--device cuda|cpu] [--steps N] [--warmup N]
CASE = profile:batch:precision[:option ...]; precision 32, 16 (static loss scale 512) or bf16; options: cl (channels last), sdpa, fused (AdamW).
e.g. seed:4:32 seed:6:16 bf:4:bf16:cl:sdpa tiny_seed:2:32

One JSON line a case: `ms` is the median of --steps; samples_s, peak_gib (allocated by PyTorch). `aerie bench bev --peer bench/peers` calls it.
"""
import argparse
import json
import os
import statistics
import sys
import time

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bev_peer as peer


def measure(case, args):
    name, batch, precision, *options = case.split(":")
    batch = int(batch)
    if precision not in ("32", "16", "bf16") or set(options) - {"cl", "sdpa", "fused"}:
        raise ValueError(f"{case}: no such case")
    cuda = args.device == "cuda"
    torch.manual_seed(0)
    config = peer.profile(name, channels_last="cl" in options, attn="sdpa" if "sdpa" in options else "explicit")
    model = peer.BevModel(config).to(args.device).train()
    if "cl" in options:
        model = model.to(memory_format=torch.channels_last)
    data = peer.synthetic_batch(config, batch, seed=1, device=args.device)
    optimizer = torch.optim.AdamW(peer.param_groups(model), lr=2e-4 * batch / 4, **({"fused": True} if "fused" in options and cuda else {}))
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    low = {"16": torch.float16, "bf16": torch.bfloat16}.get(precision)
    scaler = torch.amp.GradScaler(args.device, init_scale=512.0, growth_interval=10**9, enabled=precision == "16" and cuda)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, dtype=low or torch.bfloat16, enabled=low is not None):
            logits = model(data)
        loss = peer.losses(logits, data["gt"], config)["loss"]
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, 35.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    wait = torch.cuda.synchronize if cuda else lambda: None
    for _ in range(max(1, args.warmup)):
        loss = step()
    wait()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(args.steps):
        start = time.perf_counter()
        loss = step()
        wait()
        times.append(time.perf_counter() - start)
    ms = 1e3 * statistics.median(times)
    return dict(case=case, ms=round(ms, 3), iter_s=round(1e3 / ms, 3), samples_s=round(batch * 1e3 / ms, 2),
                peak_gib=round(torch.cuda.max_memory_allocated() / 2**30, 3) if cuda else None, steps=len(times), loss=round(float(loss), 4),
                torch=torch.__version__, device=torch.cuda.get_device_name() if cuda else "cpu")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    args = parser.parse_args()
    if args.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
    for case in args.cases:
        print(json.dumps(measure(case, args)), flush=True)


if __name__ == "__main__":
    main()
