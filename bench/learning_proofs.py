#!/usr/bin/env python3
"""Shows that LSS + Swin learns: trains on a synthetic town and writes a table, curves and pictures.

usage: python3 bench/learning_proofs.py --aerie build/aerie --work runs/proofs [--minutes 7.5] [--out bench/results/learning]
       python3 bench/learning_proofs.py --aerie build/aerie --work runs/proofs --list | --table

What it runs, seed after seed (--only takes parts of names):
  overfit           8 samples without augmentation, 300 iterations: mIoU on them above 0.90, loss down 20 times
  fp16, bf16, fp32  three seeds each, 1,500 iterations: final mIoU within max(1.5 points, 3 pooled deviations) of each other; mIoU 0.60, drivable area 0.85
  shuffled          pictures change cameras anew for every sample: mIoU at least 0.20 below

Runs (--jobs at a time) are stopped after --minutes with SIGTERM, which saves; calling the script again goes on with them. Of a finished run metrics.jsonl
and pictures/ are all that a later call needs. A run that fails does not stop the others. Exit status 0: all runs are done and everything holds; 1: something
does not hold; 2: a run failed; 3: call again. The results are in OUT/results.json, too.
--config and --options K=V ... change the runs: with --config configs/baseline/lss_swin_quickstart.yaml they are small enough for a CPU.
Standard library only. Nothing is downloaded: the town is made by `aerie data synth` (--size small, about 430 MB).
"""
import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

PRECISIONS = {"fp16": "16-mixed", "bf16": "bf16-mixed", "fp32": "32"}
COLOURS = {"fp16": "#1f6feb", "bf16": "#1a7f4b", "fp32": "#d9730d", "shuffled": "#cf3f55", "overfit": "#8250df"}


def plan(args):
    """name -> (kind, options); the order is that of running."""
    runs = {"overfit": ("overfit", [
        "trainer.max_steps=%d" % args.overfit_iterations, "trainer.overfit_batches=2", "trainer.val_check_interval=50", "trainer.log_every_n_steps=1", "model.train_ds.batch_size=4",
        "model.train_ds.image.augment=false", "model.train_ds.bev.augment=false", "model.validation_ds.split=train", "model.validation_ds.batch_size=4",
        "model.encoders.camera.backbone.drop_path_rate=0.0", "model.optim.lr=%s" % args.overfit_rate, "aerie.seed=0"])}
    # Seed after seed: what there was time for says something of every kind.
    for seed in range(args.seeds):
        for kind, precision in PRECISIONS.items():
            runs[f"{kind}_seed{seed}"] = (kind, [f"trainer.precision={precision}", f"aerie.seed={seed}"])
        runs[f"shuffled_seed{seed}"] = ("shuffled", [
            "trainer.precision=bf16-mixed", f"aerie.seed={seed}", "model.train_ds.shuffle_cameras=true", "model.validation_ds.shuffle_cameras=true"])
    return {name: run for name, run in runs.items() if not args.only or any(part in name for part in args.only)}


def records(folder):
    out = []
    try:
        with open(os.path.join(folder, "metrics.jsonl")) as f:
            for line in f:
                try:
                    out.append(json.loads(line))
                except ValueError:
                    pass
    except FileNotFoundError:
        pass
    return out


def finished(folder):
    ends = [r for r in records(folder) if r.get("event") in ("end", "resume", "start")]
    return bool(ends) and ends[-1].get("event") == "end" and ends[-1].get("reason") == "finished"


def start(args, name, options, root):
    folder = os.path.join(args.work, name)
    command = [args.aerie, "train", args.config, "--work-dir", folder, "--cfg-options", f"model.train_ds.root={root}", *options, *args.options]
    print("run", name, flush=True)
    with open(os.path.join(args.work, name + ".log"), "a") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def has_failed(args, name, child):
    if child.returncode in (0, 4):
        return False
    with open(os.path.join(args.work, name + ".log"), errors="replace") as log:
        print("%s failed (exit status %d):\n%s" % (name, child.returncode, log.read()[-3000:]), file=sys.stderr, flush=True)
    return True


