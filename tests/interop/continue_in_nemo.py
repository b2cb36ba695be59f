#!/usr/bin/env python3
"""A run of aerie goes on in real NeMo from what `aerie convert` makes of its native checkpoint.

usage: continue_in_nemo.py AERIE_BINARY [CASE ...]        default: all cases

Each case trains the model of tests/data/fixtures/nest_tiny with aerie for eight steps, and for four with a checkpoint that is
turned into a .ckpt. NeMo's trainer.fit(ckpt_path=...) goes on from that to step eight; its losses must be those of aerie's own
steps five to eight (all frames are masked alike, no dropout, no noise, no shuffling; an epoch has four steps, so that both begin
one there). Also checked: global step, learning rates, the last weights, load_from_checkpoint() with nothing but the file, and, with
EMA, that NeMo takes up the averages from the -EMA file and restores a .nemo of them. `mid` stops inside an epoch, on clips that are
all alike, since NeMo begins its loader anew there. `folder` runs aerie with aerie.lightning_checkpoints=true and starts NeMo with
exp_manager.resume_if_exists in the same folder.
"""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

import common
import lightning.pytorch as pl
import torch
from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel as Nest
from nemo.utils.exp_manager import exp_manager
from omegaconf import OmegaConf, open_dict
from safetensors.torch import load_file

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "data", "fixtures", "nest_tiny")
EPOCH, END = 4, 8
TOLERANCE = 2e-5  # of the loss: two implementations, float32

NOAM = "{name: NoamAnnealing, d_model: 32, warmup_steps: 3, warmup_ratio: null, min_lr: 1e-6}"
CASES = {
    "adamw": ["model.optim={name: adamw, lr: 0.1, betas: [0.9, 0.98], weight_decay: 1e-3, sched: %s}" % NOAM],
    "amsgrad": ["model.optim={name: adam, lr: 2e-3, amsgrad: true, weight_decay: 1e-2, sched: {name: CosineAnnealing, warmup_steps: 2, min_lr: 1e-5}}"],
    "groups": ["model.optim={name: adamw, lr: 1e-3, sched: {name: SquareAnnealing, warmup_steps: 2, min_lr: 1e-6}}",
               "+model.optim_param_groups={encoder: {lr: 3e-3}}"],
    "sgd": ["model.optim={name: sgd, lr: 0.05, momentum: 0.9, nesterov: true, sched: {name: WarmupAnnealing, warmup_steps: 2}}"],
    "novograd": ["model.optim={name: novograd, lr: 5e-3, betas: [0.8, 0.5], weight_decay: 1e-3, sched: {name: PolynomialDecayAnnealing, warmup_steps: 1}}"],
    "constant": ["model.optim={name: adamw, lr: 1e-3}"],
    "step": ["model.optim={name: adamw, lr: 2e-3, sched: {name: StepLR, step_size: 3, gamma: 0.5}}"],
    "cyclic": ["model.optim={name: adamw, lr: 1e-3, sched: {name: CyclicLR, base_lr: 1e-4, max_lr: 3e-3, step_size_up: 3}}"],
    "accumulate": ["model.optim={name: adamw, lr: 1e-3, sched: {name: CosineAnnealing, warmup_steps: 2}}", "trainer.accumulate_grad_batches=2"],
    "mid": ["model.optim={name: adamw, lr: 1e-3, sched: {name: CosineAnnealing, warmup_steps: 2}}"],
    "ema": ["model.optim={name: adamw, lr: 2e-3, sched: {name: CosineAnnealing, warmup_steps: 2}}"],
    "folder": ["model.optim={name: adamw, lr: 2e-3, sched: {name: CosineAnnealing, warmup_steps: 2}}"],
}


def run(*command, **kw):
    done = subprocess.run(command, capture_output=True, text=True, **kw)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:3])}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout


def split_of(case):
    return 3 if case == "mid" else EPOCH


