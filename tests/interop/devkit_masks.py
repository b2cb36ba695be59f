#!/usr/bin/env python3
"""Random patches of a map through the real nuscenes-devkit and through aerie.

    devkit_masks.py TEST [--root ROOT --location NAME] [--patches 100] [--seed 1] [--keep FILE]

TEST is the built nuscenes_map_test. Without --root a stand-in map with a tenth of boston-seaport's records is made. get_map_mask draws
every layer of every patch (100 m at 0.5 m; every fourth one scaled by 0.9 to 1.1); the test compares and prints how many cells
differ, layer by layer. Needs what tests/golden/gen/map_masks.py needs.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'golden', 'gen'))
import map_masks
from map_masks import stand_in_map


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('test')
    parser.add_argument('--root')
    parser.add_argument('--location', default='boston-seaport')
    parser.add_argument('--patches', type=int, default=100)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--keep', help='leave the masks of the devkit here')
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = args.root or folder
        if not args.root:
            stand_in_map.write(stand_in_map.stand_in(args.location, args.seed, 0.1), root, args.location)
        path = os.path.join(root, 'maps', 'expansion', args.location + '.json')
        with open(path) as f:
            top = json.load(f)
        masks = args.keep or os.path.join(folder, 'masks.safetensors')
        start = time.time()
        patches = map_masks.random_patches(np.random.default_rng(args.seed), top, args.patches)
        kept, failed = map_masks.record(root, args.location, patches, masks)
        print('devkit: %d patches drawn, %d failed, %.1f ms each' % (kept, failed, 1e3 * (time.time() - start) / args.patches), flush=True)
        status = subprocess.run([args.test, '--gtest_filter=DevkitMasksTest.*', '--gtest_brief=1'],
                                env=dict(os.environ, AERIE_MAP=path, AERIE_MAP_MASKS=masks)).returncode
        sys.exit(status)


if __name__ == '__main__':
    main()
