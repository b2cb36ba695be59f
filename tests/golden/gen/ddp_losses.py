#!/usr/bin/env python3
"""Losses of every rank of real Lightning DDP (Gloo, two CPU processes) on tests/data/golden/plain.

usage: ddp_losses.py --out FILE.json [--data DIR] [--steps 20]

NeMo's model, loader and Trainer.fit with trainer.devices=2, batch_size 2, sync_batchnorm=false (it raises on the CPU) and no
validation; Lightning puts in its DistributedSampler, so that rank r has clips r, r+2, ... The configuration is random in
nothing. tests/data/golden/ddp_plain.json was written by it with nemo_toolkit 2.6.2, Lightning 2.4 and torch 2.11;
tests/interop/ddp_beside_lightning.py compares aerie with that file. Lightning starts this script again for rank 1.
"""
import argparse
import json
import logging
import os
import sys
import warnings

os.environ["CUDA_VISIBLE_DEVICES"] = ""
warnings.filterwarnings("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path = [path for path in sys.path if os.path.abspath(path) != HERE]  # there is an ssl.py here


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.path.join(HERE, "..", "..", "data", "golden", "plain"))
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    out = os.path.abspath(args.out)

    import lightning.pytorch as pl
    import torch
    torch.set_num_threads(1)
    import nemo
    from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel
    from nemo.utils import logging as nemo_logging
    from omegaconf import OmegaConf, open_dict
    nemo_logging.setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    os.chdir(args.data)
    cfg = OmegaConf.load("config.yaml")

    class Losses(pl.Callback):
        def __init__(self):
            self.losses, self.rates = [], []

        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            self.losses.append(float(outputs["loss"]))
            self.rates.append(float(trainer.optimizers[0].param_groups[0]["lr"]))

    losses = Losses()
    with open_dict(cfg):
        cfg.model.train_ds.batch_size = 2
        cfg.trainer.update(devices=2, strategy="ddp", sync_batchnorm=False, limit_val_batches=0, max_steps=args.steps)
        cfg.model.pop("validation_ds")
        cfg.trainer.pop("val_check_interval")
    trainer = pl.Trainer(**cfg.trainer, callbacks=[losses])
    model = EncDecDenoiseMaskedTokenPredModel(cfg.model, trainer=trainer)
    model.maybe_init_from_pretrained_checkpoint(cfg)
    trainer.fit(model)
    rank, world = trainer.global_rank, trainer.world_size
    with open(f"{out}.rank{rank}", "w") as f:
        json.dump(losses.losses, f)
    torch.distributed.barrier()
    if rank == 0:
        ranks = [json.load(open(f"{out}.rank{r}")) for r in range(world)]
        with open(out, "w") as f:
            json.dump({"nemo": nemo.__version__, "lightning": pl.__version__, "torch": torch.__version__, "ranks": world,
                       "batch_size": 2, "steps": args.steps, "losses": ranks}, f, indent=1)
            f.write("\n")
    torch.distributed.barrier()
    os.remove(f"{out}.rank{rank}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
