"""Batches of the Lhotse sampler NeMo makes for batch_duration without buckets: tests/data/lhotse/batches.json.

Durations are given in order (no shuffling), so a batch is how many clips it has. `ranks` holds one list of sizes a rank. Lists
with fewer clips left than ranks are passed over: there Lhotse repeats clips, and aerie does not.

    nemoenv/bin/python tests/golden/gen/lhotse_batches.py
"""
import json
import os
import random
import warnings

import torch
from lhotse import CutSet, MonoCut
from lhotse.dataset import DynamicCutSampler
from nemo.collections.common.data.lhotse.dataloader import LhotseDataLoadingConfig, determine_sampling_constraint

# Lhotse 1.31 hands the base class an argument that torch 2.11 no longer takes.
torch.utils.data.Sampler.__init__ = lambda self, data_source=None: None

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "data", "lhotse", "batches.json")


def durations(rng):
    kind, n = rng.randrange(5), rng.randrange(20, 90)
    if kind == 0:
        return [round(rng.uniform(0.2, 25), 3) for _ in range(n)]
    if kind == 1:
        return [rng.uniform(0.05, 4) ** 2 for _ in range(n)]
    if kind == 2:  # whole multiples meet the limit exactly, or miss it by a rounding
        return [rng.randrange(1, 40) * 0.1 for _ in range(n)]
    if kind == 3:
        return [rng.choice([0.1, 0.3, 0.5, 1.0, 2.5]) for _ in range(n)]
    return [0.5] * rng.randrange(0, 40) + [30.0] + [rng.uniform(1, 3) for _ in range(n)]  # a long one after short ones


def batches(cuts, case, rank):
    config = LhotseDataLoadingConfig(batch_duration=case["batch_duration"], batch_size=case["batch_size"],
                                     quadratic_duration=case["quadratic_duration"], use_bucketing=False)
    cuts, constraint = determine_sampling_constraint(cuts, None, config)
    sampler = DynamicCutSampler(cuts, constraint=constraint, shuffle=False, drop_last=case["drop_last"], rank=rank,
                                world_size=case["world_size"])
    return [[cut.id for cut in batch] for batch in sampler]


def main():
    warnings.simplefilter("ignore")
    rng, cases = random.Random(11), []
    while len(cases) < 60:
        case = {"durations": durations(rng),
                "batch_duration": rng.choice([0.3, 1.0, 3.0, 10.0, 30.0, 60.0, round(rng.uniform(1, 200), 2)]),
                "batch_size": rng.choice([None, None, 1, 4, 16]), "quadratic_duration": rng.choice([None, None, 15.0, 30.0]),
                "drop_last": rng.random() < 0.4, "world_size": rng.choice([1, 1, 1, 2, 3])}
        cuts = CutSet.from_cuts(MonoCut(id=str(i), start=0, duration=d, channel=0) for i, d in enumerate(case["durations"]))
        ranks = [batches(cuts, case, rank) for rank in range(case["world_size"])]
        if any("dup" in cut for rank in ranks for batch in rank for cut in batch):
            continue
        # In order, dealt batch by batch.
        dealt = [int(cut) for step in zip(*ranks) for batch in step for cut in batch]
        assert dealt == list(range(len(dealt)))
        case["ranks"] = [[len(batch) for batch in rank] for rank in ranks]
        cases.append(case)
    os.makedirs(os.path.dirname(OUT), exist_ok=True)
    with open(OUT, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
