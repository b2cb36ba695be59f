#!/usr/bin/env python3
"""CPU seconds of one training step: NeMo with Lightning, and aerie, the quick start's model, batches and data.

usage: nemo_train_cpu.py AERIE --corpus DIR [--steps 10] [--threads 1]

DIR is what `aerie data synth` made. Loading, mixing, features, forward, backward and optimizer count on both sides; start-up does
not. CPU seconds of all threads are compared because the machine may be busy. Needs nemo_toolkit[asr] (2.6.2 was used).
"""
import argparse
import json
import os
import random
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIGS = os.path.join(HERE, "..", "..", "configs", "nest")


def settings(corpus):
    return {
        "model.train_ds.manifest_filepath": f"{corpus}/train.json",
        "model.train_ds.noise_manifest": f"{corpus}/noise.json",
        "model.validation_ds.manifest_filepath": f"{corpus}/dev.json",
        "model.validation_ds.noise_manifest": f"{corpus}/noise.json",
        "model.train_ds.num_workers": 0,
        "model.train_ds.pin_memory": False,
    }


def aerie_cpu_s(aerie, corpus, steps, threads):
    with tempfile.TemporaryDirectory() as out:
        run = [aerie, "train", f"--config-path={CONFIGS}", "--config-name=nest_quickstart", f"trainer.max_steps={steps}",
               "+trainer.limit_val_batches=0", "trainer.accelerator=cpu", "trainer.enable_progress_bar=false",
               f"exp_manager.exp_dir={out}"] + [f"{k}={v}" for k, v in settings(corpus).items()]
        child = subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 env={**os.environ, "OMP_NUM_THREADS": str(threads)})
        _, status, usage = os.wait4(child.pid, 0)
        assert status == 0, run
        return usage.ru_utime + usage.ru_stime


def nemo_cpu_s(corpus, steps, threads):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import lightning.pytorch as pl
    import torch
    from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel
    from omegaconf import OmegaConf
    torch.set_num_threads(threads)

    class Times(pl.Callback):
        def __init__(self):
            self.cpu = []

        def on_train_batch_end(self, *_):
            self.cpu.append(time.process_time())

    random.seed(1)
    torch.manual_seed(1)
    cfg = OmegaConf.load(os.path.join(CONFIGS, "nest_quickstart.yaml"))
    for key, value in settings(corpus).items():
        OmegaConf.update(cfg, key, value, force_add=True)
    times = Times()
    trainer = pl.Trainer(devices=1, accelerator="cpu", max_steps=steps + 2, limit_val_batches=0, num_sanity_val_steps=0, logger=False,
                         enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False, callbacks=[times])
    trainer.fit(EncDecDenoiseMaskedTokenPredModel(cfg=cfg.model, trainer=trainer))
    return (times.cpu[-1] - times.cpu[1]) / steps


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("aerie")
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--steps", type=int, default=10)
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    corpus = os.path.abspath(a.corpus)
    ours = (aerie_cpu_s(a.aerie, corpus, a.steps + 2, a.threads) - aerie_cpu_s(a.aerie, corpus, 2, a.threads)) / a.steps
    theirs = nemo_cpu_s(corpus, a.steps, a.threads)
    print(json.dumps({"threads": a.threads, "steps": a.steps, "aerie_cpu_s_per_step": round(ours, 3),
                      "nemo_cpu_s_per_step": round(theirs, 3), "ratio": round(theirs / ours, 2),
                      "load_average": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
