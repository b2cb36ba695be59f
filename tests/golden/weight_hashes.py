#!/usr/bin/env python3
"""Hash the weights and the optimizer's state after 50 deterministic steps, in the ways aerie trains: what a change that must not
change numbers is held against.

usage: weight_hashes.py AERIE --out DIR [--gpu] [--configs DIR] [--result FILE.json] [--expect FILE.json]

On the CPU: the reference engine in float32, plain files, tar shards with accumulation and averaging. With --gpu also both engines
on the GPU in float32, bf16-mixed and 16-mixed. Hashes belong to one kind of machine: --expect compares with a file that another
binary wrote on it; exit status 1 when one differs. --configs: configs/nest of an older binary, which does not know newer keys. Needs no Python package.
"""
import argparse
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIGS = os.path.join(HERE, "..", "..", "configs", "nest")
STEPS = 50
CPU = {
    "cpu reference float32": ["reference", "cpu", "32"],
    "cpu reference float32, tarred, accumulation, EMA": ["reference", "cpu", "32", "tarred"],
    "cpu reference float32, tarred, int16 rows mixed by the step": ["reference", "cpu", "32", "tarred", "aerie.data.mix_on=gpu"],
}
GPU = {f"gpu {engine} {precision}{extra}": [engine, "gpu", precision] + (["tarred"] if extra else [])
       for engine in ("fast", "reference") for precision in ("32", "bf16-mixed", "16-mixed")
       for extra in ("", ", tarred, accumulation, EMA")}


def call(*args):
    done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(args)}\n{done.stdout[-3000:]}")


def train(aerie, configs, out, name, engine, accelerator, precision, *extra):
    corpus = f"{out}/corpus"
    options = []
    if "tarred" in extra:
        options += [f"model.train_ds.manifest_filepath={out}/shards/tarred_audio_manifest.json", "++model.train_ds.is_tarred=true",
                    f"++model.train_ds.tarred_audio_filepaths={out}/shards/audio__OP_0..3_CL_.tar",
                    "++trainer.accumulate_grad_batches=2", "++exp_manager.ema.enable=true", "++exp_manager.ema.decay=0.99"]
    else:
        options += [f"model.train_ds.manifest_filepath={corpus}/train.json"]
    call(aerie, "train", f"--config-path={configs}", "--config-name=nest_quickstart", *options, "model.num_classes=64",
         "model.code_dim=8", f"model.train_ds.noise_manifest={corpus}/noise.json", "model.train_ds.batch_size=4",
         f"model.validation_ds.manifest_filepath={corpus}/dev.json", f"model.validation_ds.noise_manifest={corpus}/noise.json",
         "model.encoder.n_layers=2", "model.encoder.d_model=64", "model.encoder.n_heads=1",
         "model.encoder.subsampling_conv_channels=32", f"trainer.max_steps={STEPS}", f"aerie.engine={engine}",
         f"trainer.accelerator={accelerator}", f"trainer.precision={precision}", "aerie.seed=77", "+trainer.deterministic=true",
         "+trainer.limit_val_batches=2", "trainer.enable_progress_bar=false", f"exp_manager.exp_dir={out}/runs",
         f"exp_manager.name={name}", *[e for e in extra if "=" in e])
    last, = glob.glob(f"{out}/runs/{name}/**/*-last", recursive=True)
    hashes = {os.path.basename(path): hashlib.sha256(open(path, "rb").read()).hexdigest()[:16]
              for path in sorted(glob.glob(f"{last}/*.safetensors"))}
    losses = [json.loads(line) for line in open(glob.glob(f"{out}/runs/{name}/**/metrics.jsonl", recursive=True)[0])]
    numbers = [[r.get("step"), r.get("train_loss"), r.get("val_loss"), r.get("grad_norm")] for r in losses if r.get("kind") != "event"]
    hashes["metrics"] = hashlib.sha256(json.dumps(numbers).encode()).hexdigest()[:16]
    return hashes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("aerie")
    parser.add_argument("--out", required=True)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--configs", default=CONFIGS)
    parser.add_argument("--result")
    parser.add_argument("--expect")
    args = parser.parse_args()
    aerie = os.path.abspath(args.aerie)
    if not os.path.isdir(f"{args.out}/corpus"):
        call(aerie, "data", "synth", "--out", f"{args.out}/corpus", "--hours", "0.2", "--speakers", "12", "--seed", "5")
    if not os.path.isdir(f"{args.out}/shards"):
        call(aerie, "data", "shard", "--manifest", f"{args.out}/corpus/train.json", "--target-dir", f"{args.out}/shards", "--num-shards", "4")
    # A run that is there would be gone on with, not made.
    shutil.rmtree(f"{args.out}/runs", ignore_errors=True)
    result = {}
    for name, how in (CPU | (GPU if args.gpu else {})).items():
        result[name] = train(aerie, os.path.abspath(args.configs), args.out, f"run{len(result)}", *how)
        print(name, result[name], flush=True)
    if args.result:
        json.dump(result, open(args.result, "w"), indent=1)
    if args.expect:
        before = json.load(open(args.expect))
        wrong = [name for name in result if name in before and before[name] != result[name]]
        print("equal" if not wrong else f"DIFFERENT: {', '.join(wrong)}")
        sys.exit(1 if wrong else 0)


main()
