#!/usr/bin/env python3
"""What `aerie tune` is worth on a GPU: from the untuned NEST configuration to the tuned one, end to end by `aerie train`.

    bench/tune_proof.py AERIE [--out build/tune-proof] [--hours 30] [--minutes 6] [--steps 500] [--limit 480] [--small]

Parts, each done once; a call that reaches --limit seconds ends with 3, the next one with the same --out goes on:

    data      clips of 15 s as FLAC in tar shards, made here
    tune      `aerie tune` from nest_fast-conformer_baseline; its table and its configuration stay in OUT
    baseline  a minute of `aerie train` as the baseline is: audio-s/s
    tuned     --steps steps of the written configuration: audio-s/s, memory, steps that ran out of memory; a call that ends before it is gone on
              with by the next
    auto      `batch_size: auto`, then the same run resumed: the size is kept, no trial is run

Audio-s/s are by the clock, validations and checkpoints included. A part of which a command fails is told; those that do not need it follow. Ends with
a table and OUT/tune_proof.json. Exit status: 0 as promised (at least 20 times the baseline, 10 to 20 % of the memory free or the data is what limits
the batch, the run takes what was promised, nothing ran out of memory), 1 not so, 2 wrong use, 3 not finished.
--small is for trying this program without a GPU: the quick start's configuration, short clips; speed and memory are printed and not judged.
"""
import argparse
import glob
import json
import os
import re
import shutil
import sys
import time

from resumable import Failed, OutOfTime, Resumable

GAIN = 20.0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('aerie')
    parser.add_argument('--out', default='build/tune-proof')
    parser.add_argument('--hours', type=float, default=30.0)
    parser.add_argument('--minutes', type=float, default=6.0)
    parser.add_argument('--steps', type=int, default=500)
    parser.add_argument('--limit', type=float, default=480.0)
    parser.add_argument('--small', action='store_true')
    return parser.parse_args()