def train(args, runs, root, until):
    """Runs what is not finished, args.jobs at a time: what is not finished then, and what failed."""
    waiting = [name for name in runs if not finished(os.path.join(args.work, name))]
    running, failed = {}, []
    try:
        while waiting or running:
            # A start costs some seconds: too little time left is left to the next call.
            while waiting and len(running) < args.jobs and until - time.time() >= 20:
                name = waiting.pop(0)
                running[name] = start(args, name, runs[name][1], root)
            if not running:
                break
            over = time.time() >= until
            if over:
                for child in running.values():
                    child.send_signal(signal.SIGTERM)
            for name, child in list(running.items()):
                if over:
                    child.wait()
                if child.poll() is not None:
                    del running[name]
                    if has_failed(args, name, child):
                        failed.append(name)
            time.sleep(0.2)
    finally:
        for child in running.values():
            child.send_signal(signal.SIGTERM)
        for child in running.values():
            child.wait()
    return [name for name in runs if not finished(os.path.join(args.work, name))], failed


def scores(folder):
    rows = [r for r in records(folder) if r.get("kind") == "val" and "mIoU" in r]
    losses = [r["loss"] for r in records(folder) if r.get("kind") == "train" and "loss" in r]
    if not rows:
        return None
    last = rows[-1]
    return dict(step=last["step"], mIoU=last["mIoU"], drivable=last.get("map/drivable_area/iou@max"), curve=[(r["step"], r["mIoU"]) for r in rows],
                loss=(losses[0], losses[-1]) if losses else None)


def svg(curves, path):
    width, height, left, top = 860, 420, 60, 20
    most = max((step for _, points in curves for step, _ in points), default=1)
    x = lambda step: left + (width - left - 140) * step / most
    y = lambda value: top + (height - top - 40) * (1 - value)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for k in range(0, 11, 2):
        parts.append(f'<path d="M{left} {y(k / 10):.1f}H{width - 140}" stroke="#dde3ea"/><text x="{left - 8}" y="{y(k / 10) + 4:.1f}" text-anchor="end">{k / 10:.1f}</text>')
    for k in range(0, 6):
        step = most * k // 5
        parts.append(f'<text x="{x(step):.1f}" y="{height - 18}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{(left + width - 140) / 2}" y="{height - 3}" text-anchor="middle">iteration</text><text x="8" y="14">mIoU of the validation scenes</text>')
    seen = []
    for kind, points in curves:
        line = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[kind]}" stroke-width="2" opacity="0.8"/>')
        if kind not in seen:
            seen.append(kind)
            at = top + 18 * len(seen)
            parts.append(f'<rect x="{width - 128}" y="{at - 9}" width="10" height="10" fill="{COLOURS[kind]}"/><text x="{width - 112}" y="{at}">{kind}</text>')
    with open(path, "w") as f:
        f.write("\n".join(parts) + "\n</svg>\n")


