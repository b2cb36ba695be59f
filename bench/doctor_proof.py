#!/usr/bin/env python3
"""Illnesses planted into runs on a GPU: `aerie doctor` has to name each as first cause, and has to call a healthy run healthy.

    bench/doctor_proof.py AERIE [--out build/doctor-proof] [--limit 480] [--steps 60] [--only CASE ...] [--small]

NEST-L on clips of 15 s as FLAC, made here. Cases, each done once; a call that reaches --limit seconds ends with 3, the next one with the same --out
goes on:

    healthy            batches of 64, bf16-mixed, loader threads: healthy, by its folder and by trials; its folder stays as it was
    no_workers         num_workers 0, every read of a recording takes 5 ms more
    small_batch        batches of 2
    float32            precision 32
    padding            clips of 1 to 20 s at random, 46 % padding
    padding_reference  the same with the reference engine, which computes what is padding
    validation         20 batches every 10 steps
    checkpoints        one every step

A case of which a command fails is not as promised; the next one follows. Ends with a table and OUT/doctor_proof.json, which holds what doctor printed.
Exit status: 0 as promised, 1 not so, 2 wrong use, 3 not finished.
--small is for trying this program without a GPU: a small model, short clips; what hangs on a GPU is printed and not judged.
"""
import argparse
import hashlib
import json
import os
import shutil
import sys
import time

from resumable import Failed, OutOfTime, Resumable

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LEAST = 1.05  # times as fast with the change that is advised, measured by trials


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('aerie')
    parser.add_argument('--out', default='build/doctor-proof')
    parser.add_argument('--limit', type=float, default=480.0)
    parser.add_argument('--steps', type=int, default=60)
    parser.add_argument('--only', nargs='*', default=[])
    parser.add_argument('--small', action='store_true')
    return parser.parse_args()


def files_of(folder):
    out = {}
    for path, _, names in os.walk(folder):
        for name in names:
            full = os.path.join(path, name)
            with open(full, 'rb') as file:
                out[os.path.relpath(full, folder)] = hashlib.sha256(file.read()).hexdigest()
    return out


