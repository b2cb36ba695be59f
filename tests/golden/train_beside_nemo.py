#!/usr/bin/env python3
"""Train the same small NEST with real NeMo and with aerie, several seeds each, and compare the losses.

usage: train_beside_nemo.py AERIE --out DIR [--seeds 5] [--steps 2000] [--jobs 2] [--plot FILE.svg] [--result FILE.json]

Everything random is on (shuffling, mixing, masks, dropout, dither); every run starts from one init.nemo that NeMo made (the
draw of the quantizer alone moves the loss), aerie runs with aerie.compat=nemo-2.6. Compared are the training loss, averaged
over the last 100 steps, at a quarter, half and all of the steps (mean of ours within three pooled standard deviations
of NeMo's), and a linear phoneme probe on the features of every run's last weights. Runs that are finished are not repeated.
Needs nemo_toolkit[asr] (2.6.2 was used). Exit status 1 when something is out of bounds.
"""
import argparse
import concurrent.futures
import json
import math
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIGS = os.path.join(HERE, "..", "..", "configs", "nest")
WINDOW = 100  # steps that a loss is averaged over


def overrides(out, steps):
    corpus = os.path.join(out, "corpus")
    return {
        "model.num_classes": 64,
        "model.code_dim": 8,
        "model.train_ds.manifest_filepath": f"{corpus}/train.json",
        "model.train_ds.noise_manifest": f"{corpus}/noise.json",
        "model.train_ds.batch_size": 4,
        "model.train_ds.num_workers": 0,
        "model.train_ds.pin_memory": False,
        "model.validation_ds.manifest_filepath": f"{corpus}/dev.json",
        "model.validation_ds.noise_manifest": f"{corpus}/noise.json",
        "model.encoder.n_layers": 2,
        "model.encoder.d_model": 32,
        "model.encoder.subsampling_conv_channels": 16,
        "model.optim.lr": 0.113,  # peak 2e-3
        "trainer.max_steps": steps,
    }


def nemo_config(out, steps):
    from omegaconf import OmegaConf
    cfg = OmegaConf.load(os.path.join(CONFIGS, "nest_quickstart.yaml"))
    for key, value in overrides(out, steps).items():
        OmegaConf.update(cfg, key, value, force_add=True)
    return cfg


def quiet():
    import logging
    import warnings
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    warnings.filterwarnings("ignore")
    import torch
    torch.set_num_threads(1)
    from nemo.utils import logging as nemo_logging
    nemo_logging.setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def make_init(out, steps):
    quiet()
    import torch
    from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel
    from omegaconf import OmegaConf
    torch.manual_seed(0)
    full = OmegaConf.to_container(nemo_config(out, steps).model, resolve=True)
    for node in ("train_ds", "validation_ds"):
        full.pop(node)
    EncDecDenoiseMaskedTokenPredModel(OmegaConf.create(full), trainer=None).save_to(f"{out}/init.nemo")


def nemo_run(out, steps, seed):
    quiet()
    import random

    import lightning.pytorch as pl
    import numpy
    import torch
    from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel

    class Losses(pl.Callback):
        def __init__(self):
            self.values = []

        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            self.values.append(float(outputs["loss"]))

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    cfg = nemo_config(out, steps)
    losses = Losses()
    trainer = pl.Trainer(devices=1, accelerator="cpu", max_steps=steps, precision=32, limit_val_batches=0,
                         num_sanity_val_steps=0, logger=False, enable_progress_bar=False, enable_checkpointing=False,
                         enable_model_summary=False, callbacks=[losses], default_root_dir=out)
    model = EncDecDenoiseMaskedTokenPredModel(cfg=cfg.model, trainer=trainer)
    start = EncDecDenoiseMaskedTokenPredModel.restore_from(f"{out}/init.nemo", map_location="cpu", strict=True)
    model.load_state_dict(start.state_dict(), strict=True)
    del start
    begin, cpu = time.time(), time.process_time()
    trainer.fit(model)
    wall, cpu = time.time() - begin, time.process_time() - cpu
    model.save_to(f"{out}/nemo_{seed}.nemo")
    finish(f"{out}/nemo_{seed}.json", {"losses": losses.values, "wall_s": wall, "cpu_s": cpu})


