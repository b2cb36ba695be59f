#!/usr/bin/env python3
"""A Lightning checkpoint rewritten by `aerie convert` continues training exactly as the original does.

usage: resume_from_ckpt.py AERIE_BINARY

Trains the small model of make_lightning_ckpt.py for three steps, saves, lets aerie rewrite the checkpoint (which drops the
foreign objects), and continues from both files to step six. All weights, losses and Adam moments must be equal. Also turns
the checkpoint into a .nemo (its configuration comes out of the hyper-parameters) and restores that strictly.
"""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_lightning_ckpt as small
import lightning.pytorch as pl
import torch
from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel


class Losses(pl.Callback):
    def __init__(self):
        self.values = []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.values.append(float(outputs["loss"]))


def train(scratch, max_steps, resume=None):
    torch.manual_seed(7)
    torch.set_num_threads(1)
    cfg = small.tiny_config()
    cfg.model.optim.sched.max_steps = 6
    losses = Losses()
    trainer = pl.Trainer(
        devices=1, accelerator="cpu", max_steps=max_steps, precision=32, limit_val_batches=0, num_sanity_val_steps=0,
        logger=False, enable_progress_bar=False, enable_checkpointing=False, callbacks=[losses], default_root_dir=scratch,
    )
    model = EncDecDenoiseMaskedTokenPredModel(cfg=cfg.model, trainer=trainer)
    trainer.fit(model, ckpt_path=resume)
    return trainer, model, losses.values


def main():
    aerie = os.path.abspath(sys.argv[1])
    os.chdir(small.GOLDEN)
    with tempfile.TemporaryDirectory() as scratch:
        first, rewritten = os.path.join(scratch, "first.ckpt"), os.path.join(scratch, "rewritten.ckpt")
        trainer, _, _ = train(scratch, 3)
        trainer.save_checkpoint(first)
        subprocess.run([aerie, "convert", first, rewritten], check=True)
        torch.load(rewritten, weights_only=True)
        trainer_a, model_a, losses_a = train(scratch, 6, first)
        trainer_b, model_b, losses_b = train(scratch, 6, rewritten)
        assert losses_a == losses_b and len(losses_a) == 3, (losses_a, losses_b)
        for (name, a), b in zip(model_a.state_dict().items(), model_b.state_dict().values()):
            assert torch.equal(a, b), name
        state_a = trainer_a.optimizers[0].state_dict()["state"]
        state_b = trainer_b.optimizers[0].state_dict()["state"]
        for i in state_a:
            for key in state_a[i]:
                assert torch.equal(state_a[i][key], state_b[i][key]), (i, key)
        print(f"resumed from both at step 3, equal to step 6: losses {losses_a}, {len(state_a)} parameters with moments")

        nemo = os.path.join(scratch, "from_ckpt.nemo")
        subprocess.run([aerie, "convert", first, nemo], check=True)
        restored = EncDecDenoiseMaskedTokenPredModel.restore_from(nemo, map_location="cpu", strict=True)
        want = torch.load(first, weights_only=False)["state_dict"]
        assert list(restored.state_dict()) == list(want)
        assert all(torch.equal(t, want[name]) for name, t in restored.state_dict().items())
        print(f"restored the .nemo made of the .ckpt, strictly: {len(want)} tensors equal")


if __name__ == "__main__":
    main()