class Proof(Resumable):
    def __init__(self, args):
        super().__init__(args.out, 'doctor_proof.json', args.limit)
        self.args, self.aerie = args, os.path.abspath(args.aerie)

    def run(self, *argv, variables=None):
        print('+ aerie', ' '.join(argv), flush=True)
        return self.succeed(self.aerie, *argv, cwd=self.out, env={**os.environ, **(variables or {})}).stdout

    # What cases are made of.

    def corpus(self, mixed=False):
        name = 'mixed' if mixed else 'clips'
        small = self.args.small
        self.run('data', 'synth', '--out', name, '--hours', '0.1' if small else '20' if mixed else '10', '--speakers', '6' if small else '40',
                 '--min-duration', '1' if small or mixed else '15', '--max-duration', ('6' if mixed else '1.2') if small else '20' if mixed else '15',
                 '--format', 'flac', '--noise-hours', '0.03' if small else '0.5', '--seed', '7')
        return name

    def config(self, data, *more):
        small = ['model.num_classes=32', 'model.code_dim=4', 'model.encoder.n_layers=2', 'model.encoder.d_model=64', 'model.encoder.n_heads=4',
                 'model.encoder.subsampling_conv_channels=32', 'model.train_ds.batch_size=8', 'model.train_ds.num_workers=1', 'trainer.accelerator=cpu']
        large = ['model.train_ds.batch_size=64', 'model.validation_ds.batch_size=64', 'model.train_ds.num_workers=14', 'trainer.precision=bf16-mixed',
                 'trainer.devices=1']
        name = 'nest_quickstart' if self.args.small else 'nest_fast-conformer_l'
        return [f'--config-path={ROOT}/configs/nest', f'--config-name={name}', f'model.train_ds.manifest_filepath={data}/train.json',
                f'model.train_ds.noise_manifest={data}/noise.json', f'model.validation_ds.manifest_filepath={data}/dev.json',
                f'model.validation_ds.noise_manifest={data}/noise.json', *(small if self.args.small else large), '++trainer.check_val_every_n_epoch=null',
                '++trainer.limit_val_batches=0', '++trainer.num_sanity_val_steps=0', 'trainer.enable_progress_bar=false',
                'exp_manager.create_checkpoint_callback=false', *more]

    def slow_disk(self):
        """The library of tests/advisor/slow_disk.cc: of the build, or made here."""
        built = os.path.join(os.path.dirname(self.aerie), 'tests/advisor/libslow_disk.so')
        if os.path.exists(built):
            return built
        made = os.path.join(self.out, 'libslow_disk.so')
        if not os.path.exists(made):
            self.succeed('c++', '-std=c++17', '-O1', '-shared', '-fPIC', '-o', made, f'{ROOT}/tests/advisor/slow_disk.cc', '-ldl')
        return made

    def by_trials(self, *args, variables=None):
        return json.loads(self.run('doctor', *args, '--steps', str(self.args.steps), '--json', variables=variables))

    def named(self, cause, needs_gpu, *args, variables=None):
        """[holds, sentence, what doctor said]"""
        found = self.by_trials(*args, variables=variables)
        first = found['speed'][0] if found['speed'] else None
        gain = first and first['measured_speedup']
        holds = first is not None and first['id'] == cause and gain is not None and gain >= LEAST
        said = 'healthy' if first is None else f"{first['id']} first, {first.get('change', 'no change to try')}: " + \
            (f'{gain:.2f} times as fast, measured' if gain else 'not measured')
        return self.judged(holds, needs_gpu, f'expected {cause}; said {said}'), f'{said}', found

    def judged(self, holds, needs_gpu, sentence):
        if not holds:
            print('  ' + sentence)
        return None if needs_gpu and self.args.small and not holds else holds

    # Cases.

    def healthy(self):
        data = self.corpus()
        folder = os.path.join(self.out, 'healthy')
        shutil.rmtree(folder, ignore_errors=True)
        self.run('train', *self.config(data), f'trainer.max_steps={2 * self.args.steps}', 'trainer.log_every_n_steps=1',
                 f'+exp_manager.explicit_log_dir={folder}')
        before = files_of(folder)
        by_folder = json.loads(self.run('doctor', folder, '--json'))
        by_trials = self.by_trials(*self.config(data))
        same = files_of(folder) == before
        holds = by_folder['healthy'] and by_trials['healthy'] and same
        sentence = by_folder['verdict'] if not by_folder['healthy'] else by_trials['verdict']
        return self.judged(holds, False, sentence), sentence + ('' if same else '; ITS FOLDER WAS CHANGED'), {'by_folder': by_folder, 'by_trials': by_trials}

    def no_workers(self):
        more = ['model.train_ds.num_workers=0', '++model.train_ds.persistent_workers=false', '++model.train_ds.prefetch_factor=null']
        return self.named('num_workers', False, *self.config(self.corpus(), *more),
                          variables={'LD_PRELOAD': self.slow_disk(), 'SLOW_READ_MS': '100' if self.args.small else '5'})

    def small_batch(self):
        return self.named('batch_size', True, *self.config(self.corpus(), 'model.train_ds.batch_size=2'))

    def float32(self):
        return self.named('precision', True, *self.config(self.corpus(), 'trainer.precision=32', *([] if self.args.small else ['model.train_ds.batch_size=16'])))

    def mixed_config(self, *more):
        # So few buckets that each has a dozen batches an epoch, whatever becomes of the rest of a bucket.
        return self.config(self.corpus(mixed=True), '++model.train_ds.num_buckets=8', *more)

    def padding(self):
        return self.named('padding', True, *self.mixed_config())

    def padding_reference(self):
        return self.named('padding', True, *self.mixed_config('++aerie.engine=reference'))

    def validation(self):
        data = self.corpus()
        return self.named('validation', False, *self.config(data, f'model.validation_ds.manifest_filepath={data}/train.json', 'trainer.val_check_interval=10',
                                                            '++trainer.limit_val_batches=20'))

    def checkpoints(self):
        return self.named('checkpoints', True, *self.config(self.corpus(), 'exp_manager.create_checkpoint_callback=true',
                                                            '++exp_manager.checkpoint_callback_params.every_n_train_steps=1',
                                                            '++exp_manager.checkpoint_callback_params.always_save_nemo=false'))

    def table(self, names):
        print('\n| illness | doctor says | |\n|---|---|---|')
        for name in names:
            one = self.state[name]
            print(f"| {name} | {one['said']} | {'as promised' if one['holds'] else 'not judged' if one['holds'] is None else 'NOT AS PROMISED'} |")
        return 1 if any(self.state[name]['holds'] is False for name in names) else 0


CASES = ('healthy', 'no_workers', 'small_batch', 'float32', 'padding', 'padding_reference', 'validation', 'checkpoints')


def main():
    args = arguments()
    for name in args.only:
        if name not in CASES:
            print(f'no case is called {name}: ' + ', '.join(CASES), file=sys.stderr)
            return 2
    if args.steps < 20:
        print('--steps: 20 at least, validation comes every 10', file=sys.stderr)
        return 2
    proof = Proof(args)
    names = [name for name in CASES if not args.only or name in args.only]
    for name in names:
        if name in proof.state:
            continue
        start = time.time()
        try:
            holds, said, found = getattr(proof, name)()
        except OutOfTime:
            print('not finished: call it again with the same --out')
            return 3
        except (Failed, OSError) as error:
            holds, said, found = False, f'FAILED: {error}', None
        proof.state[name] = {'holds': holds, 'said': said, 'seconds': round(time.time() - start, 1), 'doctor': found}
        proof.save()
        print(f'{name}: {said} ({time.time() - start:.0f} s)', flush=True)
    return proof.table(names)


if __name__ == '__main__':
    sys.exit(main())
