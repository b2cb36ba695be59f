#!/usr/bin/env python3
"""Times nuscenes-devkit's get_map_mask: the masks of BEVFusion's six classes, one sample after the other on one thread.

    nuscenes_masks.py --root ROOT [--location boston-seaport] [--seconds 5] [--seed 0] [--poses FILE] [--json]

ROOT holds maps/expansion/<location>.json (bench/peers/stand_in_map.py makes one with the real record counts). Poses are random places
of the map, or the lines "location x y yaw" (metres, radians) of FILE. Prints one JSON line: ms_per_sample (median; cpu_ms_per_sample
the same by CPU time, the figure to trust on a busy machine), samples, extremes.
Needs nuscenes-devkit 1.2.0 (numpy < 2); with shapely 2 one function of the devkit is replaced, which cannot take lines in parts.
"""
import argparse
import json
import math
import os
import statistics
import time

os.environ.setdefault('OMP_NUM_THREADS', '1')
import cv2
import numpy as np
import shapely
from nuscenes.map_expansion.map_api import NuScenesMap, NuScenesMapExplorer

# The layers that six classes need: divider is the last two.
LAYERS = ['drivable_area', 'ped_crossing', 'walkway', 'stop_line', 'carpark_area', 'road_divider', 'lane_divider']


def mask_for_lines(lines, mask):
    for line in getattr(lines, 'geoms', [lines]):
        if line.geom_type == 'LineString':
            cv2.polylines(mask, [np.asarray(list(line.coords), np.int32).reshape((-1, 2))], False, 1, 2)
    return mask


NuScenesMapExplorer.mask_for_lines = staticmethod(mask_for_lines)


def labels(nusc_map, x, y, yaw):
    """[6, x, y] as BEVFusion's LoadBEVSegmentation has it."""
    masks = nusc_map.get_map_mask((x, y, 100.0, 100.0), yaw / math.pi * 180, LAYERS, (200, 200)).transpose(0, 2, 1).astype(bool)
    return np.concatenate([masks[:5], (masks[5] | masks[6])[None]])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--root', required=True)
    parser.add_argument('--location', default='boston-seaport')
    parser.add_argument('--seconds', type=float, default=5.0)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--poses')
    parser.add_argument('--json', action='store_true', help='accepted; the output always is JSON')
    args = parser.parse_args()
    cv2.setNumThreads(1)
    maps = {}

    def map_of(location):
        if location not in maps:
            maps[location] = NuScenesMap(args.root, location)
        return maps[location]

    if args.poses:
        with open(args.poses) as f:
            words = [line.split() for line in f if line.strip()]
        poses = [(w[0], float(w[1]), float(w[2]), float(w[3])) for w in words]
    else:
        rng = np.random.default_rng(args.seed)
        nodes = map_of(args.location).node
        poses = [(args.location, nodes[i]['x'], nodes[i]['y'], yaw)
                 for i, yaw in zip(rng.integers(0, len(nodes), 10000), rng.uniform(-math.pi, math.pi, 10000))]
    for location in {p[0] for p in poses}:
        map_of(location)
    times, cpus, failed, cells, start = [], [], 0, 0, time.perf_counter()
    for location, x, y, yaw in poses:
        if times and time.perf_counter() - start > args.seconds:
            break
        begin, begin_cpu = time.perf_counter(), time.process_time()
        try:
            cells += int(labels(map_of(location), x, y, yaw).sum())
        except (AttributeError, shapely.errors.GEOSException):  # the devkit's own limits; see the docstring of map_masks.py
            failed += 1
            continue
        times.append(time.perf_counter() - begin)
        cpus.append(time.process_time() - begin_cpu)
    print(json.dumps({'peer': 'nuscenes-devkit', 'opencv': cv2.__version__, 'shapely': shapely.__version__, 'samples': len(times),
                      'failed': failed, 'ms_per_sample': 1e3 * statistics.median(times), 'cpu_ms_per_sample': 1e3 * statistics.median(cpus), 'ms_min': 1e3 * min(times),
                      'ms_max': 1e3 * max(times), 'mean_share_set': cells / max(1, len(times)) / (6 * 200 * 200)}))


if __name__ == '__main__':
    main()
