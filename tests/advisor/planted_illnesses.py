#!/usr/bin/env python3
"""Short real runs on the CPU, each with an illness planted into it: `aerie doctor` has to name it first, and has to call a
healthy run healthy and leave it as it is.

    tests/advisor/planted_illnesses.py AERIE CONFIGS SLOW_DISK [CASE ...]

SLOW_DISK is the library of slow_disk.cc. Exit code 1 when a case fails.
"""
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

AERIE, CONFIGS, SLOW_DISK = (os.path.abspath(path) for path in sys.argv[1:4])
WORK = tempfile.mkdtemp(prefix='aerie-doctor-')
LAUNCH_VARIABLES = ('RANK', 'WORLD_SIZE', 'LOCAL_', 'MASTER_', 'GROUP_', 'NODE_RANK', 'SLURM_', 'OMPI_', 'PMI_', 'MV2_', 'TORCHELASTIC_', 'AERIE_')


def environment(**variables):
    out = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCH_VARIABLES)}
    out.update({k: str(v) for k, v in variables.items()}, OMP_NUM_THREADS='1', TORCH_CPP_LOG_LEVEL='ERROR')
    return out


def corpus(name='corpus', longest=1.2, hours=0.05):
    out = os.path.join(WORK, name)
    subprocess.run([AERIE, 'data', 'synth', '--out', out, '--hours', str(hours), '--speakers', '5', '--min-duration', '1', '--max-duration',
                    str(longest), '--noise-hours', '0.02', '--format', 'flac'], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return out


def config(data, *more):
    """What `aerie train` and `aerie doctor` take: a model whose step is long beside what a tiny batch costs to read."""
    return [f'--config-path={CONFIGS}/nest', '--config-name=nest_quickstart', f'model.train_ds.manifest_filepath={data}/train.json',
            f'model.train_ds.noise_manifest={data}/noise.json', f'model.validation_ds.manifest_filepath={data}/dev.json',
            f'model.validation_ds.noise_manifest={data}/noise.json', 'model.num_classes=32', 'model.code_dim=4', 'model.encoder.n_layers=2',
            'model.encoder.d_model=64', 'model.encoder.n_heads=4', 'model.encoder.subsampling_conv_channels=32', 'model.train_ds.batch_size=8',
            'model.train_ds.num_workers=1', 'trainer.accelerator=cpu', '++trainer.check_val_every_n_epoch=null', '++trainer.limit_val_batches=0',
            'trainer.log_every_n_steps=1', 'trainer.enable_progress_bar=false', 'exp_manager.create_checkpoint_callback=false', *more]


def train(name, data, steps, *more, env=None):
    folder = os.path.join(WORK, name)
    done = subprocess.run([AERIE, 'train', *config(data, *more), f'trainer.max_steps={steps}', f'+exp_manager.explicit_log_dir={folder}'],
                          env=env or environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    expect(done.returncode == 0, f'{name}: training ended with {done.returncode}: {done.stdout[-2000:]}')
    return folder


def doctor(*args, env=None):
    """Of a run's folder: by its records alone, unless --trials says more."""
    if len(args) == 1:
        args += ('--trials', '0')
    done = subprocess.run([AERIE, 'doctor', *args, '--json'], env=env or environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    expect(done.returncode == 0, f'doctor ended with {done.returncode}: {done.stderr[-2000:]}')
    return json.loads(done.stdout)


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def expect_first(found, cause, section='speed'):
    causes = [one['id'] for one in found[section]]
    expect(causes[:1] == [cause], f'expected {cause} first, got {json.dumps(found, indent=1)}')
    expect(not found['healthy'], 'called healthy')


def files_of(folder):
    out = {}
    for path, _, names in os.walk(folder):
        for name in names:
            full = os.path.join(path, name)
            out[full] = (os.stat(full).st_mtime_ns, hashlib.sha256(open(full, 'rb').read()).hexdigest())
    return out


def healthy():
    folder = train('healthy', DATA, 40)
    before = files_of(folder)
    found = doctor(folder)
    expect(found['healthy'], json.dumps(found, indent=1))
    expect(not found['speed'] and not found['correctness'], 'findings in a healthy run')
    expect(found['measured']['loader']['workers'] == 1, 'the loader was not recorded')
    expect(files_of(folder) == before, 'the doctor changed the run')


def no_workers():
    """Loading in the training thread behind a slow disk; the trial shows what loader threads are worth."""
    env = environment(LD_PRELOAD=SLOW_DISK, SLOW_READ_MS=6)
    more = ('model.train_ds.num_workers=0',)
    found = doctor(train('no_workers', DATA, 30, *more, env=env))
    expect_first(found, 'num_workers')
    expect(found['speed'][0]['measured_speedup'] is None, 'a gain was measured without a trial')
    expect(any('gains are estimates' in note for note in found['notes']), 'estimates are not called so')
    expect(found['measured']['loader']['needed_mb_per_s'] > found['measured']['loader']['read_mb_per_s'] > 0, json.dumps(found))
    found = doctor(*config(DATA, *more), '--steps', '30', env=env)
    expect_first(found, 'num_workers')
    expect(found['speed'][0]['measured_speedup'] > 1.2, json.dumps(found['speed']))


def slow_disk():
    """One loader thread that waits for its files most of the time."""
    env = environment(LD_PRELOAD=SLOW_DISK, SLOW_READ_MS=25)
    found = doctor(train('slow_disk', DATA, 20, env=env))
    expect_first(found, 'slow_storage')
    expect(found['measured']['loader']['limit'] == 'disk', json.dumps(found['measured']))


def without_its_data():
    data = corpus('gone')
    folder = train('without_its_data', data, 20, 'model.train_ds.num_workers=0', env=environment(LD_PRELOAD=SLOW_DISK, SLOW_READ_MS=6))
    shutil.rmtree(data)
    found = doctor(folder)
    expect_first(found, 'num_workers')
    expect(any('gone/train.json) is not here' in note for note in found['notes']), json.dumps(found['notes']))


def tried_here():
    """The folder of a run whose data is there: what the advised change gains is measured, the folder stays as it was."""
    env = environment(LD_PRELOAD=SLOW_DISK, SLOW_READ_MS=6)
    folder = train('tried_here', DATA, 12, 'model.train_ds.num_workers=0', env=env)
    before = files_of(folder)
    found = doctor(folder, '--steps', '12', '--trials', '1', env=env)
    expect_first(found, 'num_workers')
    expect(found['speed'][0]['measured_speedup'] > 1.02, json.dumps(found['speed']))
    expect(not any('estimates' in note for note in found['notes']), json.dumps(found['notes']))
    expect(files_of(folder) == before, 'the doctor changed the run')


def dropped_data():
    """A damaged recording and a line of the manifest that is none."""
    data = corpus('damaged')
    manifest = os.path.join(data, 'train.json')
    lines = open(manifest).read().splitlines()
    path = os.path.join(data, json.loads(lines[0])['audio_filepath'])
    open(path, 'r+b').truncate(60)
    open(manifest, 'w').write('\n'.join(lines[:3] + ['{"audio_filepath": "x.fl'] + lines[3:]) + '\n')
    found = doctor(train('dropped_data', data, 40, '++aerie.data.skip_bad_lines=true'))
    expect_first(found, 'dropped_data', 'correctness')
    what = found['correctness'][0]['what']
    expect(what.startswith('1 sample could not be read') and '1 line of the manifest is no sample' in what, what)


def validation():
    more = (f'model.validation_ds.manifest_filepath={DATA}/train.json', 'trainer.val_check_interval=10', '++trainer.limit_val_batches=8')
    found = doctor(train('validation', DATA, 40, *more))
    expect_first(found, 'validation')
    found = doctor(*config(DATA, *more), '--steps', '40')
    expect_first(found, 'validation')
    expect(found['speed'][0]['measured_speedup'] > 1.05, json.dumps(found['speed']))


EVERY_STEP = ('exp_manager.create_checkpoint_callback=true', '+exp_manager.checkpoint_callback_params.every_n_train_steps=1',
              'exp_manager.checkpoint_callback_params.always_save_nemo=false')


def checkpoints():
    """Weights that take longer to write than a step of a tiny batch takes."""
    more = (*EVERY_STEP, 'model.encoder.d_model=256', 'model.encoder.ff_expansion_factor=8', 'model.train_ds.batch_size=8')
    expect_first(doctor(train('checkpoints', DATA, 25, *more)), 'checkpoints')
    found = doctor(*config(DATA, *more), '--steps', '25')
    expect_first(found, 'checkpoints')
    expect(found['speed'][0]['measured_speedup'] > 1.05, json.dumps(found['speed']))


def slow_writer():
    """A checkpoint at every step that takes a second to reach the disk: most give way to newer ones, and training hardly waits."""
    found = doctor(train('slow_writer', DATA, 25, *EVERY_STEP, env=environment(LD_PRELOAD=SLOW_DISK, SLOW_SYNC_MS=300)))
    expect_first(found, 'checkpoints')
    saves = found['measured']['checkpoints']
    expect(saves['asked'] >= 25 and 2 * saves['superseded'] > saves['asked'], json.dumps(found['measured']))
    expect('were never written' in found['speed'][0]['what'], found['speed'][0]['what'])


def padding():
    data = corpus('mixed', longest=6.0, hours=0.1)
    found = doctor(train('padding', data, 20))
    expect(found['measured']['padding_share'] > 0.25, json.dumps(found['measured']))
    expect_first(found, 'padding')


def small_batch():
    """More weights to update than a batch of 2 is worth."""
    found = doctor(train('small_batch', DATA, 30, 'model.train_ds.batch_size=2', 'model.encoder.d_model=256'))
    expect_first(found, 'batch_size')


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def ranks(name, *more, steps=30, stopped=None, slow_files=None):
    """Two ranks over Gloo; the process of `stopped` is stopped most of the time, files of `slow_files` take long to read."""
    folder, port = os.path.join(WORK, name), free_port()
    logs = [open(os.path.join(WORK, f'{name}.{rank}.log'), 'wb') for rank in range(2)]
    processes = [subprocess.Popen(
        [AERIE, 'train', *config(DATA, *more), 'trainer.devices=2', f'trainer.max_steps={steps}', f'+exp_manager.explicit_log_dir={folder}'],
        env=environment(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=2, LOCAL_WORLD_SIZE=2, MASTER_ADDR='127.0.0.1', MASTER_PORT=port,
                        **({'LD_PRELOAD': SLOW_DISK, 'SLOW_READ_MS': 80} if rank == slow_files else {})),
        stdout=logs[rank], stderr=logs[rank]) for rank in range(2)]
    over = threading.Event()

    def slow_down():
        while not over.is_set() and processes[stopped].poll() is None:
            processes[stopped].send_signal(signal.SIGSTOP)
            time.sleep(0.12)
            processes[stopped].send_signal(signal.SIGCONT)
            time.sleep(0.03)

    thread = threading.Thread(target=slow_down)
    if stopped is not None:
        thread.start()
    codes = [process.wait(240) for process in processes]
    over.set()
    if stopped is not None:
        thread.join()
    expect(codes == [0, 0], f'{name}: ranks ended with {codes}: {open(logs[0].name).read()[-1500:]}')
    return folder


def slow_rank():
    """One rank whose files come slowly."""
    found = doctor(ranks('slow_rank', steps=12, slow_files=1))
    expect_first(found, 'straggler')
    expect('rank 1 ' in found['speed'][0]['what'] and 'its data is slow' in found['speed'][0]['advice'], json.dumps(found['speed']))


def stopped_rank():
    """One rank whose computation is slow."""
    found = doctor(ranks('stopped_rank', stopped=1))
    expect_first(found, 'straggler')
    expect('rank 1 ' in found['speed'][0]['what'], found['speed'][0]['what'])


def sync_batchnorm():
    folder = ranks('sync_batchnorm', 'trainer.sync_batchnorm=false')
    found = doctor(folder)
    expect_first(found, 'sync_batchnorm', 'correctness')
    text = subprocess.run([AERIE, 'doctor', folder], env=environment(), stdout=subprocess.PIPE, text=True, check=True).stdout
    expect('Correctness' in text and text.find('Correctness') < (text.find('\nSpeed') % (len(text) + 1)), text)


CASES = (healthy, no_workers, slow_disk, without_its_data, tried_here, dropped_data, validation, checkpoints, slow_writer, padding, small_batch, slow_rank,
         stopped_rank, sync_batchnorm)
DATA = corpus()
wanted = sys.argv[4:]
failed = 0
for case in CASES:
    if wanted and case.__name__ not in wanted:
        continue
    begin = time.time()
    try:
        case()
        print(f'{case.__name__}: ok, {time.time() - begin:.1f} s', flush=True)
    except AssertionError as error:
        failed += 1
        print(f'{case.__name__}: FAILED: {error}', flush=True)
shutil.rmtree(WORK, ignore_errors=True)
sys.exit(1 if failed else 0)
