#!/usr/bin/env python3
"""Writes tests/data/raster/opencv.txt: what OpenCV 4.11 draws, for raster_test.

    python3 tests/golden/gen/raster_masks.py          needs opencv-python-headless 4.11 and numpy

A line is a case, all whole numbers:
    width height kind calls  {value rings {points {x y}}}  ones crc32
kind 0: each call is cv2.fillPoly(mask, rings, value); kind 1: one cv2.polylines(mask, [points], False, value, 2).
ones and crc32 are of the finished mask, row by row. Lines that begin with # are for people.
"""
import os
import zlib

import cv2
import numpy as np

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'data', 'raster', 'opencv.txt')


def star(rng, centre, radius, points):
    angles = np.sort(rng.uniform(0, 2 * np.pi, points))
    r = radius * rng.uniform(0.3, 1.0, points)
    return np.stack([centre[0] + r * np.cos(angles), centre[1] + r * np.sin(angles)], 1).round().astype(np.int32)


def polygon_with_holes(rng):
    centre, radius = rng.uniform(40, 160, 2), rng.uniform(15, 110)
    holes = [star(rng, centre + rng.uniform(-0.5, 0.5, 2) * radius, radius * rng.uniform(0.05, 0.4), int(rng.integers(3, 10)))
             for _ in range(int(rng.integers(1, 4)))]
    return [(1, [star(rng, centre, radius, int(rng.integers(3, 20)))]), (0, holes)]


def clipped(rng):
    """As the devkit draws them: cut at the patch, so with corners on cell 200."""
    ring = star(rng, rng.uniform(-20, 220, 2), rng.uniform(20, 200), int(rng.integers(3, 20)))
    return [(1, [np.clip(ring, 0, 200)])]


def beyond(rng):
    reach = int(rng.choice([30, 300, 5000, 2**17]))
    return [(1, [rng.integers(-reach, 200 + reach, (int(rng.integers(3, 9)), 2)) for _ in range(int(rng.integers(1, 3)))])]


def crossing(rng):
    return [(1, [rng.integers(-20, 220, (int(rng.integers(3, 30)), 2))])]


def degenerate(rng):
    points = int(rng.integers(1, 5))
    ring = rng.integers(-5, 205, 2) + rng.integers(-30, 30, (points, 1)) * rng.integers(-3, 4, 2)
    return [(int(rng.integers(0, 2)), [ring])]


def polyline(rng):
    start = rng.uniform(0, 200, 2)
    steps = rng.normal(0, rng.choice([2, 10, 60]), (int(rng.integers(1, 15)), 2))
    return (np.concatenate([[start], start + np.cumsum(steps, 0)])).astype(np.int32)


def main():
    assert cv2.__version__.startswith('4.11'), cv2.__version__
    rng = np.random.default_rng(20261116)
    cases = []  # (size, kind, calls)
    for make, count in ((polygon_with_holes, 240), (clipped, 240), (beyond, 120), (crossing, 60), (degenerate, 60)):
        for _ in range(count):
            cases.append(((200, 200), 0, make(rng)))
    for _ in range(60):  # other canvases, down to one cell
        size = tuple(int(v) for v in rng.integers(1, 90, 2))
        cases.append((size, 0, [(1, [rng.integers(-10, 100, (int(rng.integers(1, 12)), 2))])]))
        cases.append((size, 1, [(1, [rng.integers(-10, 100, (int(rng.integers(1, 6)), 2))])]))
    for _ in range(240):
        cases.append(((200, 200), 1, [(1, [polyline(rng)])]))
    for _ in range(60):
        cases.append(((200, 200), 1, [(1, [np.clip(polyline(rng) * 3 - 200, 0, 200)])]))
    for reach in (40, 400, 2**15, 2**20, 2**26):
        for _ in range(12 if reach < 2**20 else 2):
            cases.append(((200, 200), 1, [(1, [rng.integers(-reach, 200 + reach, (4, 2))])]))
    cases.append(((200, 200), 0, [(1, [np.array([[-2**25, -2**25], [2**25, 100], [-7, 2**25]])])]))

    lines = ['# ' + __doc__.splitlines()[0], '# OpenCV %s, %d cases' % (cv2.__version__, len(cases))]
    for size, kind, calls in cases:
        mask = np.zeros((size[1], size[0]), np.uint8)
        words = [*size, kind, len(calls)]
        for value, rings in calls:
            rings = [np.ascontiguousarray(r, np.int32) for r in rings]
            if kind == 0:
                if rings:
                    cv2.fillPoly(mask, rings, value)
            else:
                cv2.polylines(mask, rings, False, value, 2)
            words += [value, len(rings)]
            for ring in rings:
                words += [len(ring), *ring.ravel().tolist()]
        words += [int(mask.sum()), zlib.crc32(mask.tobytes())]
        lines.append(' '.join(str(w) for w in words))
    os.makedirs(os.path.dirname(OUT), exist_ok=True)
    with open(OUT, 'w') as f:
        f.write('\n'.join(lines) + '\n')
    print('%d cases, %d bytes' % (len(cases), os.path.getsize(OUT)))


if __name__ == '__main__':
    main()
