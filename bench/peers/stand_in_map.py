#!/usr/bin/env python3
"""Random maps in the format of nuScenes map expansion 1.3, for measurements and comparisons: as many records a layer as the
real ones have, none of their content.

    stand_in_map.py --out ROOT [--location boston-seaport] [--seed 0] [--share 1.0]

writes ROOT/maps/expansion/<location>.json. Needs numpy.
"""
import argparse
import json
import os

import numpy as np

SIZES = {'singapore-onenorth': (1585.6, 2025.0), 'singapore-hollandvillage': (2808.3, 2922.9),
         'singapore-queenstown': (3228.6, 3687.1), 'boston-seaport': (2979.5, 2118.1)}
POLYGON_LAYERS = ('drivable_area', 'road_segment', 'road_block', 'lane', 'ped_crossing', 'walkway', 'stop_line', 'carpark_area')
LINE_LAYERS = ('road_divider', 'lane_divider', 'traffic_light')
# Records a layer, in the order of both tuples together (nuscenes-devkit, test_all_maps.py).
COUNTS = {'singapore-onenorth': (1, 783, 645, 936, 120, 838, 451, 39, 152, 357, 127),
          'singapore-hollandvillage': (426, 167, 387, 601, 28, 498, 300, 0, 107, 220, 119),
          'singapore-queenstown': (219, 260, 676, 910, 75, 457, 437, 40, 172, 257, 81),
          'boston-seaport': (2, 928, 969, 1215, 340, 301, 775, 275, 377, 671, 307)}


class MapWriter:
    """Collects records; tokens are running numbers written as UUIDs, as long as real ones."""

    def __init__(self, width, height):
        self.top = {'version': '1.3', 'canvas_edge': [width, height], 'node': [], 'line': [], 'polygon': [], 'lane_connector': [],
                    'arcline_path_3': {}, 'connectivity': {}}
        for layer in POLYGON_LAYERS + LINE_LAYERS:
            self.top[layer] = []
        self.count = 0

    def token(self):
        self.count += 1
        digits = '%032x' % (self.count * 0x9e3779b97f4a7c15f39cc0605cedc835 % 2**128)
        return '-'.join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def nodes(self, points):
        tokens = []
        for x, y in points:
            tokens.append(self.token())
            self.top['node'].append({'token': tokens[-1], 'x': float(x), 'y': float(y)})
        return tokens

    def polygon(self, outside, holes=()):
        token = self.token()
        self.top['polygon'].append({'token': token, 'exterior_node_tokens': self.nodes(outside),
                                    'holes': [{'node_tokens': self.nodes(h)} for h in holes]})
        return token

    def line(self, points):
        token = self.token()
        self.top['line'].append({'token': token, 'node_tokens': self.nodes(points)})
        return token

    def area(self, layer, outside, holes=()):
        record = {'token': self.token(), 'polygon_token': self.polygon(outside, holes)}
        if layer == 'lane':
            record.update(lane_type='CAR', left_lane_divider_segments=[], right_lane_divider_segments=[])
        if layer == 'stop_line':
            record.update(stop_line_type='YIELD', ped_crossing_tokens=[], traffic_light_tokens=[], road_block_token='')
        self.top[layer].append(record)

    def drivable(self, polygons):
        self.top['drivable_area'].append({'token': self.token(), 'polygon_tokens': [self.polygon(*p) for p in polygons]})

    def stroke(self, layer, points):
        record = {'token': self.token(), 'line_token': self.line(points)}
        if layer == 'traffic_light':
            record.update(from_road_block_tokens=[], items=[], pose={})
        self.top[layer].append(record)


def star(rng, centre, radius, points, squeeze=1.0):
    """A ring around a centre that does not cross itself."""
    angles = (np.arange(points) + rng.uniform(0.1, 0.9, points)) * 2 * np.pi / points
    r = radius * rng.uniform(0.6, 1.0, points)
    turn = rng.uniform(0, np.pi)
    x, y = r * np.cos(angles), squeeze * r * np.sin(angles)
    return np.stack([centre[0] + x * np.cos(turn) - y * np.sin(turn), centre[1] + x * np.sin(turn) + y * np.cos(turn)], 1)


