#!/usr/bin/env python3
"""Masks of the real nuscenes-devkit for nuscenes_map_test.

    python3 tests/golden/gen/map_masks.py        writes map.json, map_masks and map_boxes.safetensors in tests/data/bev

Needs nuscenes-devkit 1.2.0 (so numpy < 2), shapely 2.0 and opencv-python-headless 4.11. tests/interop/devkit_masks.py makes
files of the same format of other maps.

Format: patches F64 [N, 5] = x, y, height, width (m), angle (degrees) as get_map_mask takes them; metadata `layers` (with blanks
between), `rows`, `columns`; of every patch and layer, in this order, the mask row by row as lengths of runs, zeros first: runs
U8, each length in groups of seven bits, lowest first, the highest bit set on all but the last; begin I64 [N * layers + 1].

map_boxes.safetensors: boxes F64 [M, 10] = centre, size (width, length, height), rotation (w, x, y, z) in the world, pose F64 [7] =
translation and rotation of the car, and the mask of all of them as Lift-Splat-Shoot draws vehicles: runs, as above.

One function of the devkit is replaced: with shapely 2 it cannot go through the parts of a line that the patch cuts in two.
"""
import json
import os
import struct
import sys
import tempfile

import cv2
import numpy as np
import shapely
from nuscenes.map_expansion.map_api import NuScenesMap, NuScenesMapExplorer
from nuscenes.utils.data_classes import Box
from pyquaternion import Quaternion

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..', '..', 'bench', 'peers'))
import stand_in_map

DATA = os.path.join(HERE, '..', '..', 'data', 'bev')
LAYERS = ['drivable_area', 'road_segment', 'road_block', 'lane', 'ped_crossing', 'walkway', 'stop_line', 'carpark_area',
          'road_divider', 'lane_divider']


def mask_for_lines(lines, mask):
    for line in getattr(lines, 'geoms', [lines]):
        if line.geom_type == 'LineString':
            cv2.polylines(mask, [np.asarray(list(line.coords), np.int32).reshape((-1, 2))], False, 1, 2)
    return mask


NuScenesMapExplorer.mask_for_lines = staticmethod(mask_for_lines)


def write_safetensors(path, tensors, metadata):
    names = {'float64': 'F64', 'int64': 'I64', 'uint8': 'U8'}
    header, offset = {'__metadata__': metadata}, 0
    for name, value in tensors.items():
        header[name] = {'dtype': names[str(value.dtype)], 'shape': list(value.shape), 'data_offsets': [offset, offset + value.nbytes]}
        offset += value.nbytes
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text)
        for value in tensors.values():
            f.write(np.ascontiguousarray(value).tobytes())


def runs_of(mask):
    flat = np.concatenate([[0], mask.ravel(), [2]])
    edges = np.flatnonzero(np.diff(flat)).tolist()
    out, place = bytearray(), 0
    for edge in edges:
        length, place = edge - place, edge
        while length >= 128:
            out.append(length & 127 | 128)
            length >>= 7
        out.append(length)
    return bytes(out)


def record(root, location, patches, path, size=(200, 200)):
    """Draws with the devkit and writes the fixture; patches on which the devkit fails are left out and counted."""
    nusc_map = NuScenesMap(root, location)
    kept, begin, runs, failed = [], [0], b'', 0
    for patch in patches:
        try:
            masks = nusc_map.get_map_mask(tuple(patch[:4]), patch[4], LAYERS, size)
        except (AttributeError, shapely.errors.GEOSException) as error:  # touches in a point, or a drivable_area that GEOS refuses
            print('the devkit fails on', patch, error)
            failed += 1
            continue
        kept.append(patch)
        for mask in masks:
            runs += runs_of(mask)
            begin.append(len(runs))
    write_safetensors(path, {'patches': np.array(kept, np.float64), 'begin': np.array(begin, np.int64),
                             'runs': np.frombuffer(runs, np.uint8)},
                      {'layers': ' '.join(LAYERS), 'rows': str(size[0]), 'columns': str(size[1]),
                       'made_by': 'nuscenes-devkit 1.2.0, shapely %s, GEOS %s, OpenCV %s' %
                                  (shapely.__version__, '.'.join(map(str, shapely.geos_version)), cv2.__version__)})
    return len(kept), failed


def random_patches(rng, top, count):
    x, y = [n['x'] for n in top['node']], [n['y'] for n in top['node']]
    patches = []
    for i in range(count):
        side = 100.0 if i % 4 else 100.0 / rng.uniform(0.9, 1.1)
        patches.append([rng.uniform(min(x), max(x)), rng.uniform(min(y), max(y)), side, side, rng.uniform(-180, 180)])
    return patches


