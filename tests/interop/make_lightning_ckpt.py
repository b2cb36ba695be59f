"""Writes tests/data/archive/lightning.ckpt: a Lightning checkpoint of a real NeMo training run on the CPU.

Three optimizer steps of a very small NEST on the clips of tests/data/golden/plain, with a learning-rate schedule, a
ModelCheckpoint callback and hyper-parameters, so that the file holds everything such files hold: weights, Adam
moments, loop counters, callback state and a pickled OmegaConf container. Beside it lightning.json with numbers that
the reader must find.

    python tests/interop/make_lightning_ckpt.py          # needs nemo_toolkit 2.6.2
"""
import json
import os
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import lightning.pytorch as pl
import torch
from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel
from omegaconf import OmegaConf, open_dict

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "data", "golden", "plain")
OUT = os.path.join(HERE, "..", "data", "archive")


def tiny_config():
    cfg = OmegaConf.load(os.path.join(GOLDEN, "config.yaml"))
    with open_dict(cfg):
        cfg.model.num_classes = 16
        cfg.model.code_dim = 4
        # A window of 4 ms: the filterbank of the stock 512-point transform alone is larger than this whole file.
        cfg.model.preprocessor.update(window_size=0.004, n_fft=64, features=8)
        cfg.model.encoder.update(n_layers=1, d_model=16, n_heads=2, subsampling_conv_channels=8, ff_expansion_factor=2)
        cfg.model.optim.sched.max_steps = 3
        cfg.model.optim.sched.warmup_steps = 1
        del cfg.init_from_nemo_model
    return cfg


def main():
    os.makedirs(OUT, exist_ok=True)
    torch.manual_seed(7)
    torch.set_num_threads(1)
    os.chdir(GOLDEN)
    cfg = tiny_config()
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = pl.callbacks.ModelCheckpoint(dirpath=None, monitor="val_loss", save_top_k=1)
        trainer = pl.Trainer(
            devices=1, accelerator="cpu", max_steps=3, precision=32, val_check_interval=3, num_sanity_val_steps=0,
            logger=False, enable_progress_bar=False, callbacks=[checkpoint], default_root_dir=scratch,
        )
        model = EncDecDenoiseMaskedTokenPredModel(cfg=cfg.model, trainer=trainer)
        trainer.fit(model)
        path = os.path.join(OUT, "lightning.ckpt")
        os.chdir(scratch)
        checkpoint.dirpath = "checkpoints"
        checkpoint.best_model_path = "checkpoints/best.ckpt"
        checkpoint.best_k_models = {"checkpoints/best.ckpt": checkpoint.best_model_score}
        checkpoint.kth_best_model_path = "checkpoints/best.ckpt"
        trainer.save_checkpoint(path)

    loaded = torch.load(path, weights_only=False)
    optimizer = loaded["optimizer_states"][0]
    facts = {
        "global_step": loaded["global_step"],
        "epoch": loaded["epoch"],
        "version": loaded["pytorch-lightning_version"],
        "keys": list(loaded),
        "tensors": {
            name: {"dtype": str(t.dtype)[6:], "shape": list(t.shape), "sum": float(t.double().sum())}
            for name, t in loaded["state_dict"].items()
        },
        "moments": {
            str(i): {
                "step": float(s["step"]),
                "exp_avg_sum": float(s["exp_avg"].double().sum()),
                "exp_avg_sq_sum": float(s["exp_avg_sq"].double().sum()),
            }
            for i, s in optimizer["state"].items()
        },
        "group": {k: v for k, v in optimizer["param_groups"][0].items() if isinstance(v, (int, float, list, tuple))},
        "schedule": {
            k: v for k, v in loaded["lr_schedulers"][0].items() if isinstance(v, (int, float, list, tuple))
        },
    }
    with open(os.path.join(OUT, "lightning.json"), "w") as f:
        json.dump(facts, f, indent=1)
        f.write("\n")
    print(os.path.getsize(path), "bytes")


if __name__ == "__main__":
    main()