def strip(rng, start, length, width, points):
    """A bent road: both sides of a smooth line."""
    heading = rng.uniform(0, 2 * np.pi) + np.cumsum(rng.normal(0, 0.06, points))
    step = length / points
    middle = np.asarray(start) + np.cumsum(step * np.stack([np.cos(heading), np.sin(heading)], 1), 0)
    side = width / 2 * np.stack([-np.sin(heading), np.cos(heading)], 1)
    return np.concatenate([middle + side, (middle - side)[::-1]])


def bent_line(rng, start, length, points):
    heading = rng.uniform(0, 2 * np.pi) + np.cumsum(rng.normal(0, 0.1, points))
    return np.asarray(start) + np.cumsum(length / points * np.stack([np.cos(heading), np.sin(heading)], 1), 0)


def streets(rng, low, high, block):
    """A drivable area as real ones are: one large ring, city blocks as holes."""
    width, height = high[0] - low[0], high[1] - low[1]
    edge = []
    for corner, towards in (((0, 0), (1, 0)), ((1, 0), (1, 1)), ((1, 1), (0, 1)), ((0, 1), (0, 0))):
        side = np.asarray(towards) - corner
        for s in np.linspace(0, 1, max(2, int(abs(side * (width, height)).sum() / 10)), endpoint=False):
            p = np.asarray(corner) + s * side
            edge.append(low + p * (width, height) + rng.uniform(-2, 2, 2))
    holes = []
    for i in range(int(width // block)):
        for j in range(int(height // block)):
            centre = low + (np.array([i, j]) + 0.5) * block
            holes.append(star(rng, centre, block * rng.uniform(0.35, 0.47), int(rng.integers(8, 60))))
    return np.array(edge), holes


def stand_in(location, seed=0, share=1.0):
    """The whole map as a dictionary."""
    rng = np.random.default_rng(seed)
    width, height = SIZES.get(location, (2000.0, 2000.0))
    out = MapWriter(width, height)
    counts = dict(zip(POLYGON_LAYERS + LINE_LAYERS, COUNTS.get(location, COUNTS['boston-seaport'])))
    scale = share ** 0.5  # as dense with fewer records
    width, height = width * scale, height * scale
    place = lambda: rng.uniform((0, 0), (width, height))
    for layer, count in counts.items():
        count = max(1, round(count * share)) if count else 0
        for i in range(count):
            if layer == 'drivable_area':
                if count <= 2:
                    low = np.array([20.0, 20.0 + i * height / count])
                    out.drivable([streets(rng, low, np.array([width - 20, (i + 1) * height / count - 10]), 110.0)])
                else:
                    out.drivable([(strip(rng, place(), rng.uniform(60, 400), rng.uniform(6, 18), 80),)])
            elif layer in ('road_segment', 'road_block', 'lane'):
                wide = {'road_segment': 14, 'road_block': 8, 'lane': 3.5}[layer]
                out.area(layer, strip(rng, place(), rng.uniform(15, 120), wide, int(rng.integers(6, 40))))
            elif layer in ('walkway', 'carpark_area'):
                centre, radius = place(), rng.uniform(5, 45)
                holes = [star(rng, centre, radius * 0.1, 8)] if rng.random() < 0.15 else []
                out.area(layer, star(rng, centre, radius, int(rng.integers(5, 50)), 0.4), holes)
            elif layer in ('ped_crossing', 'stop_line'):
                out.area(layer, star(rng, place(), rng.uniform(2, 9), int(rng.integers(4, 8)), 0.5))
            else:
                out.stroke(layer, bent_line(rng, place(), rng.uniform(10, 150), int(rng.integers(2, 40))))
    return out.top


def write(top, root, location):
    folder = os.path.join(root, 'maps', 'expansion')
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, location + '.json')
    with open(path, 'w') as f:
        json.dump(top, f)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--out', required=True)
    parser.add_argument('--location', default='boston-seaport', choices=sorted(SIZES))
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--share', type=float, default=1.0, help='of the records, on an area as much smaller')
    args = parser.parse_args()
    path = write(stand_in(args.location, args.seed, args.share), args.out, args.location)
    print('%s: %.1f MB' % (path, os.path.getsize(path) / 1e6))


if __name__ == '__main__':
    main()
