#!/usr/bin/env python3
"""Train a tiny model for thousands of steps and compare the process's anonymous memory early and late.

usage: memory_flat.py AERIE --out DIR [--steps 5000] [--from-step 500]

The corpus has utterances of many lengths, so that batches of many shapes come by; validation and checkpoints are on. Prints
the anonymous resident memory (RssAnon: heap and stacks) at the first and at the last of the two steps; exit status 1 when it grew
by more than 1 % and 16 MiB.
"""
import argparse
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def anonymous_mib(pid):
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024.0
    return None


def last_step(path):
    try:
        with open(path, "rb") as f:
            f.seek(0, os.SEEK_END)
            f.seek(max(0, f.tell() - 4096))
            lines = f.read().split(b"\n")
    except OSError:
        return 0
    for line in reversed(lines[:-1]):
        try:
            return json.loads(line)["step"]
        except ValueError:
            pass
    return 0


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("aerie")
    ap.add_argument("--out", required=True)
    ap.add_argument("--steps", type=int, default=5000)
    ap.add_argument("--from-step", type=int, default=500)
    a = ap.parse_args()
    out, aerie = os.path.abspath(a.out), os.path.abspath(a.aerie)
    subprocess.run([aerie, "data", "synth", "--out", f"{out}/corpus", "--hours", "0.1", "--speakers", "5", "--min-duration", "1",
                    "--max-duration", "4"], check=True, stdout=subprocess.DEVNULL)
    corpus = f"{out}/corpus"
    run = subprocess.Popen(
        [aerie, "train", f"--config-path={HERE}/../../configs/nest", "--config-name=nest_quickstart",
         f"model.train_ds.manifest_filepath={corpus}/train.json", f"model.train_ds.noise_manifest={corpus}/noise.json",
         f"model.validation_ds.manifest_filepath={corpus}/dev.json", f"model.validation_ds.noise_manifest={corpus}/noise.json",
         "model.train_ds.batch_size=4", "model.num_classes=16", "model.code_dim=4", "model.encoder.n_layers=1",
         "model.encoder.d_model=16", "model.encoder.n_heads=2", "model.encoder.subsampling_conv_channels=8",
         "trainer.accelerator=cpu", f"trainer.max_steps={a.steps}", "trainer.val_check_interval=200", "trainer.log_every_n_steps=1",
         "trainer.enable_progress_bar=false", f"exp_manager.exp_dir={out}/runs", "exp_manager.name=flat"],
        stdout=open(f"{out}/train.log", "w"), stderr=subprocess.STDOUT)
    metrics, seen = f"{out}/runs/flat/metrics.jsonl", {}
    while run.poll() is None:
        step, memory = last_step(metrics), anonymous_mib(run.pid)
        if memory is not None and step > 0:
            seen[step] = memory
        time.sleep(0.05)
    assert run.returncode == 0, open(f"{out}/train.log").read()[-2000:]
    near = lambda step: seen[min(seen, key=lambda s: abs(s - step))]
    early, late = near(a.from_step), near(a.steps - 1)
    for step in range(a.from_step, a.steps + 1, max(1, a.steps // 10)):
        print(f"step {step:6d}: {near(step):8.1f} MiB")
    grown = late - early
    print(f"anonymous memory: {early:.1f} MiB at step {a.from_step}, {late:.1f} MiB at step {a.steps}: {grown:+.1f} MiB, {100 * grown / early:+.2f} %")
    sys.exit(1 if grown > 16 and grown > 0.01 * early else 0)


if __name__ == "__main__":
    main()
