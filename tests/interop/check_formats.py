#!/usr/bin/env python3
"""Files of torch, safetensors and numpy through `aerie convert` and back, compared value by value.

usage: check_formats.py AERIE_BINARY [--large]

Makes a torch file with everything a checkpoint can hold (all dtypes, views, tied and expanded tensors, Parameters, empty
and scalar tensors, foreign objects, numpy scalars, pickle protocols 2, 4 and 5, with and without checksums), lets aerie
rewrite it in each format, and loads the result with torch.load(weights_only=True) or safetensors. --large adds a tensor
past 4 GiB (needs about 15 GB of disk and 5 GB of memory). Needs torch 2.11, safetensors and numpy.
"""
import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import numpy as np
import torch
from safetensors.torch import load_file, save_file


class Foreign:
    def __init__(self):
        self.secret = [1, 2]


def everything():
    torch.manual_seed(1)
    base = torch.randn(6, 8)
    weights = collections.OrderedDict()
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
                  torch.complex64):
        weights[f"floating.{dtype}"] = torch.randn(3, 5).to(dtype)
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32,
                  torch.uint64):
        weights[f"integer.{dtype}"] = torch.randint(0, 100, (2, 3, 4)).to(dtype)
    weights["bool"] = torch.tensor([True, False, True])
    weights["base"] = base
    weights["tied"] = base
    weights["transposed"] = base.t()
    weights["strided"] = base[1::2, 2:7:2]
    weights["expanded"] = base[:1, :1].expand(4, 4)
    weights["permuted"] = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)
    weights["scalar"] = torch.tensor(7)
    weights["empty"] = torch.empty(0, 3)
    weights["one by one"] = torch.ones(1, 1)
    weights["parameter"] = torch.nn.Parameter(torch.randn(2, 2))
    weights["tensor with attributes"] = torch.ones(3)
    weights["tensor with attributes"].origin = "here"
    weights["parameter with attributes"] = torch.nn.Parameter(torch.zeros(3))
    weights["parameter with attributes"].sequence_parallel = True
    weights["ünïcode.名前"] = torch.ones(2)
    return weights


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.detach().contiguous().view(torch.uint8) if a.numel() and a.dim() else a.detach(),
        b.detach().contiguous().view(torch.uint8) if b.numel() and b.dim() else b.detach())


def compare(want, got, what):
    assert list(want) == list(got) or sorted(want) == sorted(got), f"{what}: names differ"
    for name in want:
        assert same(want[name], got[name]), f"{what}: {name} differs"
    print(f"  {what}: {len(want)} tensors equal")