def train_aerie(aerie, data, out, steps, case, extra=()):
    """Losses and learning rates of every optimizer step."""
    accumulate = 2 if case == "accumulate" else 1
    ema = "ema: {enable: true, decay: 0.9}, " if case == "ema" else ""
    run(aerie, "train", "--config-path", data, "--config-name", "config_adam", "aerie.compat=nemo-2.6", f"trainer.max_steps={END}",
        "~model.optim", *["+" + CASES[case][0]], *[x for x in CASES[case][1:] if not x.startswith("trainer.")], *extra,
        f"trainer.accumulate_grad_batches={accumulate}", f"++trainer.limit_train_batches={EPOCH * accumulate}",
        "++trainer.limit_val_batches=0", "++trainer.log_every_n_steps=1", "model.train_ds.shuffle=false",
        "model.train_ds.batch_size=1", f"model.train_ds.manifest_filepath={'same' if case == 'mid' else 'eight'}.json",
        f"+exp_manager={{explicit_log_dir: {out}, name: m, resume_if_exists: true, resume_ignore_no_checkpoint: true, {ema}"
        f"checkpoint_callback_params: {{always_save_nemo: false, save_nemo_on_train_end: false, filename: 'm--{{step}}', "
        f"every_n_train_steps: {split_of(case)}, save_top_k: -1, monitor: train_loss}}}}", cwd=data)
    lines = [json.loads(x) for x in open(os.path.join(out, "metrics.jsonl"))]
    return [x["train_loss"] for x in lines if x["kind"] == "train"][:steps], [x["learning_rate"] for x in lines if x["kind"] == "train"][:steps]


class Record(pl.Callback):
    def __init__(self):
        self.losses, self.rates = [], []

    def on_train_batch_start(self, trainer, module, batch, index):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.losses.append(float(outputs["loss"]))


def config_of(out):
    cfg = OmegaConf.create(OmegaConf.to_container(OmegaConf.load(os.path.join(out, "config.yaml")), resolve=True))
    with open_dict(cfg):
        cfg.model.train_ds.num_workers = 0
        cfg.model.validation_ds = None if "validation_ds" not in cfg.model else cfg.model.validation_ds
    return cfg


def train_nemo(out, case, ckpt=None, folder=None):
    torch.manual_seed(0)
    cfg, record = config_of(out), Record()
    accumulate = 2 if case == "accumulate" else 1
    callbacks = [record]
    if case == "ema":
        from nemo.collections.common.callbacks import EMA
        from nemo.utils.callbacks.nemo_model_checkpoint import NeMoModelCheckpoint
        callbacks += [EMA(decay=0.9), NeMoModelCheckpoint(dirpath=os.path.dirname(ckpt), save_top_k=0, save_nemo_on_train_end=False, save_last=False)]
    trainer = pl.Trainer(
        devices=1, accelerator="cpu", max_steps=END, precision=32, limit_val_batches=0, num_sanity_val_steps=0, logger=False,
        enable_progress_bar=False, enable_checkpointing=case == "ema", callbacks=callbacks, limit_train_batches=EPOCH * accumulate,
        accumulate_grad_batches=accumulate, gradient_clip_val=cfg.trainer.get("gradient_clip_val") or 0.0)
    if folder is not None:
        exp_manager(trainer, OmegaConf.create(dict(explicit_log_dir=folder, resume_if_exists=True, create_tensorboard_logger=False,
                                                   create_checkpoint_callback=False, resume_ignore_no_checkpoint=False)))
        ckpt = trainer.ckpt_path
    model = Nest(cfg=cfg.model, trainer=trainer)
    if folder is not None:
        trainer.fit(model)
    else:
        trainer.fit(model, ckpt_path=ckpt)
    return trainer, model, record, ckpt


def close(a, b, tolerance=TOLERANCE):
    return len(a) == len(b) and all(abs(x - y) <= tolerance * max(abs(x), abs(y), 1e-30) for x, y in zip(a, b))


