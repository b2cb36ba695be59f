#!/usr/bin/env python3
"""Data-parallel training beside the real one: NeMo under Lightning's DDP (Gloo, two CPU ranks) and aerie, on tests/data/golden/plain.

    tests/interop/ddp_in_lightning.py AERIE     with the Python of an environment that has nemo_toolkit 2.6.2

Both start from init.nemo with batch_size 2 on each rank, so that a step has the samples of the golden trace's batches of four, dealt out as DistributedSampler does
(rank r takes clips r, r+2, ...). SyncBatchNorm is off: torch's raises on the CPU. The loss of every rank must agree for 20 steps to 1e-3.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.abspath(os.path.join(HERE, '..', 'data', 'golden', 'plain'))
STEPS, RANKS, TOLERANCE = 20, 2, 1e-3


def lightning_rank(out):
    """Lightning starts the second rank by running this script again."""
    os.environ['CUDA_VISIBLE_DEVICES'] = ''
    import lightning.pytorch as pl
    import nemo
    import torch
    from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel
    from omegaconf import OmegaConf, open_dict
    from torch.utils.data import DataLoader, DistributedSampler

    torch.set_num_threads(1)
    os.chdir(GOLDEN)
    cfg = OmegaConf.load('config.yaml')
    with open_dict(cfg):
        cfg.model.train_ds.batch_size = 2
        del cfg.model['validation_ds']

    class Losses(pl.Callback):
        def __init__(self):
            self.losses = []

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.losses.append(float(outputs['loss']))

        def on_fit_end(self, trainer, module):
            with open(os.path.join(out, f'rank{trainer.global_rank}.json'), 'w') as f:
                json.dump({'losses': self.losses, 'sampler': type(trainer.train_dataloader.sampler).__name__, 'nemo': nemo.__version__,
                           'lightning': pl.__version__, 'torch': torch.__version__}, f)

    class Model(EncDecDenoiseMaskedTokenPredModel):
        # Lightning's own replacement of the sampler shuffles, although shuffle is false.
        def train_dataloader(self):
            own = self._train_dl
            deal = DistributedSampler(own.dataset, num_replicas=self.trainer.world_size, rank=self.trainer.global_rank, shuffle=False)
            return DataLoader(own.dataset, batch_size=own.batch_size, sampler=deal, collate_fn=own.collate_fn, drop_last=True, num_workers=0)

    trainer = pl.Trainer(devices=RANKS, use_distributed_sampler=False, accelerator='cpu', strategy=pl.strategies.DDPStrategy(process_group_backend='gloo'), max_steps=STEPS, max_epochs=-1,
                         precision=32, limit_val_batches=0, num_sanity_val_steps=0, sync_batchnorm=False, enable_checkpointing=False, logger=False,
                         enable_progress_bar=False, callbacks=[Losses()], default_root_dir=out)
    model = Model(cfg=cfg.model, trainer=trainer)
    model.maybe_init_from_pretrained_checkpoint(cfg)
    trainer.fit(model)


def in_lightning(out):
    done = subprocess.run([sys.executable, os.path.abspath(__file__), '--rank', out], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f'Lightning failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}')
    return [json.load(open(os.path.join(out, f'rank{r}.json'))) for r in range(RANKS)]


def in_aerie(aerie, out):
    run = os.path.join(out, 'run')
    command = [aerie, 'train', f'--config-path={GOLDEN}', '--config-name=config', 'model.train_ds.batch_size=2', f'trainer.devices={RANKS}',
               f'trainer.max_steps={STEPS}', '+trainer.limit_val_batches=0', '+trainer.sync_batchnorm=false', f'+exp_manager.explicit_log_dir={run}',
               '+exp_manager.create_checkpoint_callback=false']
    done = subprocess.run(command, cwd=GOLDEN, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS='1'))
    if done.returncode != 0:
        sys.exit(f'aerie failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}')
    records = [json.loads(line) for line in open(os.path.join(run, 'metrics.jsonl'))]
    first = [r['train_loss'] for r in records if r.get('kind') == 'train']
    text = open(os.path.join(run, 'nemo_log_globalrank-1_localrank-1.txt')).read()
    second = [float(v) for v in re.findall(r'train_loss ([-0-9.e]+) on this rank', text)]
    return [first, second]


def main():
    aerie = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as out:
        theirs = in_lightning(out)
        ours = in_aerie(aerie, out)
    status, worst = 0, []
    for rank in range(RANKS):
        want, got = theirs[rank]['losses'], ours[rank]
        if len(want) != STEPS or len(got) != STEPS:
            sys.exit(f'rank {rank}: {len(want)} losses in Lightning, {len(got)} here')
        worst.append(max(abs(a - b) for a, b in zip(want, got)))
        status |= worst[-1] > TOLERANCE
        print(f"{'ok  ' if worst[-1] <= TOLERANCE else 'FAIL'}  rank {rank}: {STEPS} losses from {want[0]:.6f} to {want[-1]:.6f}, largest difference {worst[-1]:.2e}")
    # Ranks see different clips, or nothing would be shown.
    if max(abs(a - b) for a, b in zip(ours[0], ours[1])) < 1e-2:
        sys.exit('both ranks have the same losses')
    result = {'steps': STEPS, 'ranks': RANKS, 'tolerance': TOLERANCE, 'largest_difference': worst, 'lightning': theirs, 'aerie': ours}
    with open(os.path.join(HERE, 'ddp_in_lightning_result.json'), 'w') as f:
        json.dump(result, f, indent=1)
        f.write('\n')
    return status


if __name__ == '__main__':
    if sys.argv[1] == '--rank':
        lightning_rank(sys.argv[2])
    else:
        sys.exit(main())