def run(*args):
    done = subprocess.run(args, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(args)}: {done.stderr}"
    return done


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("aerie")
    ap.add_argument("--large", action="store_true")
    a = ap.parse_args()
    aerie = os.path.abspath(a.aerie)
    weights = everything()
    with tempfile.TemporaryDirectory() as tmp:
        os.chdir(tmp)
        print("torch -> aerie -> torch")
        for protocol in (2, 4, 5):
            for crc in (True, False):
                torch.serialization.set_crc32_options(crc)
                torch.save(weights, "in.pt", pickle_protocol=protocol)
                torch.serialization.set_crc32_options(True)
                run(aerie, "convert", "in.pt", "out.pt")
                got = torch.load("out.pt", weights_only=True)
                assert type(got) is collections.OrderedDict and list(got) == list(weights)
                compare(weights, got, f"protocol {protocol}, {'with' if crc else 'without'} checksums")
        compare(weights, torch.load("out.pt", weights_only=True, mmap=True), "mapped")

        print("torch -> aerie -> safetensors -> aerie -> torch")
        run(aerie, "convert", "in.pt", "out.safetensors")
        compare(weights, load_file("out.safetensors"), "loaded by safetensors")
        run(aerie, "convert", "out.safetensors", "back.pt")
        compare(weights, torch.load("back.pt", weights_only=True), "and back")

        print("safetensors -> aerie")
        plain = {k: v.detach().contiguous().clone() for k, v in weights.items()}
        save_file(plain, "theirs.safetensors", metadata={"format": "pt", "note": "quote \" and \n newline"})
        run(aerie, "convert", "theirs.safetensors", "theirs.pt")
        compare(plain, torch.load("theirs.pt", weights_only=True), "written by safetensors")

        print("Lightning-like checkpoint with foreign objects")
        checkpoint = {
            "epoch": 3, "global_step": 2**33, "pytorch-lightning_version": "2.4.0", "state_dict": weights,
            "optimizer_states": [{
                "state": {0: {"step": torch.tensor(5.0), "exp_avg": torch.randn(3), "exp_avg_sq": torch.rand(3)}},
                "param_groups": [{"lr": np.float64(1e-3), "betas": (0.9, 0.98), "params": [0], "fused": None}]}],
            "lr_schedulers": [{"last_epoch": 5, "base_lrs": [0.1], "milestones": collections.Counter({3: 1})}],
            "callbacks": {"x": Foreign()}, "hyper_parameters": {"device": torch.device("cuda:0"), "size": torch.Size([2])},
            "rng": {"numpy": np.random.RandomState(0).get_state()[0], "bytes": b"\x00\xff", "big": 2**100, "set": {1, 2}},
        }
        torch.save(checkpoint, "in.ckpt")
        print("   ", run(aerie, "convert", "in.ckpt", "out.ckpt").stderr.strip().replace("\n", "\n    "))
        got = torch.load("out.ckpt", weights_only=True)
        compare(weights, got["state_dict"], "state_dict")
        assert got["global_step"] == 2**33 and got["epoch"] == 3 and got["rng"]["big"] == 2**100
        assert got["rng"]["bytes"] == b"\x00\xff"
        assert got["optimizer_states"][0]["param_groups"][0]["lr"] == 1e-3
        assert got["optimizer_states"][0]["param_groups"][0]["betas"] == (0.9, 0.98)
        assert torch.equal(got["optimizer_states"][0]["state"][0]["exp_avg"],
                           checkpoint["optimizer_states"][0]["state"][0]["exp_avg"])
        assert got["lr_schedulers"][0]["milestones"] == {3: 1}
        report = json.loads(run(aerie, "inspect", "in.ckpt", "--json").stdout)
        assert report["checkpoint"]["global_step"] == 2**33 and report["num_tensors"] == len(weights)
        print("  optimizer, counters and schedules equal")

        print("numpy")
        arrays = {"f": np.random.rand(3, 4).astype(np.float32), "d": np.asfortranarray(np.random.rand(4, 5)),
                  "i": np.arange(6).reshape(2, 3), "s": np.float32(3).reshape(()), "e": np.zeros((0, 2), np.int32)}
        for writer in (np.savez, np.savez_compressed):
            writer("in.npz", **arrays)
            run(aerie, "convert", "in.npz", "npz.safetensors")
            got = load_file("npz.safetensors")
            assert all(np.array_equal(arrays[k], got[k].numpy()) and arrays[k].dtype == got[k].numpy().dtype for k in arrays)
        print("  npz, stored and compressed: equal")

        if a.large:
            print("past 4 GiB")
            big = {"big": torch.zeros((1 << 32) + 4097, dtype=torch.uint8), "after": torch.arange(10.0)}
            big["big"][-5:] = 7
            torch.save(big, "big.pt")
            for out in ("big2.pt", "big2.safetensors", "big2.nemo"):
                config = ["--config", "config.yaml"] if out.endswith(".nemo") else []
                open("config.yaml", "w").write("encoder: {}\n")
                run(aerie, "convert", "big.pt", out, *config)
                if out.endswith(".pt"):
                    got = torch.load(out, weights_only=True, mmap=True)
                elif out.endswith(".nemo"):
                    run(aerie, "convert", out, "big3.pt")
                    import tarfile
                    with tarfile.open(out) as tar:
                        assert tar.getnames() == [".", "./model_config.yaml", "./model_weights.ckpt"], tar.getnames()
                    got = torch.load("big3.pt", weights_only=True, mmap=True)
                else:
                    got = load_file(out)
                assert torch.equal(got["after"], big["after"]) and got["big"].numel() == big["big"].numel()
                assert got["big"][-5:].tolist() == [7] * 5 and got["big"][:1000].sum() == 0
                print(f"  {out}: {os.path.getsize(out)} bytes, fine")
                del got
                if os.path.exists("big3.pt"):
                    os.remove("big3.pt")
                os.remove(out)
    print("all fine")


if __name__ == "__main__":
    main()
