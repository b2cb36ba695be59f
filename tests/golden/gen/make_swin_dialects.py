#!/usr/bin/env python3
"""Makes tests/data/bev/swin_*: one small Swin under four names, in four kinds of files, and what torchvision computes with it.

    PYTHONPATH=bench/peers python3 tests/golden/gen/make_swin_dialects.py tests/data/bev

Needs torch, torchvision (recorded with 0.26.0) and timm (1.0.15). Names of torchvision and timm are those of their own modules, into
which the weights are loaded strictly; the official ones are timm's with the merge one stage earlier, as the official code has it.
"""
import os
import sys
from collections import OrderedDict

import torch
import torch.nn.functional as F
from bev_peer import Config, Swin, hash_uniform
from timm.models.swin_transformer import SwinTransformer as TimmSwin
from torchvision.models.swin_transformer import SwinTransformer as TorchvisionSwin

DEPTHS, HEADS, WIDTH, WINDOW = (1, 1, 2, 1), (1, 1, 2, 2), 4, 7


class Meta:
    """Stands for what mmcv puts beside weights: an object of a class that the reader does not have."""


def filled(module):
    with torch.no_grad():
        for name, p in module.named_parameters():
            f = torch.from_numpy(hash_uniform(name, p.numel(), 7)).view(p.shape)
            p.copy_((f * 0.5 if p.dim() > 1 else f * 0.25 + (1.0 if name.endswith("weight") else 0.0)).half().float())
    return module.eval()


def to_timm(sd):
    """torchvision's names to timm's"""
    out = OrderedDict()
    for name, t in sd.items():
        parts = name.split(".")
        if name.startswith("features.0."):
            out["patch_embed." + ("proj." if parts[2] == "0" else "norm.") + parts[3]] = t
        elif name.startswith("features."):
            at = int(parts[1])
            if at % 2 == 0:
                out[f"layers.{at // 2}.downsample." + ".".join(parts[2:])] = t
                continue
            rest = ".".join(parts[3:]).replace("mlp.0.", "mlp.fc1.").replace("mlp.3.", "mlp.fc2.")
            out[f"layers.{at // 2}.blocks.{parts[2]}.{rest}"] = t
        elif name.startswith("head."):
            out["head.fc." + parts[1]] = t
        else:
            out[name] = t
    return out


def to_official(sd):
    out = OrderedDict()
    for name, t in sd.items():
        parts = name.split(".")
        if "downsample" in parts:
            parts[1] = str(int(parts[1]) - 1)
        out[".".join(parts).replace("head.fc.", "head.")] = t
    return out


def to_mmdet(sd):
    out = OrderedDict()
    for name, t in sd.items():
        if name.startswith(("norm.", "head.")):
            continue
        name = (name.replace("layers.", "stages.").replace("patch_embed.proj.", "patch_embed.projection.").replace(".attn.", ".attn.w_msa.")
                .replace(".mlp.fc1.", ".ffn.layers.0.0.").replace(".mlp.fc2.", ".ffn.layers.1."))
        if ".downsample." in name:                     # blocks (0,0),(1,0),(0,1),(1,1) of C to c*4 + row*2 + column
            c = t.shape[-1] // 4
            t = t.reshape(*t.shape[:-1], 4, c)[..., [0, 2, 1, 3], :].transpose(-1, -2).reshape(t.shape)
        out[name] = t
    return out


def main(folder):
    model = filled(TorchvisionSwin([4, 4], WIDTH, list(DEPTHS), list(HEADS), [WINDOW, WINDOW], mlp_ratio=2.0, stochastic_depth_prob=0.0, num_classes=3))
    torchvision = model.state_dict()
    timm = TimmSwin(img_size=128, patch_size=4, num_classes=3, embed_dim=WIDTH, depths=DEPTHS, num_heads=HEADS, window_size=WINDOW, mlp_ratio=2.0,
                    always_partition=True)
    named = to_timm(torchvision)
    missing, unexpected = timm.load_state_dict({k: v for k, v in named.items() if "relative_position_index" not in k}, strict=False)
    assert not unexpected and all("relative_position_index" in k or "attn_mask" in k for k in missing), (missing, unexpected)
    timm_dict = timm.state_dict()
    official = to_official(timm_dict)
    mmdet = to_mmdet(official)

    image = torch.from_numpy(hash_uniform("image", 2 * 3 * 70 * 93, 7)).view(2, 3, 70, 93)
    padded = F.pad(image, (0, -93 % 4, 0, -70 % 4))    # torchvision's own convolution would cut the rest off
    outputs, x = {}, padded
    with torch.no_grad():
        for i, part in enumerate(model.features):
            x = part(x)
            if i % 2 == 1 and i >= 3:
                outputs[f"l{i // 2 - 1}"] = F.layer_norm(x, x.shape[-1:]).permute(0, 3, 1, 2).contiguous()
        peer = Swin(Config(embed=WIDTH, depths=DEPTHS, heads=HEADS, mlp_ratio=2, drop_path=0.0, zero_shift_single_window=True)).eval()
        peer.load_state_dict({k: v for k, v in mmdet.items() if "relative_position_index" not in k}, strict=False)
        for ours, theirs in zip(peer(image), outputs.values()):
            print("reference beside torchvision:", (ours - theirs).abs().max().item())

    at = lambda name: os.path.join(folder, "swin_" + name)
    torch.save(torchvision, at("torchvision.pth"))
    torch.save({"model": official, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}}, at("official_legacy.pth"), _use_new_zipfile_serialization=False)
    torch.save({"meta": Meta(), "state_dict": OrderedDict(("module.backbone." + k, v) for k, v in mmdet.items())}, at("mmdet_legacy.pth"),
               _use_new_zipfile_serialization=False)
    save_safetensors(at("timm.safetensors"), timm_dict)
    save_safetensors(at("outputs.safetensors"), {"image": image, **outputs})


def save_safetensors(path, tensors):
    import json
    import struct
    names = {torch.float32: "F32", torch.int64: "I64"}
    head, data, at = {}, [], 0
    for name, t in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        raw = t.contiguous().numpy().tobytes()
        head[name] = dict(dtype=names[t.dtype], shape=list(t.shape), data_offsets=[at, at + len(raw)])
        data.append(raw)
        at += len(raw)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
