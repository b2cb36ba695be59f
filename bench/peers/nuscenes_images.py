#!/usr/bin/env python3
"""Camera pictures the way BEVFusion and Lift-Splat-Shoot prepare them: Pillow decodes, resizes (bicubic), crops, mirrors and turns, one
picture after the other on one thread. Ends with eight-bit RGB, as aerie's batches carry it (normalising is the model's work).

usage: nuscenes_images.py --root DIR | --files FILE... | --cases FILE  [--profile bf|lss] [--seconds S] [--json FILE]

    --root DIR       pictures below DIR/samples/CAM_*/ (at most --limit of them)
    --files FILE...  these pictures
    --cases FILE     pictures with the augmentation to apply, a line each: path, denominator of the decoder (1: whole picture), resize,
                     new width, new height, crop x, crop y, final width, final height, mirrored (0|1), degrees
    --profile        sizes and limits for drawing where there are no cases: bf (256x704) or lss (128x352)
    --draft          decode at 1/2, 1/4 or 1/8 where the resize factor allows it (Pillow's draft mode)
    --digests        print SHA-256 of every case's result instead of timing, to compare pixels

Needs Pillow and numpy. Files are read before the clock runs. Prints one JSON line: ms_per_image is the median of rounds over all
pictures by the wall clock, cpu_ms_per_image the same by the process' CPU time, the figure to trust on a busy machine.
"""
import argparse
import glob
import hashlib
import io
import json
import os
import random
import statistics
import time

import numpy as np
import PIL
from PIL import Image, features

PROFILES = {
    "bf": dict(final=(256, 704), resize=(0.38, 0.55), bottom=(0.0, 0.0), rotate=(-5.4, 5.4)),
    "lss": dict(final=(128, 352), resize=(0.193, 0.225), bottom=(0.0, 0.22), rotate=(-5.4, 5.4)),
}


def draw(rng, profile, size):
    """One training draw: (denominator, resize, new_w, new_h, x, y, w, h, mirrored, degrees)."""
    p, (height, width) = PROFILES[profile], PROFILES[profile]["final"]
    s = rng.uniform(*p["resize"])
    new_w, new_h = int(size[0] * s), int(size[1] * s)
    y = int((1 - rng.uniform(*p["bottom"])) * new_h) - height
    x = int(rng.uniform(0, max(0, new_w - width)))
    return 1, s, new_w, new_h, x, y, width, height, rng.randrange(2), rng.uniform(*p["rotate"])


def prepare(data, case, clock=None):
    """The picture as an array; adds the seconds of decoding, resizing and the rest to clock."""
    denominator, _, new_w, new_h, x, y, w, h, flip, degrees = case
    t0 = time.process_time()
    picture = Image.open(io.BytesIO(data))
    if denominator > 1:
        picture.draft(picture.mode, (picture.width // denominator, picture.height // denominator))
    picture = picture.convert("RGB")  # decodes
    t1 = time.process_time()
    picture = picture.resize((new_w, new_h))
    t2 = time.process_time()
    picture = picture.crop((x, y, x + w, y + h))
    if flip:
        picture = picture.transpose(Image.FLIP_LEFT_RIGHT)
    out = np.asarray(picture.rotate(degrees))
    if clock is not None:
        for k, seconds in enumerate((t1 - t0, t2 - t1, time.process_time() - t2)):
            clock[k] += seconds
    return out


def read_cases(path):
    folder, cases = os.path.dirname(os.path.abspath(path)), []
    with open(path) as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                v = line.split()
                cases.append((os.path.join(folder, v[0]), (int(v[1]), float(v[2]), *(int(t) for t in v[3:10]), float(v[10]))))
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root")
    parser.add_argument("--files", nargs="*", default=[])
    parser.add_argument("--cases")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="bf")
    parser.add_argument("--limit", type=int, default=120)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draft", action="store_true")
    parser.add_argument("--digests", action="store_true")
    parser.add_argument("--json")
    a = parser.parse_args()
    rng = random.Random(a.seed)
    files = list(a.files)
    if a.root:
        files += sorted(glob.glob(os.path.join(a.root, "samples", "CAM_*", "*.jpg")))[:a.limit]
    cases = read_cases(a.cases) if a.cases else []
    cases += [(f, draw(rng, a.profile, Image.open(f).size)) for f in files]
    if not cases:
        parser.error("no pictures: name --root, --files or --cases")
    if a.draft:
        rule = lambda s: max(d for d in (1, 2, 4, 8) if s * d <= 1)
        cases = [(f, (rule(c[1]), *c[1:])) for f, c in cases]
    data = {f: open(f, "rb").read() for f, _ in cases}
    if a.digests:
        for f, case in cases:
            print(os.path.basename(f), hashlib.sha256(prepare(data[f], case).tobytes()).hexdigest())
        return
    prepare(data[cases[0][0]], cases[0][1])
    walls, cpus, clock, begin = [], [], [0.0, 0.0, 0.0], time.perf_counter()
    while not walls or time.perf_counter() - begin < a.seconds:
        wall, cpu = time.perf_counter(), time.process_time()
        for f, case in cases:
            prepare(data[f], case, clock)
        walls.append((time.perf_counter() - wall) / len(cases))
        cpus.append((time.process_time() - cpu) / len(cases))
    count = len(walls) * len(cases)
    line = {
        "peer": "pillow", "versions": {"pillow": PIL.__version__, "libjpeg_turbo": features.version("libjpeg_turbo"), "numpy": np.__version__},
        "profile": None if a.cases else a.profile, "images": len(cases), "rounds": len(walls), "bytes_per_image": sum(len(data[f]) for f, _ in cases) // len(cases),
        "ms_per_image": round(1e3 * statistics.median(walls), 3), "cpu_ms_per_image": round(1e3 * statistics.median(cpus), 3),
        "images_per_s": round(1 / statistics.median(walls), 2),
        "stages_cpu_ms": {n: round(1e3 * s / count, 3) for n, s in zip(("decode", "resize", "crop_mirror_turn"), clock)},
        "load_average": os.getloadavg()[0],
    }
    text = json.dumps(line)
    print(text)
    if a.json:
        with open(a.json, "a") as f:
            f.write(text + "\n")


if __name__ == "__main__":
    main()
