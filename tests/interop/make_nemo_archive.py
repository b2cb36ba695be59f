#!/usr/bin/env python3
"""Make a .nemo archive with real NeMo from a config, and what its modules compute in eval mode: the other direction of
restore_in_nemo.py.

usage: make_nemo_archive.py CONFIG.yaml MANIFEST.json OUT.nemo EXPECTED.safetensors [--seed 0] [--gzip] [--limit N]
                            [model.key=value ...]

CONFIG is a whole config with a `model` node (aerie's and NeMo's are the same); overrides are dotted `key=value`. Weights are
NeMo's own initialisation, after which the zero-initialised ones (biases of norms, pos_bias) and running statistics
are moved away from their constants. --gzip writes the old compressed form of the archive. EXPECTED holds the tensors described in
restore_in_nemo.py; compare with `aerie features` or aerie's own test on the archive.
"""
import argparse
import gzip
import os
import shutil

import common


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("config")
    ap.add_argument("manifest")
    ap.add_argument("out")
    ap.add_argument("expected")
    ap.add_argument("overrides", nargs="*")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--gzip", action="store_true")
    ap.add_argument("--limit", type=int, default=0)
    a = ap.parse_args()
    model = common.build(a.config, a.overrides, a.seed)
    model.save_to(a.out)
    if a.gzip:
        with open(a.out, "rb") as f, gzip.open(a.out + ".tmp", "wb") as g:
            shutil.copyfileobj(f, g)
        os.replace(a.out + ".tmp", a.out)
    restored, report = common.restore(a.out)
    print(report)
    common.save(a.expected, common.features(restored, a.manifest, a.limit))
    print(f"wrote {a.out} ({os.path.getsize(a.out)} bytes) and {a.expected}")


if __name__ == "__main__":
    main()
