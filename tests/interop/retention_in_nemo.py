"""Records which checkpoints NeMo keeps and where its TensorBoard points stand, into tests/data/retention/.

Each setting is a short real run (a very small NEST on the clips of tests/data/golden/plain, exp_manager, CPU) whose
validation and training losses are replaced by given numbers, so that "best" is the same wherever the setting is tried.
retention_test.cc runs the same settings through aerie's loop and compares the listings; tensorboard.json is compared
by the run tests.

    python tests/interop/retention_in_nemo.py          # needs nemo_toolkit 2.6.2
"""
import glob
import json
import math
import os
import shutil
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import lightning.pytorch as pl
import nemo
import torch
from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel
from nemo.utils.exp_manager import exp_manager
from omegaconf import OmegaConf, open_dict
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from make_lightning_ckpt import GOLDEN, tiny_config

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "retention")
NAME = "r-{step}"
LOSSES = [5.0, 3.0, 4.0, 2.0, 6.0]  # of the validations, in their order
NAN = float("nan")

# Six batches an epoch; validation after every third unless the setting says otherwise.
SETTINGS = [
    {"name": "best one", "params": {"save_top_k": 1}},
    {"name": "all", "params": {"save_top_k": -1}},
    {"name": "best two", "params": {"save_top_k": 2}},
    {"name": "none", "params": {"save_top_k": 0}},
    {"name": "highest two", "params": {"save_top_k": 2, "mode": "max"}},
    {"name": "steps, all", "params": {"save_top_k": -1, "every_n_train_steps": 3, "every_n_epochs": None}},
    {"name": "steps, best two", "params": {"save_top_k": 2, "every_n_train_steps": 4, "every_n_epochs": None}},
    {"name": "steps, best three, no last",
     "params": {"save_top_k": 3, "every_n_train_steps": 5, "every_n_epochs": None, "save_last": False}},
    {"name": "steps, every one",
     "params": {"save_top_k": 4, "every_n_train_steps": 1, "every_n_epochs": None}},
    {"name": "best one, no last", "params": {"save_top_k": 1, "save_last": False}},
    {"name": "training loss",
     "params": {"save_top_k": 2, "monitor": "train_loss", "every_n_train_steps": 2, "every_n_epochs": None}},
    {"name": "training loss in the name",
     "params": {"save_top_k": 1, "monitor": "train_loss", "filename": "r-{train_loss:.2f}-{step}"}},
    {"name": "every second epoch", "params": {"save_top_k": -1, "every_n_epochs": 2}},
    {"name": "at the end of epochs", "params": {"save_top_k": -1, "save_on_train_epoch_end": True}},
    {"name": "not a number", "params": {"save_top_k": 1}, "val_losses": [NAN, 3.0, NAN, 2.0, NAN]},
    {"name": "equal ones", "params": {"save_top_k": 2}, "val_losses": [3.0, 3.0, 3.0, 2.0, 2.0]},
    {"name": "the same name twice", "params": {"save_top_k": 2, "filename": "r-{val_loss:.1f}-{epoch}"},
     "val_losses": [3.04, 3.03, 3.02, 3.01, 3.0]},
    {"name": "ends between validations", "params": {"save_top_k": 1}, "max_steps": 11},
    {"name": "without validation",
     "params": {"save_top_k": -1, "every_n_train_steps": 4, "every_n_epochs": None}, "limit_val_batches": 0,
     "max_steps": 14},
]


def train_loss(step):
    """Of optimizer step `step`, counted from 1: falls, with a bump."""
    return round(8.0 - 0.25 * step + (1.5 if step % 4 == 0 else 0.0), 4)


class Scripted(EncDecDenoiseMaskedTokenPredModel):
    """The real model with given losses in the log."""

    val_losses = LOSSES

    def training_step(self, batch, batch_idx):
        out = super().training_step(batch, batch_idx)
        out["log"]["train_loss"] = torch.tensor(train_loss(self.trainer.global_step + 1))
        return out

    def multi_validation_epoch_end(self, outputs, dataloader_idx=0):
        if dataloader_idx == 0:
            self.validations = getattr(self, "validations", 0) + 1
        loss = torch.tensor(self.val_losses[(self.validations - 1) % len(self.val_losses)] + dataloader_idx)
        return {"val_loss": loss, "log": {"val_loss": loss}}


