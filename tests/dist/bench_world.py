#!/usr/bin/env python3
"""`aerie bench step --world 1,2` on the CPU, and `aerie plan` from what it prints: everything that the prediction needs was measured, and
the plan's step of two ranks is the one that the bench predicts. How long things take is not judged.

    tests/dist/bench_world.py AERIE
"""
import json
import os
import subprocess
import sys
import tempfile

AERIE = os.path.abspath(sys.argv[1])


def check(holds, what):
    if not holds:
        sys.exit(f'FAILED: {what}')


def main():
    made = subprocess.run([AERIE, 'bench', 'step', '--world', '1,2', '--no-keys', '--threads', '1', '--batch', '2', '--seconds', '1', '--d-model', '32',
                           '--layers', '2', '--heads', '2', '--steps', '4', '--warmup', '1', '--json'],
                          stdout=subprocess.PIPE, check=True, text=True, env=dict(os.environ, CUDA_VISIBLE_DEVICES='')).stdout
    found = json.loads(made)
    one, two = found['worlds']
    check((one['ranks'], two['ranks']) == (1, 2), 'a row for each world')
    check(len(found['steps']) == 1 and found['steps'][0]['step_ms'] > 0, 'a step of one rank')
    check({call['ranks'] for call in found['all_reduce']} == {2}, 'all-reduces of two ranks')
    busy, = found['busy']
    check(busy['ranks'] == 2, 'two busy ranks')
    for name in ('reduce_ms', 'loaded_reduce_ms', 'copy_gb_per_s'):
        check(busy[name] > 0, name)
    for name in ('step', 'loaded_step'):
        check(busy[name]['step_ms'] > 0, name)
        check(any(phase['name'] == 'waiting for ranks' for phase in busy[name]['phases']), f'{name}: sums of SyncBatchNorm are waited for')
    check(two['buckets'] > 0 and two['reduced_bytes'] >= 4 * found['steps'][0]['parameters'], 'two ranks reduce all gradients')
    check(two['alone_ms'] == busy['step']['step_ms'], 'the step without reductions is that of busy ranks')
    # Of one rank the plan knows the step itself; two take at least what busy ranks take.
    check(abs(one['predicted_ms'] / one['alone_ms'] - 1) < 1e-6, 'one rank reduces nothing')
    check(two['predicted_ms'] > two['alone_ms'], 'reductions cost something')

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'here.json')
        with open(path, 'w') as file:
            file.write(made)
        planned = json.loads(subprocess.run([AERIE, 'plan', '--measured', path, '--gpus', '1,2,4', '--bucket-copies', '--json'],
                                            stdout=subprocess.PIPE, check=True, text=True).stdout)
    rows = {row['gpus']: row for row in planned['rows']}
    check(abs(rows[1]['step_ms'] - found['steps'][0]['step_ms']) < 1e-6, 'the plan starts from the measured step')
    check(rows[4]['step_ms'] > 0, 'more ranks than were measured')
    check(rows[2]['shared_ms'] >= 0 and rows[1]['shared_ms'] == 0, 'what ranks share')
    print('1 passed, 0 failed')


main()
