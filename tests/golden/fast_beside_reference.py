#!/usr/bin/env python3
"""Train the same small NEST with the fast engine (GPU) and the reference engine (CPU), several seeds each, and compare the losses.

usage: fast_beside_reference.py AERIE --out DIR [--seeds 5] [--steps 2000] [--jobs 5] [--result FILE.json]

Everything random is on; every run starts from one init.nemo. Compared is the training loss, averaged over the last 100 steps, at
a quarter, half and all of the steps: means within three pooled standard deviations, in float32 and, for the fast engine, in
bf16-mixed and 16-mixed too. Then one fast run is repeated in `trainer.deterministic=true`: every loss and the weights must be equal
to the bit. Needs a GPU and no Python package. Exit status 1 when something is out of bounds.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys

from train_beside_nemo import compare, finish, smoothed

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIGS = os.path.join(HERE, "..", "..", "configs", "nest")
KINDS = {  # name: engine, accelerator, precision
    "reference": ("reference", "cpu", "32"),
    "fast": ("fast", "gpu", "32"),
    "fast bf16-mixed": ("fast", "gpu", "bf16-mixed"),
    "fast 16-mixed": ("fast", "gpu", "16-mixed"),
}


def train(aerie, out, name, steps, seed, kind, extra=()):
    engine, accelerator, precision = KINDS[kind]
    run = [aerie, "train", f"--config-path={CONFIGS}", "--config-name=nest_quickstart", "model.num_classes=64", "model.code_dim=8",
           f"model.train_ds.manifest_filepath={out}/corpus/train.json", f"model.train_ds.noise_manifest={out}/corpus/noise.json",
           "model.train_ds.batch_size=4", f"model.validation_ds.manifest_filepath={out}/corpus/dev.json",
           f"model.validation_ds.noise_manifest={out}/corpus/noise.json", "model.encoder.n_layers=2", "model.encoder.d_model=64",
           "model.encoder.n_heads=1", "model.encoder.subsampling_conv_channels=32", "model.optim.lr=0.16", f"trainer.max_steps={steps}",
           f"aerie.engine={engine}", f"trainer.accelerator={accelerator}", f"trainer.precision={precision}", f"aerie.seed={seed}",
           "trainer.log_every_n_steps=1", "+trainer.limit_val_batches=0", "trainer.enable_progress_bar=false",
           f"exp_manager.exp_dir={out}/runs", f"exp_manager.name={name}", *extra]
    with open(f"{out}/{name}.log", "w") as log:
        if subprocess.run(run, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "2"}).returncode != 0:
            sys.exit(open(f"{out}/{name}.log").read()[-3000:])
    folder = f"{out}/runs/{name}"
    with open(f"{folder}/metrics.jsonl") as lines:
        losses = [r["train_loss"] for r in map(json.loads, lines) if r["kind"] == "train"]
    assert len(losses) == steps, (name, len(losses))
    return losses, f"{folder}/checkpoints/{name}.nemo"


def weights_hash(out, name):
    for folder, _, files in os.walk(f"{out}/runs/{name}/checkpoints"):
        if "model.safetensors" in files and folder.endswith("-last"):
            with open(os.path.join(folder, "model.safetensors"), "rb") as f:
                return hashlib.sha256(f.read()).hexdigest()
    sys.exit(f"no last checkpoint in {out}/runs/{name}")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("aerie")
    ap.add_argument("--out", required=True)
    ap.add_argument("--seeds", type=int, default=5)
    ap.add_argument("--steps", type=int, default=2000)
    ap.add_argument("--jobs", type=int, default=5)
    ap.add_argument("--result")
    a = ap.parse_args()
    out, aerie = os.path.abspath(a.out), os.path.abspath(a.aerie)
    os.makedirs(out, exist_ok=True)
    subprocess.run([aerie, "data", "synth", "--out", f"{out}/corpus", "--hours", "0.5", "--speakers", "20", "--min-duration", "1.5",
                    "--max-duration", "2.5"], check=True, stdout=subprocess.DEVNULL)
    _, init = train(aerie, out, "init", 1, 0, "reference", ["model.optim.lr=1e-9", "model.optim.sched.min_lr=0.0"])
    start = [f"+init_from_nemo_model={init}"]

    def work(job):
        kind, seed = job
        return train(aerie, out, f"{kind}-{seed}".replace(" ", "-"), a.steps, seed, kind, start)[0]

    seeds = range(1, a.seeds + 1)
    jobs = [(kind, seed) for kind in KINDS for seed in seeds]
    slow = [job for job in jobs if job[0] == "reference"]
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as cpu, concurrent.futures.ThreadPoolExecutor(3) as gpu:
        waiting = {job: (cpu if job in slow else gpu).submit(work, job) for job in jobs}
        runs = {job: future.result() for job, future in waiting.items()}

    ok = True
    result = {"steps": a.steps, "seeds": a.seeds, "loss": {}}
    for kind in KINDS:
        if kind == "reference":
            continue
        for step in (a.steps // 4, a.steps // 2, a.steps):
            row = compare([smoothed(runs[kind, s], step) for s in seeds], [smoothed(runs["reference", s], step) for s in seeds])
            row = {"fast": row["aerie"], "reference": row["nemo"], "pooled_sd": row["pooled_sd"], "apart_sd": row["apart_sd"]}
            result["loss"].setdefault(kind, {})[str(step)] = row
            ok &= row["apart_sd"] <= 3
            print(f"{kind}, step {step}: fast {row['fast']:.4f}  reference {row['reference']:.4f}  pooled sd {row['pooled_sd']:.4f}  "
                  f"apart {row['apart_sd']:.2f} sd", flush=True)
    for kind in ("fast", "fast bf16-mixed"):
        names = [f"twice-{kind}-{i}".replace(" ", "-") for i in (1, 2)]
        both = [train(aerie, out, name, min(a.steps, 300), 1, kind, start + ["+trainer.deterministic=true"])[0] for name in names]
        same = both[0] == both[1] and weights_hash(out, names[0]) == weights_hash(out, names[1])
        result.setdefault("bitwise_equal_twice", {})[kind] = same
        ok &= same
        print(f"{kind}: {min(a.steps, 300)} steps twice, {'equal to the bit' if same else 'DIFFERENT'}", flush=True)
    if a.result:
        finish(a.result, result)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
