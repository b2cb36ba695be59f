#!/usr/bin/env python3
"""Ranks that are killed at random, again and again: each end is quick and says who and where, and what is resumed is the run that was never killed.

    tests/dist/kill_ranks.py AERIE CONFIG_FOLDER [--kills 50] [--seed 1] [--sharded]

Two CPU ranks train a small model; at random steps a random one of them gets SIGKILL (one time in ten SIGSTOP, which the others notice by its silence). The run goes on
from its newest checkpoint until all kills are done, then to the end: every step's loss, and the last checkpoint's weights and moments, must be those of one piece, to the
bit. Run by hand; docs/distributed.md has a record.
"""
import argparse
import hashlib
import os
import random
import re
import signal
import sys
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument('aerie')
parser.add_argument('configs')
parser.add_argument('--kills', type=int, default=50)
parser.add_argument('--seed', type=int, default=1)
parser.add_argument('--sharded', action='store_true', help='with aerie.shard_optimizer')
ARGS = parser.parse_args()
sys.argv = [sys.argv[0], ARGS.aerie, ARGS.configs]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import launch_ways as ways  # noqa: E402

SAVE_EVERY = 2
MORE = ['trainer.devices=2', f'++exp_manager.checkpoint_callback_params.every_n_train_steps={SAVE_EVERY}', '++exp_manager.resume_if_exists=true',
        '++exp_manager.resume_ignore_no_checkpoint=true', *(['++aerie.shard_optimizer=true'] if ARGS.sharded else [])]

def newest(name):
    """Of the native checkpoint of the last step: hashes of its tensors."""
    folder = os.path.join(ways.WORK, name, 'checkpoints')
    steps = {int(found.group(1)): entry for entry in os.listdir(folder) if (found := re.search(r'step=(\d+)', entry)) and os.path.isdir(os.path.join(folder, entry))}
    step = max(steps)
    path = os.path.join(folder, steps[step])
    return step, {f: hashlib.sha256(open(os.path.join(path, f), 'rb').read()).hexdigest() for f in sorted(os.listdir(path)) if f.endswith('.safetensors')}


def last_step(name):
    try:
        return max((s for s, _ in ways.losses(name)), default=0)
    except FileNotFoundError:
        return 0


def kill_once(name, steps, draw, number):
    process = ways.start(name, ways.command(name, steps, *MORE), ways.environment())
    target = last_step(name) + draw.randint(1, 3)
    ways.wait_for_step(name, target, [process], 180)
    time.sleep(draw.random() * 0.05)
    victim = draw.randint(0, 1)
    stops = number % 10 == 9
    before = len(ways.log_of(name))
    os.kill(ways.rank_processes(process)[victim], signal.SIGSTOP if stops else signal.SIGKILL)
    began = time.time()
    codes = ways.finish(name, [process], 60)
    seconds = time.time() - began
    text = ways.log_of(name)[before:]
    ways.expect(codes == [1], f'kill {number}: exit codes {codes}', name)
    ways.expect(re.search(rf'rank {victim} on \S+', text), f'kill {number}: rank {victim} and its host are not named', name)
    ways.expect(re.search(r'phase (\w|-)+', text), f'kill {number}: no phase', name)
    if stops:
        ways.expect(seconds <= ways.HEARTBEAT * ways.patience(), f'kill {number}: all ended after {seconds:.1f} s', name)
    else:
        ways.expect(f'last lines of rank {victim}' in text, f'kill {number}: no last lines', name)
    return seconds, stops, re.search(r'phase ([\w-]+)', text).group(1)


def kills():
    draw = random.Random(ARGS.seed)
    steps = 4 * ARGS.kills + 10
    phases, times, silent = {}, [], []
    for number in range(ARGS.kills):
        seconds, stopped, phase = kill_once('killed', steps, draw, number)
        (silent if stopped else times).append(seconds)
        phases[phase] = phases.get(phase, 0) + 1
        print(f'kill {number + 1}: step {last_step("killed")}, {"stopped" if stopped else "killed"} in {phase}, all ended after {seconds:.1f} s', flush=True)
    process = ways.start('killed', ways.command('killed', steps, *MORE), ways.environment())
    codes = ways.finish('killed', [process], 900)
    ways.expect(codes == [0], f'exit codes {codes}', 'killed')
    process = ways.start('whole', ways.command('whole', steps, *MORE), ways.environment())
    codes = ways.finish('whole', [process], 900)
    ways.expect(codes == [0], f'exit codes {codes}', 'whole')
    killed, whole = {}, dict(ways.losses('whole'))
    for step, loss in ways.losses('killed'):
        # Steps behind a checkpoint are done twice, with the same result.
        ways.expect(killed.setdefault(step, loss) == loss, f'step {step} has the losses {killed[step]} and {loss}')
    ways.expect(killed == whole, f'losses differ: {[(s, killed.get(s), whole[s]) for s in whole if killed.get(s) != whole[s]][:3]}')
    ways.expect(newest('killed') == newest('whole'), f'last checkpoints differ: {newest("killed")}, {newest("whole")}')
    print(f'ok      {len(times)} kills: all ranks ended after {min(times):.1f} to {max(times):.1f} s; {len(silent)} silent ranks: '
          f'{min(silent, default=0):.1f} to {max(silent, default=0):.1f} s with heartbeat_s={ways.HEARTBEAT}; phases {phases}')
    print(f'ok      {len(whole)} losses, weights, statistics and moments of step {newest("whole")[0]} are those of a run in one piece, to the bit')


def main():
    ways.corpus()
    try:
        kills()
    except ways.Failed as failure:
        print('FAILED ', failure)
        return 1
    finally:
        ways.shutil.rmtree(ways.WORK, ignore_errors=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
