#!/usr/bin/env python3
"""Rows of `aerie bench claims` with the real trainer on the CPU: figures, what is kept, what is skipped.

    tests/advisor/claims_rows.py AERIE SOURCE_FOLDER
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

AERIE, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
WORK = tempfile.mkdtemp(prefix='aerie-claims-')
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')}


def claims(*args, code=0, seconds='4'):
    # On a machine with a GPU too: the small models, and no GPU.
    done = subprocess.run([AERIE, 'bench', 'claims', '--seconds', seconds, '--out', os.path.join(WORK, 'out'), *args], cwd=SOURCE,
                          env=dict(ENVIRONMENT, CUDA_VISIBLE_DEVICES=''), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == code, (args, done.returncode, done.stderr[-3000:])
    return done


def row(out, name):
    found = [one for one in out['rows'] if one['name'] == name]
    assert len(found) == 1, (name, [one['name'] for one in out['rows']])
    return found[0]


first = json.loads(claims('--model', 'nest', '--only', 'batch_2_8,captured_step,static_graph', '--json').stdout)
batch = row(first, 'batch_2_8')
assert [one['label'] for one in batch['settings']] == ['2', '8'], batch
assert all(value > 0 for one in batch['settings'] for value in one['input_per_s']), batch
assert abs(batch['speedups'][0] - batch['settings'][1]['input_per_s'][0] / batch['settings'][0]['input_per_s'][0]) < 1e-9 \
    or len(batch['settings'][0]['input_per_s']) > 1, batch
assert 'ms instead of' in batch['why'] and batch['verdict'] in ('holds', 'does not hold', 'unclear'), batch
captured = row(first, 'captured_step')
assert captured['measured'] == 'needs a GPU' and captured['verdict'] == '-', captured
ranks = row(first, 'static_graph')
assert ranks['measured'].startswith('needs 2 GPUs; ') and 'Gloo' in ranks['measured'] and len(ranks['speedups']) == 1, ranks

# Called again: nothing is measured, the figures are those of before.
again = claims('--model', 'nest', '--only', 'batch_2_8,captured_step,static_graph', '--json')
assert json.loads(again.stdout)['rows'] == first['rows'], again.stdout
text = claims('--model', 'nest', '--only', 'batch_2_8')
assert 'measured before' in text.stderr and batch['measured'] in text.stdout, text
# The other model, beside it in the same file and page.
bev = json.loads(claims('--model', 'bev', '--only', 'prefetch,compile', '--json').stdout)
assert len(row(bev, 'prefetch')['speedups']) == 1 and row(bev, 'compile')['measured'] == 'needs a GPU', bev
kept = json.load(open(os.path.join(WORK, 'out', 'claims.json')))
assert [(one['model'], one['name']) for one in kept['rows']] == [
    ('nest', 'batch_2_8'), ('nest', 'captured_step'), ('nest', 'static_graph'), ('bev', 'prefetch'), ('bev', 'compile')], kept
assert '<svg' in open(os.path.join(WORK, 'out', 'claims.html')).read()
# With another length of trials the row is another measurement.
assert 'measured before' not in claims('--model', 'nest', '--only', 'captured_step', seconds='5').stderr
# The others stay.
later = json.load(open(os.path.join(WORK, 'out', 'claims.json')))
assert [one['name'] for one in later['rows']] == [one['name'] for one in kept['rows']], later
assert [one['seconds'] for one in later['rows']] == [4, 5, 4, 4, 4], later

# Bad input: one message, exit code 2 (3 for a damaged file), nothing is trained.
for args, seconds in ((('--only', 'batch_2'), '4'), (('--model', 'resnet'), '4'), ((), '0'), (('--what',), '4')):
    assert 'error' in claims(*args, code=2, seconds=seconds).stderr, args
open(os.path.join(WORK, 'out', 'claims.json'), 'w').write('{"format": 1')
assert 'claims.json' in claims('--only', 'fp16', code=3).stderr
shutil.rmtree(WORK)
print('ok')
