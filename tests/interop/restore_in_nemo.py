#!/usr/bin/env python3
"""Restore a .nemo archive in real NeMo (strict) and write what its modules compute in eval mode.

usage: restore_in_nemo.py ARCHIVE.nemo MANIFEST.json [--out OUT.safetensors] [--expect EXPECTED.safetensors]
                          [--expect-features FEATURES.json] [--tolerance 1e-4] [--limit N]

ARCHIVE is one aerie wrote (or NeMo: the check is the same). For every line of the manifest the whole file is read, and
`mel` (D, T), `encoded` (T', d) and `tokens` (T', H), cut to the item's length, are stored as `<i>.<name>`. With --expect the
same names are compared with that file: largest absolute difference for mel and encoded, equality for tokens; exit
status 1 past the tolerance. --expect-features takes the `features.json` that `aerie features --layers last` wrote for the same
manifest and compares its .npy files (layers, d, T') with `encoded`. Needs nemo_toolkit[asr] (2.6.2 was used).
"""
import argparse
import sys

import common


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("archive")
    ap.add_argument("manifest")
    ap.add_argument("--out")
    ap.add_argument("--expect")
    ap.add_argument("--expect-features")
    ap.add_argument("--tolerance", type=float, default=1e-4)
    ap.add_argument("--limit", type=int, default=0)
    a = ap.parse_args()
    model, report = common.restore(a.archive)
    print(report)
    tensors = common.features(model, a.manifest, a.limit)
    if a.out:
        common.save(a.out, tensors)
        print(f"wrote {a.out}: {len(tensors)} tensors")
    status = 0
    if a.expect:
        status |= common.compare(tensors, common.load(a.expect), a.tolerance)
    if a.expect_features:
        status |= common.compare_features(tensors, a.expect_features, a.tolerance)
    sys.exit(status)


if __name__ == "__main__":
    main()
