#!/usr/bin/env python3
"""Train with aerie, restore what it wrote in real NeMo, and compare the validation loss that each computes.

usage: loss_in_nemo.py AERIE_BINARY [RUN ...]         RUN: adam, sgd, novograd (default all)

Each run trains the model of tests/data/fixtures/nest_tiny (two books, x4 subsampling, 8 kHz) and validates after the last step.
Masking is mask_prob 1 by the rules of NeMo 2.6, so that both sides mask the same frames. Three archives are tried: the .nemo of
the run, that one through `aerie convert`, and the native checkpoint through `aerie convert`. Exit status 1 when a loss differs
by more than 1e-5 of itself.
"""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

import common
import torch
from omegaconf import OmegaConf

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "data", "fixtures", "nest_tiny")


def run(*command, **kw):
    done = subprocess.run(command, capture_output=True, text=True, **kw)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:3])}: {done.stdout[-1500:]}{done.stderr[-1500:]}")


def nemo_val_loss(archive, data):
    """The mean over the validation batches, as NeMo's own loop computes it."""
    model, _ = common.restore(archive)
    node = OmegaConf.create(dict(manifest_filepath=os.path.join(data, "val.json"), noise_manifest=None, sample_rate=8000, batch_size=2,
                                 shuffle=False, num_workers=0, pin_memory=False, min_duration=0.1))
    model.setup_validation_data(node)
    losses = []
    with torch.no_grad():
        for batch in model._validation_dl:
            lp, length, masks, tokens = model(input_signal=batch.audio, input_signal_length=batch.audio_len,
                                              noisy_input_signal=batch.noisy_audio, noisy_input_signal_length=batch.noisy_audio_len, apply_mask=True)
            losses.append(float(model.loss(masks=masks, decoder_outputs=lp, targets=tokens, decoder_lengths=length)))
    return sum(losses) / len(losses)


def one(aerie, name, tmp):
    data, out = os.path.join(tmp, "data"), os.path.join(tmp, name)
    run(aerie, "train", "--config-path", data, "--config-name", f"config_{name}", "aerie.compat=nemo-2.6", "trainer.max_steps=6",
        "trainer.accumulate_grad_batches=1",  # so that the validation falls on the last step
        "trainer.val_check_interval=6", f"+exp_manager={{explicit_log_dir: {out}, name: m, checkpoint_callback_params: {{always_save_nemo: true}}}}", cwd=data)
    lines = [json.loads(x) for x in open(os.path.join(out, "metrics.jsonl"))]
    ours = [x for x in lines if x["kind"] == "val"][-1]
    saved = glob.glob(os.path.join(out, "checkpoints", "*.nemo"))[0]
    native = [d for d in glob.glob(os.path.join(out, "checkpoints", "*")) if os.path.isdir(d)][0]
    archives = dict(train=saved, converted=os.path.join(tmp, f"{name}_a.nemo"), native=os.path.join(tmp, f"{name}_b.nemo"))
    run(aerie, "convert", saved, archives["converted"])
    run(aerie, "convert", native, archives["native"])
    status = 0
    for kind, path in archives.items():
        theirs = nemo_val_loss(path, data)
        off = abs(theirs - ours["val_loss"]) / abs(theirs)
        status |= 0 if off <= 1e-5 else 1
        print(f"{name} {kind:10s} step {ours['step']}: aerie {ours['val_loss']:.7f}, NeMo {theirs:.7f}, off by {off:.1e}", flush=True)
    return status


def main():
    aerie = os.path.abspath(sys.argv[1])
    status = 0
    with tempfile.TemporaryDirectory() as tmp:
        shutil.copytree(DATA, os.path.join(tmp, "data"))
        for name in sys.argv[2:] or ["adam", "sgd", "novograd"]:
            status |= one(aerie, name, tmp)
    sys.exit(status)


if __name__ == "__main__":
    main()
