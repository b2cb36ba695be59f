#!/usr/bin/env python3
"""`aerie tune` writes a configuration that trains; `batch_size: auto` finds a size, keeps it in the cache, in config.yaml and in the
checkpoint, and a resumed run keeps it whatever the cache says.

    tests/tune/tune_ways.py AERIE CONFIGS [CASE ...]

Exit code 1 when a case fails.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

AERIE, CONFIGS = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
WORK = tempfile.mkdtemp(prefix='aerie-tune-')
CACHE = os.path.join(WORK, 'cache')


def environment():
    env = {k: v for k, v in os.environ.items() if not k.startswith('AERIE_')}
    env.update(OMP_NUM_THREADS='1', TORCH_CPP_LOG_LEVEL='ERROR', AERIE_CACHE=CACHE)
    return env


def run(*argv, code=0):
    done = subprocess.run([AERIE, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), cwd=WORK, text=True, errors='replace')
    assert done.returncode == code, f'{" ".join(argv)}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}'
    return done


def corpus():
    out = os.path.join(WORK, 'corpus')
    if not os.path.exists(out):
        run('data', 'synth', '--out', out, '--hours', '0.05', '--speakers', '4', '--min-duration', '1', '--max-duration', '1.4')
    return out


def small(*more):
    data = corpus()
    return [f'--config-path={CONFIGS}/nest', '--config-name=nest_quickstart',
            f'model.train_ds.manifest_filepath={data}/train.json', f'model.validation_ds.manifest_filepath={data}/dev.json',
            'model.num_classes=16', 'model.code_dim=4', 'model.encoder.n_layers=1', 'model.encoder.d_model=16',
            'model.encoder.n_heads=2', 'model.encoder.subsampling_conv_channels=8', 'model.encoder.ff_expansion_factor=2',
            'trainer.accelerator=cpu', 'trainer.enable_progress_bar=false', *more]


def value(yaml, key):
    """The first scalar of that name below train_ds."""
    found = re.search(rf'train_ds:\n(?:    .*\n)*?    {key}: *(\S+)', yaml)
    return found and found.group(1)


def tunes():
    start = time.time()
    out = json.loads(run('tune', *small('model.train_ds.batch_size=2'), '--minutes', '0.6', '--json', '--scale-lr', 'sqrt').stdout)
    # The final comparison is reserved; the last trial may be longer than the ones it was judged by.
    assert time.time() - start < 36 + 60, time.time() - start
    assert out['config'] == 'nest_quickstart_tuned.yaml', out['config']
    assert len(out['tried']) >= 2 and out['tried'][0]['outcome'] == 'done', out['tried']
    assert out['kept_start'] or not out['chosen'] or out['measured_speedup'] > 1.0, out
    text = open(os.path.join(WORK, out['config'])).read()
    head = [line for line in text.split('\n\n')[0].split('\n')]
    assert all(line.startswith('#') for line in head) and 'aerie tune' in head[0], head
    batch = out['batch']['after']
    assert value(text, 'batch_size') == str(batch), (value(text, 'batch_size'), batch)
    if batch != 2:
        assert 'model.optim.lr' in out['chosen'] and out['learning_rate']['applied'] == 'sqrt', out
    # As it is, no override needed, and the run has what was written.
    run('train', '--config-path=.', '--config-name=nest_quickstart_tuned', 'trainer.max_steps=2', f'exp_manager.exp_dir={WORK}/tuned')
    used = open(glob.glob(f'{WORK}/tuned/**/config.yaml', recursive=True)[0]).read()
    assert value(used, 'batch_size') == str(batch), used
    # Nothing of the trials is where the run would live.
    assert not os.path.exists(f'{WORK}/quickstart'), os.listdir(WORK)
    # Its own file may be written again.
    run('tune', *small('model.train_ds.batch_size=2'), '--minutes', '0.1', '--json')


def refuses():
    open(os.path.join(WORK, 'mine.yaml'), 'w').write('name: mine\n')
    done = run('tune', *small(), '--out', 'mine.yaml', code=2)
    assert 'was not written by' in done.stderr, done.stderr
    assert open(os.path.join(WORK, 'mine.yaml')).read() == 'name: mine\n'
    for more, words in ((['--minutes', 'x'], '--minutes takes'), (['--scale-lr', 'cubic'], 'linear or sqrt'), (['--batch', 'huge'], 'fill or knee'),
                        (['--out', 'a/b/c.yaml'], 'no folder'), (['model.train_ds.batch_sise=3'], 'batch_size'),
                        (['model.validation_ds.batch_size=auto'], 'train_ds alone'), (['model.train_ds.batch_size=automatic'], 'auto'),
                        (['model.train_ds.batch_size=auto', '++model.train_ds.batch_duration=10'], 'another key')):
        done = run('tune', *small(*more), code=2)
        assert words in done.stderr, (more, done.stderr)
    run('tune', code=2)
    missing = run('tune', *small('model.train_ds.manifest_filepath=/nowhere.json'), '--minutes', '0.2', code=3)
    assert '/nowhere.json' in missing.stderr, missing.stderr
    assert not os.path.exists(os.path.join(WORK, 'a'))


def cached():
    return sorted(glob.glob(f'{CACHE}/batch_size/*.json'))


def automatic():
    shutil.rmtree(CACHE, ignore_errors=True)
    args = small('model.train_ds.batch_size=auto', 'trainer.max_steps=2', f'exp_manager.exp_dir={WORK}/first')
    first = run('train', *args)
    assert 'batch_size: auto is model.train_ds.batch_size=' in first.stderr, first.stderr
    batch = re.search(r'batch_size: auto is model.train_ds.batch_size=(\d+)', first.stderr).group(1)
    folder = os.path.dirname(glob.glob(f'{WORK}/first/**/config.yaml', recursive=True)[0])
    assert value(open(f'{folder}/config.yaml').read(), 'batch_size') == batch
    states = [open(p).read() for p in glob.glob(f'{folder}/checkpoints/*/*.json')]
    assert any(re.search(rf'\\?"batch_size\\?": ?{batch}\b', text) for text in states), states
    assert f'batch_size={batch}' in open(glob.glob(f'{folder}/nemo_log*')[0]).read()
    assert len(cached()) == 1, cached()

    # The same model, data and machine: no trial is run.
    again = run('train', *small('model.train_ds.batch_size=auto', 'trainer.max_steps=1', f'exp_manager.exp_dir={WORK}/second'))
    assert f'batch_size={batch}, found on' in again.stderr and 'looking for' not in again.stderr, again.stderr
    # Another one now in the cache, as if it were another GPU: a resumed run keeps its own and says so.
    entry = json.load(open(cached()[0]))
    other = int(batch) + 1
    entry.update(batch=other, device='another GPU')
    json.dump(entry, open(cached()[0], 'w'))
    resumed = run('train', *args, 'trainer.max_steps=4')
    assert f'batch_size={batch}, kept from' in resumed.stderr, resumed.stderr
    assert value(open(f'{folder}/config.yaml').read(), 'batch_size') == batch
    fresh = run('train', *small('model.train_ds.batch_size=auto', 'trainer.max_steps=1', f'exp_manager.exp_dir={WORK}/third'))
    assert f'batch_size={other}, found on' in fresh.stderr, fresh.stderr
    # Damaged, it is found anew.
    open(cached()[0], 'w').write('{"batch": -3')
    run('train', *small('model.train_ds.batch_size=auto', 'trainer.max_steps=1', f'exp_manager.exp_dir={WORK}/fourth'))
    assert json.load(open(cached()[0]))['batch'] >= 1


def together():
    """Two runs that need the same size: one of them searches, the other waits and takes what it found."""
    shutil.rmtree(CACHE, ignore_errors=True)
    runs = [subprocess.Popen([AERIE, 'train', *small('model.train_ds.batch_size=auto', 'trainer.max_steps=1', f'exp_manager.exp_dir={WORK}/both{i}')],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment(), cwd=WORK, text=True, errors='replace') for i in range(2)]
    said = [one.communicate()[1] for one in runs]
    assert [one.returncode for one in runs] == [0, 0], said
    assert sum('is auto: looking for' in text for text in said) == 1, said
    sizes = [re.search(r'batch_size: auto is model.train_ds.batch_size=(\d+)', text).group(1) for text in said]
    assert sizes[0] == sizes[1], sizes


def buckets():
    shutil.rmtree(CACHE, ignore_errors=True)
    done = run('train', *small('model.train_ds.batch_size=auto', '++model.train_ds.use_bucketing=true', '++model.train_ds.num_buckets=2',
                               'trainer.max_steps=1', f'exp_manager.exp_dir={WORK}/bucketed'))
    seconds = re.search(r'batch_size: auto is model.train_ds.batch_duration=(\d+)', done.stderr)
    assert seconds, done.stderr
    config = open(glob.glob(f'{WORK}/bucketed/**/config.yaml', recursive=True)[0]).read()
    assert value(config, 'batch_duration') == seconds.group(1) and value(config, 'batch_size') == 'null', config
    resumed = run('train', *small('model.train_ds.batch_size=auto', '++model.train_ds.use_bucketing=true', '++model.train_ds.num_buckets=2',
                                  'trainer.max_steps=2', f'exp_manager.exp_dir={WORK}/bucketed'))
    assert f'batch_duration={seconds.group(1)}, kept from' in resumed.stderr, resumed.stderr


CASES = {f.__name__: f for f in (tunes, refuses, automatic, together, buckets)}


def main():
    failed = []
    try:
        for name in sys.argv[3:] or CASES:
            start = time.time()
            try:
                CASES[name]()
                print(f'{name}: ok, {time.time() - start:.0f} s', flush=True)
            except AssertionError as error:
                failed.append(name)
                print(f'{name}: FAILED: {error}', flush=True)
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