def run(folder, params, val_losses=LOSSES, max_steps=15, limit_val_batches=1.0, val_manifests="val.json", exp=None):
    torch.manual_seed(1)
    cfg = tiny_config()
    with open_dict(cfg):
        cfg.model.train_ds.batch_size = 2
        cfg.model.validation_ds.batch_size = 2
        cfg.model.validation_ds.manifest_filepath = val_manifests
        cfg.trainer.update(max_steps=max_steps, val_check_interval=3, check_val_every_n_epoch=1,
                           limit_val_batches=limit_val_batches)
        cfg.exp_manager = {"exp_dir": folder, "name": "run", "create_tensorboard_logger": False,
                           "resume_if_exists": True, "resume_ignore_no_checkpoint": True, **(exp or {}),
                           "checkpoint_callback_params": {"filename": NAME, "always_save_nemo": False,
                                                          "save_nemo_on_train_end": False, **params}}
    trainer = pl.Trainer(**cfg.trainer)
    exp_manager(trainer, OmegaConf.to_container(cfg.exp_manager))
    model = Scripted(cfg=cfg.model, trainer=trainer)
    model.val_losses = val_losses
    trainer.fit(model)


def listing(folder):
    names = sorted(os.path.basename(p) for p in glob.glob(os.path.join(folder, "run", "checkpoints", "*")))
    return [n[: -len(".ckpt")] for n in names if n.endswith(".ckpt")]


def finite(values):
    return [None if math.isnan(v) else v for v in values]


def record_settings():
    out = []
    for setting in SETTINGS:
        rules = {k: v for k, v in setting.items() if k != "name"}
        with tempfile.TemporaryDirectory() as folder:
            run(folder, **rules)
            kept = listing(folder)
        entry = {"name": setting["name"], "params": {"filename": NAME, **setting["params"]},
                 "val_losses": finite(rules.get("val_losses", LOSSES)), "max_steps": rules.get("max_steps", 15),
                 "validates": rules.get("limit_val_batches", 1.0) != 0, "kept": kept}
        print(setting["name"], kept)
        out.append(entry)
    return {"nemo": nemo.__version__, "lightning": pl.__version__, "batches_per_epoch": 6, "val_check_interval": 3,
            "train_losses": [train_loss(s) for s in range(1, 16)], "settings": out}


def points(folder):
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, "**", "events.out.tfevents.*"), recursive=True)):
        events = EventAccumulator(path, size_guidance={"scalars": 0})
        events.Reload()
        where = os.path.relpath(os.path.dirname(path), folder)
        found[where] = {tag: [e.step for e in events.Scalars(tag)] for tag in sorted(events.Tags()["scalars"])}
    return found


def record_tensorboard():
    """Folders of the event files, tags and the x of their points: one validation set and two; fresh and resumed."""
    out = {}
    for name, manifests in (("one set", "val.json"), ("two sets", ["val.json", "dev_other.json"])):
        with tempfile.TemporaryDirectory() as folder:
            work = os.path.join(folder, "data")
            shutil.copytree(GOLDEN, work)
            shutil.copy(os.path.join(work, "val.json"), os.path.join(work, "dev_other.json"))
            os.chdir(work)
            logs = {"create_tensorboard_logger": True}
            run(os.path.join(folder, "a"), {}, max_steps=6, val_manifests=manifests, exp=logs)
            run(os.path.join(folder, "a"), {}, max_steps=9, val_manifests=manifests, exp=logs)
            os.environ.pop("NEMO_EXPM_VERSION", None)
            run(os.path.join(folder, "b"), {}, max_steps=3, val_manifests=manifests,
                exp={**logs, "resume_if_exists": False, "version": "v"})
            run(None, {}, max_steps=3, val_manifests=manifests,
                exp={**logs, "exp_dir": None, "name": None, "explicit_log_dir": os.path.join(folder, "c")})
            os.chdir(GOLDEN)
            out[name] = {k: points(os.path.join(folder, k)) for k in "abc"}
    return {"nemo": nemo.__version__, "resume_if_exists twice": {k: v["a"] for k, v in out.items()},
            "version given": {k: v["b"] for k, v in out.items()},
            "explicit_log_dir": {k: v["c"] for k, v in out.items()}}


def main():
    torch.set_num_threads(1)
    os.makedirs(OUT, exist_ok=True)
    os.chdir(GOLDEN)
    for name, content in (("checkpoints.json", record_settings()), ("tensorboard.json", record_tensorboard())):
        with open(os.path.join(OUT, name), "w") as f:
            json.dump(content, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