def one(aerie, case, tmp):
    data, whole, split = os.path.join(tmp, "data"), os.path.join(tmp, case, "whole"), split_of(case)
    os.makedirs(os.path.join(tmp, case))
    os.chdir(data)  # the manifests are named relative to it
    extra = ["++aerie.lightning_checkpoints=true"] if case == "folder" else []
    losses, rates = train_aerie(aerie, data, whole, END, case, extra)
    folders = [d for d in glob.glob(os.path.join(whole, "checkpoints", "*")) if os.path.isdir(d)]
    at = {json.load(open(os.path.join(d, "state.json")))["train"]["step"]: d for d in folders}
    end_state = at[END]
    accumulate = 2 if case == "accumulate" else 1
    if case == "folder":
        # What is left of the run as if it had stopped after the first half.
        for path in glob.glob(os.path.join(whole, "checkpoints", "*")):
            keep = f"step={split}" in os.path.basename(path)
            if not keep:
                (shutil.rmtree if os.path.isdir(path) else os.remove)(path)
        mine = os.path.join(whole, "checkpoints", f"m--step={split}.ckpt")
        os.rename(mine, mine.replace(".ckpt", "-last.ckpt"))
        print("   in the folder:", sorted(os.listdir(os.path.join(whole, "checkpoints"))))
        trainer, model, record, ckpt = train_nemo(whole, case, folder=whole)
        assert ckpt.endswith("-last.ckpt"), ckpt
    else:
        ckpt = os.path.join(tmp, case, "half.ckpt")
        run(aerie, "convert", at[split], ckpt)
        if case == "ema":
            run(aerie, "convert", "--ema", at[split], ckpt.replace(".ckpt", "-EMA.ckpt"))
        loaded = Nest.load_from_checkpoint(ckpt, map_location="cpu")
        weights = load_file(os.path.join(at[split], "model.safetensors"))
        assert all(torch.equal(t, weights[n]) for n, t in loaded.state_dict().items()) and len(weights) == len(loaded.state_dict())
        trainer, model, record, _ = train_nemo(whole, case, ckpt)
    # Lightning divides the loss of every micro-batch by their number.
    theirs = [sum(record.losses[i:i + accumulate]) for i in range(0, len(record.losses), accumulate)]
    their_rates = record.rates[::accumulate]
    assert trainer.global_step == END, trainer.global_step
    ok = close(theirs, losses[split:]) and close(their_rates, rates[split:], 1e-6)
    # The end of both: weights and moments.
    end = load_file(os.path.join(end_state, "model.safetensors")) if os.path.isdir(end_state) else None
    worst = 0.0
    if end is not None:
        for name, t in model.state_dict().items():
            if t.is_floating_point():
                worst = max(worst, float((t.double() - end[name].double()).abs().max() / (end[name].double().abs().max() + 1e-12)))
        ok = ok and worst < 1e-2  # Adam makes whole steps of rounding where a gradient is 0
    if case == "ema":
        optimizer = trainer.optimizers[0]
        averages = load_file(os.path.join(end_state, "ema.safetensors"))
        names = [n for n, _ in model.named_parameters()]
        off = max(float((e - averages[n]).abs().max()) for n, e in zip(names, optimizer.ema_params))
        assert optimizer.current_step == END and off < 1e-3, (optimizer.current_step, off)
        torch.load(ckpt.replace(".ckpt", "-EMA.ckpt"), weights_only=True)  # as NeMo's callback opens it
        exported = Nest.load_from_checkpoint(ckpt.replace(".ckpt", "-EMA.ckpt"), map_location="cpu", cfg=config_of(whole).model)
        start = load_file(os.path.join(at[split], "ema.safetensors"))
        assert all(torch.equal(p, start[n]) for n, p in exported.named_parameters())
        nemo = os.path.join(tmp, case, "ema.nemo")
        run(aerie, "convert", os.path.join(at[split], "ema.safetensors"), nemo)
        restored, _ = common.restore(nemo)
        assert all(torch.equal(p, start[n]) for n, p in restored.named_parameters())
    print(f"{case:10s} {'ok ' if ok else 'BAD'} losses of steps {split + 1} to {END}: aerie {['%.6f' % x for x in losses[split:]]}, "
          f"NeMo {['%.6f' % x for x in theirs]}; last weights within {worst:.1e}", flush=True)
    return 0 if ok else 1


def main():
    aerie = os.path.abspath(sys.argv[1])
    status = 0
    with tempfile.TemporaryDirectory() as tmp:
        data = os.path.join(tmp, "data")
        shutil.copytree(DATA, data)
        lines = [x for x in open(os.path.join(data, "train.json")) if x.strip()]
        with open(os.path.join(data, "eight.json"), "w") as f:
            f.writelines((lines * 2)[:8])
        with open(os.path.join(data, "same.json"), "w") as f:
            f.writelines([lines[0]] * 8)
        for case in sys.argv[2:] or CASES:
            status |= one(aerie, case, tmp)
    sys.exit(status)


if __name__ == "__main__":
    main()
