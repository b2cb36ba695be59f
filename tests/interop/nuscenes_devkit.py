#!/usr/bin/env python3
"""A synthetic data set in the real nuscenes-devkit, unmodified.

usage: nuscenes_devkit.py ROOT [--version v1.0-mini] [--patches 100] [--out RESULT.json]

Loads ROOT (made by `aerie data synth --kind nuscenes`) with NuScenes and NuScenesMap and walks through it the way users of
the devkit do: every reference, both directions of every chain, counts, key frames of all twelve sensors, calibrated poses,
boxes in the frames of the sensors, velocities, point files, pictures, masks; all four maps, whether their polygons are
valid, and get_map_mask on random patches, whose masks are compared with the polygons themselves at cell centres.
Prints what it found as JSON and fails at the first thing that is wrong.
Needs nuscenes-devkit 1.2.0 (which needs numpy < 2) in an environment of its own.
"""
import argparse
import collections
import importlib.metadata
import json
import os
import random

import cv2
import numpy as np
import shapely
from nuscenes.map_expansion.map_api import NuScenesMap, locations
from nuscenes.nuscenes import NuScenes
from nuscenes.utils import splits
from nuscenes.utils.data_classes import LidarPointCloud, RadarPointCloud
from nuscenes.utils.geometry_utils import transform_matrix
from PIL import Image
from pyquaternion import Quaternion

SENSORS = {"CAM_FRONT", "CAM_FRONT_RIGHT", "CAM_FRONT_LEFT", "CAM_BACK", "CAM_BACK_LEFT", "CAM_BACK_RIGHT", "LIDAR_TOP",
           "RADAR_FRONT", "RADAR_FRONT_LEFT", "RADAR_FRONT_RIGHT", "RADAR_BACK_LEFT", "RADAR_BACK_RIGHT"}


def check(condition, message):
    if not condition:
        raise SystemExit(f"FAILED: {message}")


def check_references(nusc):
    """Every *_token of every row names a row; tokens are unique."""
    tables = {"scene_token": "scene", "log_token": "log", "sample_token": "sample", "ego_pose_token": "ego_pose",
              "calibrated_sensor_token": "calibrated_sensor", "sensor_token": "sensor", "instance_token": "instance",
              "visibility_token": "visibility", "category_token": "category", "first_sample_token": "sample",
              "last_sample_token": "sample", "first_annotation_token": "sample_annotation",
              "last_annotation_token": "sample_annotation", "map_token": "map"}
    checked = 0
    for name in nusc.table_names:
        rows = getattr(nusc, name)
        check(len({row["token"] for row in rows}) == len(rows), f"{name}: a token is there twice")
        for row in rows:
            for key, value in row.items():
                if key in tables:
                    nusc.get(tables[key], value)
                    checked += 1
                elif key in ("attribute_tokens", "log_tokens"):
                    for token in value:
                        nusc.get("attribute" if key == "attribute_tokens" else "log", token)
                        checked += 1
    return checked


def chain(nusc, table, first):
    tokens, previous, token = [], "", first
    while token:
        row = nusc.get(table, token)
        check(row["prev"] == previous, f"{table} {token}: prev is {row['prev']}")
        tokens.append(token)
        previous, token = token, row["next"]
    return tokens


