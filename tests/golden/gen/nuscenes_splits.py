#!/usr/bin/env python3
"""Writes the scene names of nuScenes' official splits, or compares them with what is there.

Needs nuscenes-devkit (recorded with 1.2.0; it wants numpy < 2):
    nuscenes_splits.py src/aerie/data/nuscenes/tables/official_splits.inc            writes it
    nuscenes_splits.py --check src/aerie/data/nuscenes/tables/official_splits.inc    exit code 1 when it differs

Names are scene-NNNN; a split is kept as runs of numbers. Which scene belongs to which split is fact, taken from the devkit's
utils/splits.py (Apache-2.0). The hashes are SHA-256 of the sorted names, one a line: the test of the splits compares them.
"""
import hashlib
import sys

from nuscenes.utils.splits import create_splits_scenes

NAMES = ["train_detect", "train_track", "val", "test", "mini_train", "mini_val"]


def runs(numbers):
    out, numbers = [], sorted(numbers)
    for n in numbers:
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ["%d" % a if a == b else "%d-%d" % (a, b) for a, b in out]


def text():
    splits = create_splits_scenes()
    assert set(splits["train"]) == set(splits["train_detect"]) | set(splits["train_track"])
    lines = ["// Scenes of nuScenes' official splits, as runs of numbers: 1-2 is scene-0001 and scene-0002. Written by",
             "// tests/golden/gen/nuscenes_splits.py; train is train_detect and train_track together."]
    for name in NAMES:
        names = sorted(splits[name])
        assert all(len(n) == 10 and n.startswith("scene-") for n in names) and len(set(names)) == len(names)
        digest = hashlib.sha256("".join(n + "\n" for n in names).encode()).hexdigest()
        lines += ["// %s: %d scenes, SHA-256 %s" % (name, len(names), digest), '{"%s",' % name]
        row = ""
        for i, run in enumerate(found := runs(int(n[6:]) for n in names)):
            piece = run + ("," if i + 1 < len(found) else "")
            if len(row) + len(piece) > 110:
                lines.append('    "%s"' % row)
                row = ""
            row += piece
        lines.append('    "%s"},' % row)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    if len(arguments) != 1:
        sys.exit(__doc__)
    if "--check" in sys.argv:
        same = open(arguments[0]).read() == text()
        print("equal" if same else "different")
        sys.exit(not same)
    open(arguments[0], "w").write(text())