def aerie_run(aerie, out, steps, seed):
    begin = time.time()
    run = [aerie, "train", f"--config-path={CONFIGS}", "--config-name=nest_quickstart"]
    run += [f"{key}={value}" for key, value in overrides(out, steps).items()]
    run += [f"+init_from_nemo_model={out}/init.nemo", "aerie.compat=nemo-2.6", f"aerie.seed={seed}",
            "trainer.log_every_n_steps=1", "+trainer.limit_val_batches=0", "trainer.accelerator=cpu",
            "trainer.enable_progress_bar=false", f"exp_manager.exp_dir={out}/runs", f"exp_manager.name=aerie_{seed}"]
    with open(f"{out}/aerie_{seed}.log", "w") as log:
        child = subprocess.Popen(run, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
        _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        raise RuntimeError(f"{out}/aerie_{seed}.log")
    folder = f"{out}/runs/aerie_{seed}"
    losses = []
    with open(f"{folder}/metrics.jsonl") as lines:
        for line in lines:
            record = json.loads(line)
            if record["kind"] == "train":
                losses.append(record["train_loss"])
    os.replace(f"{folder}/checkpoints/aerie_{seed}.nemo", f"{out}/aerie_{seed}.nemo")
    finish(f"{out}/aerie_{seed}.json", {"losses": losses, "wall_s": time.time() - begin, "cpu_s": usage.ru_utime + usage.ru_stime})


def finish(path, content):
    with open(path + ".tmp", "w") as f:
        json.dump(content, f)
    os.replace(path + ".tmp", path)


def probe(aerie, out, name):
    path = f"{out}/{name}.probe.json"
    if not os.path.exists(path):
        text = subprocess.run([aerie, "probe", "--model", f"{out}/{name}.nemo", "--corpus", f"{out}/corpus", "--no-random",
                               "--no-log-mel", "--device", "cpu", "--json", "--train-utterances", "200"], check=True,
                              capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout
        finish(path, json.loads(text))
    with open(path) as f:
        return json.load(f)


def phoneme_accuracy(report):
    return 100.0 * report["tasks"]["phoneme"]["features"]["trained"]["test"]


def smoothed(losses, step):
    return statistics.fmean(losses[max(0, step - WINDOW):step])


def curve(losses, every):
    return [(s, smoothed(losses, s)) for s in range(WINDOW, len(losses) + 1, every)]


def compare(ours, theirs):
    """Means, pooled standard deviation, and how many of them the means are apart."""
    pooled = math.sqrt((statistics.variance(ours) + statistics.variance(theirs)) / 2)
    a, b = statistics.fmean(ours), statistics.fmean(theirs)
    return {"aerie": a, "nemo": b, "pooled_sd": pooled, "apart_sd": abs(a - b) / pooled if pooled > 0 else 0.0}


def plot(path, runs, steps):
    width, height, left, bottom, top, right = 760, 420, 60, 44, 34, 16
    curves = {kind: [curve(r["losses"], max(1, steps // 200)) for r in group] for kind, group in runs.items()}
    values = [v for group in curves.values() for c in group for _, v in c]
    low, high = min(values), max(values)
    low, high = low - 0.05 * (high - low), high + 0.05 * (high - low)
    x = lambda s: left + (width - left - right) * s / steps
    y = lambda v: top + (height - top - bottom) * (high - v) / (high - low)
    colour = {"nemo": "#d9822b", "aerie": "#1f6feb"}
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
           f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="20" font-size="14">Training loss, mean of {WINDOW} steps; thin: one seed, thick: mean</text>']
    ticks = 5
    for k in range(ticks + 1):
        v, s = low + (high - low) * k / ticks, steps * k / ticks
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#e4e4e4"/>'
                   f'<text x="{left - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.2f}</text>'
                   f'<text x="{x(s):.1f}" y="{height - bottom + 18}" text-anchor="middle">{s:.0f}</text>')
    out.append(f'<text x="{(left + width) / 2}" y="{height - 8}" text-anchor="middle">optimizer step</text>')
    for kind, group in curves.items():
        mean = [(points[0][0], statistics.fmean(v for _, v in points)) for points in zip(*group)]
        for c, stroke, opacity in [(c, 1, 0.35) for c in group] + [(mean, 2.5, 1)]:
            points = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in c)
            out.append(f'<polyline fill="none" stroke="{colour[kind]}" stroke-width="{stroke}" opacity="{opacity}" points="{points}"/>')
    for k, (kind, label) in enumerate((("nemo", "NeMo"), ("aerie", "aerie"))):
        at = width - right - 130
        out.append(f'<line x1="{at}" x2="{at + 26}" y1="{top + 14 + 18 * k}" y2="{top + 14 + 18 * k}" stroke="{colour[kind]}" stroke-width="2.5"/>'
                   f'<text x="{at + 34}" y="{top + 18 + 18 * k}">{label}, {len(curves[kind])} seeds</text>')
    with open(path, "w") as f:
        f.write("\n".join(out) + "\n</svg>\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("aerie")
    ap.add_argument("--out", required=True)
    ap.add_argument("--seeds", type=int, default=5)
    ap.add_argument("--steps", type=int, default=2000)
    ap.add_argument("--jobs", type=int, default=2)
    ap.add_argument("--plot")
    ap.add_argument("--result")
    ap.add_argument("--nemo-seed", type=int, help=argparse.SUPPRESS)  # how the script calls itself
    ap.add_argument("--init", action="store_true", help=argparse.SUPPRESS)
    a = ap.parse_args()
    out, aerie = os.path.abspath(a.out), os.path.abspath(a.aerie)
    if a.init:
        return make_init(out, a.steps)
    if a.nemo_seed is not None:
        return nemo_run(out, a.steps, a.nemo_seed)

    os.makedirs(out, exist_ok=True)
    again = [sys.executable, os.path.abspath(__file__), aerie, "--out", out, "--steps", str(a.steps)]
    subprocess.run([aerie, "data", "synth", "--out", f"{out}/corpus", "--hours", "0.5", "--speakers", "20", "--min-duration",
                    "1.5", "--max-duration", "2.5"], check=True, stdout=subprocess.DEVNULL)
    if not os.path.exists(f"{out}/init.nemo"):
        subprocess.run(again + ["--init"], check=True)

    def work(job):
        kind, seed = job
        if os.path.exists(f"{out}/{kind}_{seed}.json"):
            return
        if kind == "aerie":
            aerie_run(aerie, out, a.steps, seed)
        else:
            with open(f"{out}/nemo_{seed}.log", "w") as log:
                subprocess.run(again + ["--nemo-seed", str(seed)], check=True, stdout=log, stderr=log)
        print(f"{kind} seed {seed} done", flush=True)

    jobs = [(kind, seed) for seed in range(1, a.seeds + 1) for kind in ("nemo", "aerie")]
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        list(pool.map(work, jobs))

    runs = {}
    for kind in ("nemo", "aerie"):
        runs[kind] = []
        for seed in range(1, a.seeds + 1):
            with open(f"{out}/{kind}_{seed}.json") as f:
                runs[kind].append(json.load(f))
            assert len(runs[kind][-1]["losses"]) == a.steps
    result = {"steps": a.steps, "seeds": a.seeds, "window": WINDOW, "loss": {}, "cpu_s": {}}
    ok = True
    for step in (a.steps // 4, a.steps // 2, a.steps):
        row = compare([smoothed(r["losses"], step) for r in runs["aerie"]], [smoothed(r["losses"], step) for r in runs["nemo"]])
        result["loss"][str(step)] = row
        ok &= row["apart_sd"] <= 3
        print(f"step {step}: aerie {row['aerie']:.4f}  NeMo {row['nemo']:.4f}  pooled sd {row['pooled_sd']:.4f}  apart {row['apart_sd']:.2f} sd")
    probes = {kind: [phoneme_accuracy(probe(aerie, out, f"{kind}_{s}")) for s in range(1, a.seeds + 1)] for kind in runs}
    row = compare(probes["aerie"], probes["nemo"])
    row["values"] = probes
    result["phoneme_probe_percent"] = row
    # As good: not worse by more than the seeds scatter.
    ok &= row["aerie"] >= row["nemo"] - 3 * row["pooled_sd"]
    print(f"phoneme probe: aerie {row['aerie']:.2f} %  NeMo {row['nemo']:.2f} %  pooled sd {row['pooled_sd']:.2f}")
    for kind in runs:
        result["cpu_s"][kind] = statistics.fmean(r["cpu_s"] for r in runs[kind])
    print(f"CPU seconds per run: {result['cpu_s']}")
    if a.result:
        finish(a.result, result)
    if a.plot:
        plot(a.plot, runs, a.steps)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