def small_map():
    """All layers, holes, polygons that are none, several polygons a record, shared polygons, empty and unclosed ones."""
    top = stand_in_map.stand_in('singapore-onenorth', seed=3, share=0.012)
    out = stand_in_map.MapWriter(*top['canvas_edge'])
    out.count = 10**6
    out.top = top
    out.area('walkway', [(60, 60), (90, 90), (90, 60), (60, 90)])  # a bow tie: left out
    out.area('walkway', [(100, 40), (140, 40), (140, 80), (100, 80)], [[(120, 60), (150, 60), (150, 70)]])  # hole reaches out
    out.area('walkway', [(20, 100), (80, 100), (80, 150), (20, 150), (20, 100)],
             [[(30, 110), (50, 110), (50, 140), (30, 140), (30, 110)], [(60, 120), (70, 120), (65, 140)], []])
    out.area('walkway', [(35, 115), (45, 115), (45, 120), (35, 120)])  # lies in the hole before it
    out.area('carpark_area', [(10, 160), (100, 160), (100, 200), (10, 200)], [[(15, 165), (95, 165), (95, 195), (15, 195)]])
    out.top['carpark_area'].append({'token': 'shared', 'polygon_token': out.top['walkway'][-1]['polygon_token']})
    out.drivable([([(40, 0), (60, 0), (60, 220), (40, 220)], [[(45, 50), (55, 50), (55, 70)]]), ([(0, 90), (150, 90), (150, 99), (0, 99)],)])
    out.area('ped_crossing', [(0, 0), (10, 0), (10, 5), (20, 5), (10, 5), (10, 10), (0, 10)])  # a spike: left out
    out.area('stop_line', [])
    out.stroke('road_divider', [(-20, 30), (180, 30), (180, 60), (-20, 60), (-20, 120), (200, 121)])
    out.stroke('lane_divider', [(70, 70), (70, 70), (75, 200)])
    out.stroke('lane_divider', [])
    # Shorter tokens and millimetres keep the file small.
    names = {}
    short = lambda t: names.setdefault(t, 't%x' % len(names))
    def shorten(value, key=''):
        if isinstance(value, dict):
            return {k: shorten(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [shorten(v, key) for v in value]
        if isinstance(value, str) and ('token' in key) and value:
            return short(value)
        return round(value, 3) if isinstance(value, float) else value
    return shorten(top)


def record_boxes(path):
    rng = np.random.default_rng(6)
    unit = lambda v: v / np.linalg.norm(v)
    centre = np.array([1234.5, 877.25, 0.0])
    pose = np.concatenate([centre, unit(rng.normal(0, 0.02, 4) + [np.cos(0.4), 0, 0, np.sin(0.4)])])
    boxes, image = [], np.zeros((200, 200))
    for _ in range(60):
        yaw = rng.uniform(0, 2 * np.pi)
        turn = unit(rng.normal(0, 0.03, 4) + [np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)])
        place = centre + np.append(rng.uniform(-60, 60, 2), rng.uniform(0, 2))
        size = rng.uniform([0.6, 1.5, 1.2], [3.0, 12.0, 4.0])
        boxes.append(np.concatenate([place, size, turn]))
        box = Box(place, size, Quaternion(turn))
        box.translate(-centre)
        box.rotate(Quaternion(pose[3:]).inverse)
        corners = np.round((box.bottom_corners()[:2].T - np.array([-49.75, -49.75]) + 0.25) / 0.5).astype(np.int32)
        cv2.fillPoly(image, [corners[:, ::-1].copy()], 1.0)
    write_safetensors(path, {'boxes': np.array(boxes), 'pose': pose, 'runs': np.frombuffer(runs_of(image.astype(np.uint8)), np.uint8)},
                      {'made_by': 'nuscenes-devkit 1.2.0 (Box), OpenCV ' + cv2.__version__})


def main():
    assert cv2.__version__.startswith('4.11'), cv2.__version__
    top = small_map()
    rng = np.random.default_rng(5)
    patches = random_patches(rng, top, 20)
    patches += [[80.375, 90.625, 100.0, 100.0, 0.0], [80.375, 90.625, 100.0, 100.0, 90.0], [75.25, 110.75, 100.0, 100.0, -180.0],
                [60.0, 60.0, 60.0, 80.0, 30.0]]
    with open(os.path.join(DATA, 'map.json'), 'w') as f:
        json.dump(top, f, separators=(',', ':'))
    with tempfile.TemporaryDirectory() as root:
        stand_in_map.write(top, root, 'singapore-onenorth')
        print(record(root, 'singapore-onenorth', patches, os.path.join(DATA, 'map_masks.safetensors')))
    record_boxes(os.path.join(DATA, 'map_boxes.safetensors'))
    for name in ('map.json', 'map_masks.safetensors', 'map_boxes.safetensors'):
        print(name, os.path.getsize(os.path.join(DATA, name)), 'bytes')


if __name__ == '__main__':
    main()