def table(args, runs, failed=()):
    """Writes it; whether everything that was looked at holds."""
    os.makedirs(args.out, exist_ok=True)
    lines = ["# LSS + Swin learns", "", f"`bench/learning_proofs.py`, configuration `{os.path.basename(args.config)}`" + (f", {' '.join(args.options)}" if args.options else "") + ".", "",
             "| run | iteration | mIoU | drivable area |", "|---|---|---|---|"]
    by_kind, curves, verdicts, rows = {}, [], [], []
    for name, (kind, _) in runs.items():
        got = scores(os.path.join(args.work, name))
        if got is None:
            lines.append(f"| {name} | {'failed' if name in failed else 'not run'} | | |")
            continue
        whole = "" if finished(os.path.join(args.work, name)) else " (failed)" if name in failed else " (unfinished)"
        drivable = "" if got["drivable"] is None else f"{got['drivable']:.3f}"
        rows.append({"run": name, "iteration": got["step"], "finished": not whole, "mIoU": got["mIoU"], "drivable": got["drivable"]})
        lines.append(f"| {name} | {got['step']}{whole} | {got['mIoU']:.3f} | {drivable} |")
        curves.append((kind, got["curve"]))
        if not whole:
            by_kind.setdefault(kind, []).append(got)

    def verdict(text, holds):
        verdicts.append(f"- {'holds' if holds else 'DOES NOT HOLD'}: {text}")

    for got in by_kind.get("overfit", []):
        verdict(f"8 samples overfitted: mIoU {got['mIoU']:.3f} > 0.90", got["mIoU"] > 0.90)
        if got["loss"]:
            verdict(f"their loss fell {got['loss'][0] / max(1e-12, got['loss'][1]):.1f} times (20 wanted)", got["loss"][0] >= 20 * got["loss"][1])
    means = {k: statistics.mean(g["mIoU"] for g in by_kind[k]) for k in PRECISIONS if len(by_kind.get(k, [])) >= 2}
    if len(means) >= 2:
        pooled = (statistics.mean(statistics.variance([g["mIoU"] for g in by_kind[k]]) for k in means)) ** 0.5
        spread, allowed = max(means.values()) - min(means.values()), max(0.015, 3 * pooled)
        verdict("precisions agree: " + ", ".join(f"{k} {v:.3f}" for k, v in means.items()) + f"; spread {spread:.3f}, allowed {allowed:.3f} (pooled deviation {pooled:.4f})", spread <= allowed)
    trained = [g for k in PRECISIONS for g in by_kind.get(k, [])]
    if trained:
        best = max(trained, key=lambda g: g["mIoU"])
        verdict(f"mIoU {best['mIoU']:.3f} >= 0.60", best["mIoU"] >= 0.60)
        if best["drivable"] is not None:
            verdict(f"drivable area {best['drivable']:.3f} >= 0.85", best["drivable"] >= 0.85)
        if by_kind.get("shuffled"):
            plain, mixed = statistics.mean(g["mIoU"] for g in trained), statistics.mean(g["mIoU"] for g in by_kind["shuffled"])
            verdict(f"shuffled cameras: {mixed:.3f}, {plain - mixed:.3f} below {plain:.3f} (0.20 wanted)", plain - mixed >= 0.20)
    if curves:
        svg(curves, os.path.join(args.out, "curves.svg"))
        lines += ["", "![mIoU over the iterations](curves.svg)"]
    for name in runs:
        steps = os.path.join(args.work, name, "pictures")
        folders = sorted(os.listdir(steps), key=lambda s: int(re.sub(r"\D", "", s) or 0)) if os.path.isdir(steps) else []
        pictures = sorted(os.listdir(os.path.join(steps, folders[-1]))) if folders else []
        if pictures and (name == "overfit" or name.endswith("seed0")):
            target = f"{name}.jpg"
            shutil.copyfile(os.path.join(steps, folders[-1], pictures[0]), os.path.join(args.out, target))
            lines += ["", f"{name}, {folders[-1].replace('_', ' ')}:", "", f"![{name}]({target})"]
    verdicts += [f"- DOES NOT HOLD: {name} failed, see its log" for name in failed]
    with open(os.path.join(args.out, "results.json"), "w") as f:
        json.dump({"runs": rows, "verdicts": [line[2:] for line in verdicts]}, f, indent=1)
    text = "\n".join(lines[:4] + verdicts + [""] + lines[4:]) + "\n"
    with open(os.path.join(args.out, "README.md"), "w") as f:
        f.write(text)
    print(text)
    return not any(line.startswith("- DOES NOT HOLD") for line in verdicts)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--aerie", default=os.path.join(here, "..", "build", "aerie"))
    p.add_argument("--work", default="runs/proofs", help="folder of the runs and of the town")
    p.add_argument("--out", default=None, help="folder of table, curves and pictures (default: WORK/results)")
    p.add_argument("--minutes", type=float, default=7.5, help="stop after so long, to go on in the next call; 0: never")
    p.add_argument("--config", default=os.path.join(here, "learning_proofs.yaml"))
    p.add_argument("--options", nargs="*", default=[], help="KEY=VALUE of every run")
    p.add_argument("--data", help="a nuScenes root instead of a town")
    p.add_argument("--size", default="small", help="of the town: tiny or small")
    p.add_argument("--image-size", default="1600x900")
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--jobs", type=int, default=1, help="runs at a time; a large GPU is not full with one")
    p.add_argument("--overfit-iterations", type=int, default=300)
    p.add_argument("--overfit-rate", default="1e-3")
    p.add_argument("--only", nargs="*", default=[])
    p.add_argument("--list", action="store_true")
    p.add_argument("--table", action="store_true", help="write the results of what has run")
    args = p.parse_args()
    args.out = args.out or os.path.join(args.work, "results")
    until = time.time() + 60 * args.minutes if args.minutes > 0 else float("inf")
    runs = plan(args)
    os.makedirs(args.work, exist_ok=True)
    if args.list:
        for name in runs:
            print(name, "done" if finished(os.path.join(args.work, name)) else "")
        return 0
    open_runs, failed = [], []
    if not args.table:
        root = args.data or os.path.join(args.work, "town")
        if not args.data:
            subprocess.run([args.aerie, "data", "synth", "--kind", "nuscenes", "--out", root, "--size", args.size, "--image-size", args.image_size],
                           check=True, stdout=subprocess.DEVNULL)
        open_runs, failed = train(args, runs, root, until)
    holds = table(args, runs, failed)
    # A run that failed comes again in the next call; when nothing else is left there is none.
    return 3 if set(open_runs) - set(failed) else 2 if failed else 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