def check_tables(nusc, root, with_files):
    counts = collections.Counter()
    speeds, offsets, turns = [], [], []
    for scene in nusc.scene:
        samples = chain(nusc, "sample", scene["first_sample_token"])
        check(len(samples) == scene["nbr_samples"], f"{scene['name']}: nbr_samples")
        check(samples[-1] == scene["last_sample_token"], f"{scene['name']}: last sample")
        times = [nusc.get("sample", token)["timestamp"] for token in samples]
        check(all(0.35e6 < b - a < 0.65e6 for a, b in zip(times, times[1:])), f"{scene['name']}: not 2 Hz")
        for token in samples:
            sample = nusc.get("sample", token)
            check(set(sample["data"]) == SENSORS, f"sample {token}: sensors {sorted(sample['data'])}")
            lidar = nusc.get("sample_data", sample["data"]["LIDAR_TOP"])
            for channel in SENSORS:
                data = nusc.get("sample_data", sample["data"][channel])
                check(os.path.basename(os.path.dirname(data["filename"])) == channel, data["filename"])
                if channel.startswith("CAM"):
                    offsets.append(abs(lidar["timestamp"] - data["timestamp"]) * 1e-3)
                    check(data["ego_pose_token"] != lidar["ego_pose_token"], "camera and lidar share a pose")
            counts["annotations"] += len(sample["anns"])
        # Sensor chains go through the whole scene.
        for channel in SENSORS:
            row = nusc.get("sample_data", nusc.get("sample", samples[0])["data"][channel])
            while row["prev"]:
                row = nusc.get("sample_data", row["prev"])
            rows = [nusc.get("sample_data", token) for token in chain(nusc, "sample_data", row["token"])]
            stamps = [row["timestamp"] for row in rows]
            check(stamps == sorted(set(stamps)), f"{scene['name']} {channel}: times do not rise")
            check(sum(row["is_key_frame"] for row in rows) == len(samples), f"{channel}: key frames")
            counts["chained sample_data"] += len(rows)
            if channel == "LIDAR_TOP":
                poses = [nusc.get("ego_pose", row["ego_pose_token"]) for row in rows]
                for a, b in zip(poses, poses[1:]):
                    dt = (b["timestamp"] - a["timestamp"]) * 1e-6
                    speeds.append(np.linalg.norm(np.subtract(b["translation"], a["translation"])) / dt)
                    turns.append(abs((Quaternion(a["rotation"]).inverse * Quaternion(b["rotation"])).yaw_pitch_roll[0]) / dt)
        check(nusc.get("log", scene["log_token"])["location"] in locations, "location")
    for instance in nusc.instance:
        anns = chain(nusc, "sample_annotation", instance["first_annotation_token"])
        check(len(anns) == instance["nbr_annotations"] and anns[-1] == instance["last_annotation_token"], "instance chain")
        counts["chained annotations"] += len(anns)
    check(counts["chained annotations"] == len(nusc.sample_annotation) == counts["annotations"], "annotations")
    check(counts["chained sample_data"] == len(nusc.sample_data), "sample_data outside the chains")
    velocities = [nusc.box_velocity(row["token"]) for row in nusc.sample_annotation[::max(1, len(nusc.sample_annotation) // 2000)]]
    known = [np.linalg.norm(v) for v in velocities if np.all(np.isfinite(v))]
    check(max(known) < 15.0, f"a box moves at {max(known)} m/s")
    check(max(speeds) < 12.5, f"the ego drives at {max(speeds)} m/s")
    if with_files:
        for row in nusc.sample_data:
            check(os.path.exists(os.path.join(root, row["filename"])), f"{row['filename']} is not there")
    return {"ego_speed_m_s": [round(min(speeds), 3), round(max(speeds), 3)],
            "ego_turn_rad_s_max": round(max(turns), 3),
            "camera_lidar_offset_ms": [round(min(offsets), 1), round(max(offsets), 1)],
            "box_speed_m_s_max": round(max(known), 3), "boxes_with_velocity": len(known)}


def check_sensors(nusc, picks):
    """Boxes and points through the devkit's own transforms."""
    counts = collections.Counter()
    worst = 0.0
    for sample in picks:
        path, boxes, _ = nusc.get_sample_data(sample["data"]["LIDAR_TOP"])
        counts["boxes in the lidar frame"] += len(boxes)
        points = LidarPointCloud.from_file(path)
        data = nusc.get("sample_data", sample["data"]["LIDAR_TOP"])
        sensor = nusc.get("calibrated_sensor", data["calibrated_sensor_token"])
        pose = nusc.get("ego_pose", data["ego_pose_token"])
        points.transform(transform_matrix(sensor["translation"], Quaternion(sensor["rotation"])))
        points.transform(transform_matrix(pose["translation"], Quaternion(pose["rotation"])))
        worst = max(worst, float(np.abs(points.points[2]).max()))
        counts["lidar points"] += points.nbr_points()
        for channel in SENSORS:
            if channel.startswith("RADAR"):
                counts["radar points"] += RadarPointCloud.from_file(nusc.get_sample_data_path(sample["data"][channel])).nbr_points()
            elif channel.startswith("CAM"):
                path, boxes, intrinsic = nusc.get_sample_data(sample["data"][channel])
                counts["boxes in pictures"] += len(boxes)
                data = nusc.get("sample_data", sample["data"][channel])
                with Image.open(path) as picture:
                    picture.load()
                    check(picture.size == (data["width"], data["height"]) and picture.mode == "RGB", path)
                check(np.array(intrinsic).shape == (3, 3), "intrinsic")
                counts["pictures"] += 1
    check(worst < 1e-3, f"lidar points are {worst} m off the ground")
    return {**counts, "lidar_off_ground_m": worst}


def check_masks(nusc, root):
    """The semantic prior: the ego always drives on it."""
    on = total = 0
    for scene in nusc.scene:
        mask = nusc.get("map", nusc.get("log", scene["log_token"])["map_token"])["mask"]
        token = scene["first_sample_token"]
        while token:
            sample = nusc.get("sample", token)
            x, y, _ = nusc.get("ego_pose", nusc.get("sample_data", sample["data"]["LIDAR_TOP"])["ego_pose_token"])["translation"]
            on += bool(mask.is_on_mask(x, y))
            total += 1
            token = sample["next"]
    check(on / total > 0.9, f"the ego is on the mask in {on} of {total} samples only")
    return {"ego_on_mask": f"{on} of {total}"}


def check_map(root, name, patches, rng):
    api = NuScenesMap(dataroot=root, map_name=name)
    counts = {layer: len(getattr(api, layer)) for layer in api.non_geometric_layers}
    invalid = holes = 0
    for record in api.polygon:
        polygon = api.extract_polygon(record["token"])
        invalid += not polygon.is_valid
        holes += len(polygon.interiors)
    check(invalid == 0, f"{name}: {invalid} polygons are not valid")
    agreement = []
    layers = ["drivable_area", "ped_crossing", "walkway", "stop_line", "carpark_area"]
    trees = {}
    for layer in layers:
        shapes = []
        for record in getattr(api, layer):
            tokens = record["polygon_tokens"] if layer == "drivable_area" else [record["polygon_token"]]
            shapes += [api.extract_polygon(token) for token in tokens]
        trees[layer] = shapely.STRtree(shapes)
    drawn = [layer for layer in api.non_geometric_layers if layer != "traffic_light"]  # which has no mask
    width, height = api.canvas_edge
    intersection, union = collections.Counter(), collections.Counter()
    for _ in range(patches):
        x, y, angle = rng.uniform(60, width - 60), rng.uniform(60, height - 60), rng.uniform(-180, 180)
        mask = api.get_map_mask((x, y, 100.0, 100.0), angle, drawn, (200, 200))
        check(mask.shape == (len(drawn), 200, 200), f"mask of shape {mask.shape}")
        cells = (np.arange(200) + 0.5) / 2 - 50
        u, v = np.meshgrid(cells, cells)
        c, s = np.cos(np.radians(angle)), np.sin(np.radians(angle))
        points = shapely.points(x + c * u - s * v, y + s * u + c * v).ravel()
        for layer in layers:
            inside = np.zeros(200 * 200, bool)
            inside[trees[layer].query(points, predicate="intersects")[0]] = True
            ours = mask[drawn.index(layer)].astype(bool).ravel()
            intersection[layer] += int((inside & ours).sum())
            union[layer] += int((inside | ours).sum())
    iou = {layer: round(intersection[layer] / union[layer], 4) for layer in layers if union[layer]}
    # The devkit's masks are a cell wider than the polygons, which shows most on what is narrow.
    check(iou["drivable_area"] > 0.92, f"{name}: drivable IoU {iou['drivable_area']}")
    return {"records": counts, "polygons": len(api.polygon), "holes": holes, "patches": patches,
            "mask_against_polygons_iou": iou}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root")
    parser.add_argument("--version", default="v1.0-mini")
    parser.add_argument("--patches", type=int, default=100, help="random patches, shared by the four maps")
    parser.add_argument("--out")
    args = parser.parse_args()
    rng = random.Random(1)
    nusc = NuScenes(version=args.version, dataroot=args.root, verbose=False)
    with_files = os.path.isdir(os.path.join(args.root, "samples"))
    result = {"versions": {name: importlib.metadata.version(name) for name in ("nuscenes-devkit", "numpy", "shapely", "Pillow")}}
    result["versions"]["opencv"] = cv2.__version__
    result["rows"] = {name: len(getattr(nusc, name)) for name in nusc.table_names}
    names = {scene["name"] for scene in nusc.scene}
    result["splits"] = {name: len(names & set(getattr(splits, name))) for name in ("mini_train", "mini_val", "train", "val", "test")}
    result["references_resolved"] = check_references(nusc)
    result.update(check_tables(nusc, args.root, with_files))
    if with_files:
        result["sensors"] = check_sensors(nusc, nusc.sample[::max(1, len(nusc.sample) // 10)])
        result.update(check_masks(nusc, args.root))
    result["maps"] = {name: check_map(args.root, name, args.patches // 4, rng) for name in locations}
    text = json.dumps(result, indent=1)
    print(text)
    print("all well")
    if args.out:
        with open(args.out, "w") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