class Proof(Resumable):
    def __init__(self, args):
        super().__init__(args.out, 'tune_proof.json', args.limit)
        self.args, self.aerie = args, os.path.abspath(args.aerie)
        self.configs = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'configs', 'nest')

    def run(self, *argv, seconds=20):
        """Begun where as many seconds are left, or a whole call is no longer."""
        print('+ aerie', ' '.join(argv), flush=True)
        # A cache of its own: sizes that were found before are none of its business.
        return self.succeed(self.aerie, *argv, reserve=30, least=min(seconds, self.args.limit - 40), cwd=self.out,
                            env={**os.environ, 'AERIE_CACHE': os.path.join(self.out, 'cache')})

    def part(self, name, function):
        # The data may have gone with the machine that made it.
        if name in self.state and (name != 'data' or os.path.exists(os.path.join(self.out, 'tarred/tarred_audio_manifest.json'))):
            return
        start = time.time()
        try:
            result = function()
        except (Failed, OSError, ValueError) as error:
            result = {'failed': str(error)}
        result['seconds'] = round(time.time() - start, 1)
        self.state[name] = result
        self.save()

    def data(self):
        hours, speakers, seconds, noise = ('0.1', '6', '1.2', '0.03') if self.args.small else (str(self.args.hours), '40', '15', '0.5')
        self.run('data', 'synth', '--out', 'corpus', '--hours', hours, '--speakers', speakers, '--min-duration', seconds,
                 '--max-duration', seconds, '--format', 'flac', '--noise-hours', noise, '--seed', '7', '--force')
        self.run('data', 'shard', '--manifest', 'corpus/train.json', '--out', 'tarred', '--num-shards', '32', '--shuffle', '--overwrite')
        clips = sum(1 for _ in open(os.path.join(self.out, 'tarred/tarred_audio_manifest.json')))
        return {'clips': clips}

    def data_overrides(self):
        return ['model.train_ds.manifest_filepath=tarred/tarred_audio_manifest.json', 'model.train_ds.is_tarred=true',
                'model.train_ds.tarred_audio_filepaths=tarred/audio__OP_0..31_CL_.tar', 'model.train_ds.noise_manifest=corpus/noise.json',
                'model.validation_ds.manifest_filepath=corpus/dev.json', 'model.validation_ds.noise_manifest=corpus/noise.json']

    def baseline_args(self):
        if self.args.small:
            return [f'--config-path={self.configs}', '--config-name=nest_quickstart', 'model.num_classes=16', 'model.code_dim=4', 'model.encoder.n_layers=1',
                    'model.encoder.d_model=16', 'model.encoder.n_heads=2', 'model.encoder.subsampling_conv_channels=8', 'model.train_ds.batch_size=2',
                    'trainer.accelerator=cpu', *self.data_overrides()]
        return [f'--config-path={self.configs}', '--config-name=nest_fast-conformer_baseline', *self.data_overrides()]

    def tune(self):
        done = self.run('tune', *self.baseline_args(), '--minutes', str(self.args.minutes), '--out', 'tuned.yaml', '--json', seconds=60 * self.args.minutes + 30)
        out = json.loads(done.stdout)
        for row in out['tried']:
            print(f"  {row['kind']:6} {row.get('throughput', 0):10.0f} {row.get('memory_used_gib', 0):7.1f} GiB  {row['changes']}: {row['verdict']}")
        for reason in out['reasons']:
            print('  ' + reason)
        return out

    def measured(self, folder):
        """Input per second of the whole span by the clock, warm-up left out; what else the records say."""
        path = max(glob.glob(os.path.join(self.out, folder, '**', 'metrics.jsonl'), recursive=True), key=os.path.getmtime)
        with open(path) as f:
            records = [json.loads(line) for line in f if line.strip()]
        parts = [[]]  # a run that was stopped and gone on with has several
        for r in records:
            if r.get('event') == 'resume':
                parts.append([])
            if r['kind'] == 'train':
                parts[-1].append(r)
        audio = step_s = span_s = wait_s = 0.0
        for part in parts:
            part = part[len(part) // 10 + 1:]
            for before, after in zip(part, part[1:]):
                span_s += after['wall_s'] - before['wall_s']
                step_s += after['step_ms'] / 1e3
                wait_s += after['data_wait_ms'] / 1e3
                audio += after['audio_s_per_s'] * after['step_ms'] / 1e3
        return {'steps': max((r['step'] for part in parts for r in part), default=0), 'audio_s_per_s': audio / max(1e-9, span_s),
                'audio_s_per_s_in_steps': audio / max(1e-9, step_s), 'data_wait': wait_s / max(1e-9, step_s),
                'gpu_mem_gib': max((r.get('gpu_mem_gib', 0) for part in parts for r in part), default=0),
                'oom': sum(1 for r in records if r.get('event') == 'oom'),
                'nan': sum(1 for r in records if r.get('event') == 'nan')}

    def baseline(self):
        shutil.rmtree(os.path.join(self.out, 'baseline'), ignore_errors=True)  # of a call that ended meanwhile
        self.run('train', *self.baseline_args(), f"++trainer.max_time=00:00:{'00:05' if self.args.small else '01:00'}", 'trainer.log_every_n_steps=1',
                 'exp_manager.exp_dir=baseline', seconds=100)
        return self.measured('baseline')

    def tuned(self):
        self.run('train', '--config-path=.', '--config-name=tuned', f'trainer.max_steps={self.args.steps}', 'trainer.log_every_n_steps=1',
                 'exp_manager.exp_dir=tuned')
        return self.measured('tuned')

    def auto(self):
        shutil.rmtree(os.path.join(self.out, 'auto'), ignore_errors=True)
        args = ['train', *self.baseline_args(), 'model.train_ds.batch_size=auto', 'model.train_ds.num_workers=auto', 'trainer.precision=bf16-mixed',
                'exp_manager.exp_dir=auto']
        first = self.run(*args, 'trainer.max_steps=10', seconds=340).stderr  # it looks for at most 300
        second = self.run(*args, 'trainer.max_steps=20').stderr
        found = re.search(r'batch_size: auto is \S+=(\d+), (.*)', first)
        kept = re.search(r'batch_size: auto is \S+=(\d+), kept from', second)
        return {'found': found and found.group(0), 'kept': bool(found and kept) and kept.group(1) == found.group(1)}

    def checks(self):
        """(what was promised, whether it holds, figure), as far as parts are there"""
        r = {name: one for name, one in self.state.items() if 'failed' not in one}
        out = [(f'{name} ends', False, one['failed']) for name, one in self.state.items() if 'failed' in one]
        judged = not self.args.small
        memory = r.get('tune', {}).get('memory', {})
        free, total = memory.get('free_share', 0.0), memory.get('total_gib', 0.0)
        if 'tuned' in r and 'baseline' in r:
            gain = r['tuned']['audio_s_per_s'] / max(1e-9, r['baseline']['audio_s_per_s'])
            out.append((f'at least {GAIN:.0f} x the baseline', gain >= GAIN or not judged, f'{gain:.1f} x'))
        if 'tune' in r:
            limited = 'fewer than' in ' '.join(r['tune']['reasons'])
            out.append(('10 to 20 % of the memory free', 0.10 <= free <= 0.20 or (free > 0.20 and limited) or not judged, f'{100 * free:.1f} %'))
        if 'tuned' in r:
            used, steps = r['tuned']['gpu_mem_gib'], r['tuned']['steps']
            out.append(('the run takes no more memory than promised', 0 < used <= memory.get('used_gib', 0.0) + 0.05 * total or not judged,
                        f"{used:.1f} GiB, promised {memory.get('used_gib', 0.0):.1f} of {total:.1f}"))
            out.append((f'nothing ran out of memory in {self.args.steps} steps', r['tuned']['oom'] == 0 and steps >= self.args.steps,
                        f"{r['tuned']['oom']} times in {steps}"))
        if 'auto' in r:
            out.append(('a resumed run keeps its batch', r['auto']['kept'], str(r['auto']['found'])))
        return out

    def table(self):
        r = {name: one for name, one in self.state.items() if 'failed' not in one}
        if 'tune' in r and 'data' in r:
            print(f"\nclips of 15 s as FLAC in tar shards, {r['data']['clips']} of them; {r['tune']['machine']}; {r['tune']['aerie']}\n")
        print('| run | audio-s/s | waiting for data | GPU memory | steps | out of memory |\n|---|---|---|---|---|---|')
        for name in ('baseline', 'tuned'):
            if name in r:
                one = r[name]
                print(f"| {name} | {one['audio_s_per_s']:,.0f} | {100 * one['data_wait']:.1f} % | {one['gpu_mem_gib']:.1f} GiB | {one['steps']} | {one['oom']} |")
        if 'tune' in r:
            print(f"\ntuned in {r['tune']['elapsed_s']:.0f} s, {len(r['tune']['tried'])} trials: {r['tune']['chosen']}\n")
        checks = self.checks()
        self.state['checks'] = {'rows': checks}
        self.save()
        for what, good, figure in checks:
            print(f"{'ok    ' if good else 'FAILED'} {what}: {figure}")
        return 0 if all(good for _, good, _ in checks) else 1


def main():
    proof = Proof(arguments())
    try:
        proof.state.pop('checks', None)
        needs = {'tune': 'data', 'baseline': 'data', 'tuned': 'tune', 'auto': 'data'}
        for name in ('data', 'tune', 'baseline', 'tuned', 'auto'):
            if 'failed' not in proof.state.get(needs.get(name), {}):
                proof.part(name, getattr(proof, name))
    except OutOfTime:
        print('not finished: call it again with the same --out')
        return 3
    return proof.table()


if __name__ == '__main__':
    sys.exit(main())
