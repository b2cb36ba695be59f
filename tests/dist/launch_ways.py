#!/usr/bin/env python3
"""The same short run on two CPU ranks, started in every way: the losses must be equal. Then what happens to the others when
a rank is killed, stopped, or cut off from the network.

    tests/dist/launch_ways.py AERIE CONFIG_FOLDER [CASE ...]

Two network namespaces stand for two hosts; they need root, elsewhere their cases say that they are skipped. Exit code 1 when a case fails.
"""
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time

AERIE, CONFIGS = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
WORK = tempfile.mkdtemp(prefix='aerie-launch-')
HEARTBEAT = 5
LAUNCH_VARIABLES = ('RANK', 'WORLD_SIZE', 'LOCAL_', 'MASTER_', 'GROUP_', 'NODE_RANK', 'SLURM_', 'OMPI_', 'PMI_', 'MV2_', 'TORCHELASTIC_', 'AERIE_')


def patience():
    """How much longer things may take here and now than on an idle machine: runnable processes for every core."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def corpus():
    out = os.path.join(WORK, 'corpus')
    subprocess.run([AERIE, 'data', 'synth', '--out', out, '--hours', '0.02', '--speakers', '4', '--min-duration', '1', '--max-duration', '1.4'],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return out


def command(name, steps, *more):
    data = os.path.join(WORK, 'corpus')
    return [AERIE, 'train', f'--config-path={CONFIGS}', '--config-name=nest_quickstart',
            f'model.train_ds.manifest_filepath={data}/train.json', f'model.train_ds.noise_manifest={data}/noise.json',
            f'model.validation_ds.manifest_filepath={data}/dev.json', f'model.validation_ds.noise_manifest={data}/noise.json',
            'model.train_ds.batch_size=2', 'model.num_classes=16', 'model.code_dim=4', 'model.encoder.n_layers=1', 'model.encoder.d_model=16',
            'model.encoder.n_heads=2', 'model.encoder.subsampling_conv_channels=8', 'model.encoder.ff_expansion_factor=2',
            'trainer.accelerator=cpu', '+trainer.deterministic=true', f'trainer.max_steps={steps}', '+trainer.limit_val_batches=0',
            'trainer.sync_batchnorm=true', 'trainer.log_every_n_steps=1', 'trainer.enable_progress_bar=false',
            f'aerie.dist.heartbeat_s={HEARTBEAT}', f'+exp_manager.explicit_log_dir={WORK}/{name}', *more]


def environment(**variables):
    out = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCH_VARIABLES)}
    out.update({k: str(v) for k, v in variables.items()}, OMP_NUM_THREADS='1', TORCH_CPP_LOG_LEVEL='ERROR')
    return out


def start(name, argv, env):
    log = open(os.path.join(WORK, f'{name}.log'), 'ab')
    return subprocess.Popen(argv, stdout=log, stderr=log, env=env)


def finish(name, processes, limit=120):
    deadline = time.time() + limit * patience()
    codes = []
    for process in processes:
        try:
            codes.append(process.wait(max(0.1, deadline - time.time())))
        except subprocess.TimeoutExpired:
            process.kill()
            codes.append('still running')
    return codes


def log_of(name):
    return open(os.path.join(WORK, f'{name}.log'), errors='replace').read()


def losses(name):
    out = []
    for line in open(os.path.join(WORK, name, 'metrics.jsonl')):
        record = json.loads(line)
        if 'train_loss' in record and 'step' in record:
            out.append((record['step'], record['train_loss']))
    return out


class Failed(Exception):
    pass


def expect(condition, what, name=None):
    if not condition:
        raise Failed(what + (('\n' + log_of(name)[-3000:]) if name else ''))


STEPS = 4


def run_all(name, starts):
    processes = [start(name, argv, env) for argv, env in starts]
    codes = finish(name, processes)
    expect(all(code == 0 for code in codes), f'{name}: exit codes {codes}', name)
    return losses(name)


def by_itself(name='by_itself'):
    return run_all(name, [(command(name, STEPS, 'trainer.devices=2'), environment())])


def by_variables(name='by_variables'):
    port = free_port()
    return run_all(name, [(command(name, STEPS, 'trainer.devices=2'),
                           environment(RANK=r, WORLD_SIZE=2, LOCAL_RANK=r, MASTER_ADDR='127.0.0.1', MASTER_PORT=port)) for r in (0, 1)])


def by_slurm(name='by_slurm'):
    job = 4_000_000 + free_port() % 10_000
    return run_all(name, [(command(name, STEPS, 'trainer.devices=2'),
                           environment(SLURM_PROCID=r, SLURM_LOCALID=r, SLURM_NTASKS=2, SLURM_NODEID=0, SLURM_NNODES=1, SLURM_TASKS_PER_NODE='2',
                                       SLURM_NODELIST='localhost', SLURM_JOB_ID=job)) for r in (0, 1)])


def by_mpi(name='by_mpi'):
    port = free_port()
    return run_all(name, [(command(name, STEPS), environment(OMPI_COMM_WORLD_RANK=r, OMPI_COMM_WORLD_SIZE=2, OMPI_COMM_WORLD_LOCAL_RANK=r,
                                                             OMPI_COMM_WORLD_LOCAL_SIZE=2, MASTER_PORT=port)) for r in (0, 1)])


def by_nodes(name='by_nodes'):
    """One launcher a machine, which starts the ranks there."""
    port = free_port()
    return run_all(name, [(command(name, STEPS, 'trainer.devices=1', 'trainer.num_nodes=2'),
                           environment(NODE_RANK=node, MASTER_ADDR='127.0.0.1', MASTER_PORT=port)) for node in (0, 1)])


class Namespaces:
    """Two network namespaces joined by a pair of virtual cards, 10.211.N.1 and 10.211.N.2."""
    def __enter__(self):
        self.tag = f'ae{os.getpid() % 10000}'
        self.net = f'10.211.{os.getpid() % 250}'
        self.ip('netns', 'add', self.tag + 'a')
        self.ip('netns', 'add', self.tag + 'b')
        self.ip('link', 'add', self.tag + 'va', 'netns', self.tag + 'a', 'type', 'veth', 'peer', 'name', self.tag + 'vb', 'netns', self.tag + 'b')
        for side, number in (('a', 1), ('b', 2)):
            inside = ['-n', self.tag + side]
            self.ip(*inside, 'addr', 'add', f'{self.net}.{number}/24', 'dev', self.tag + 'v' + side)
            self.ip(*inside, 'link', 'set', self.tag + 'v' + side, 'up')
            self.ip(*inside, 'link', 'set', 'lo', 'up')
        return self

    def __exit__(self, *_):
        for side in 'ab':
            subprocess.run(['ip', 'netns', 'del', self.tag + side], stderr=subprocess.DEVNULL)

    def ip(self, *args):
        subprocess.run(['ip', *args], check=True, stderr=subprocess.PIPE)

    def cut(self):
        self.ip('-n', self.tag + 'a', 'link', 'set', self.tag + 'va', 'down')

    def starts(self, name, steps, *more):
        out = []
        for rank, side in enumerate('ab'):
            env = environment(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1, GROUP_RANK=rank, GROUP_WORLD_SIZE=2,
                              MASTER_ADDR=f'{self.net}.1', MASTER_PORT=29533)
            out.append((['ip', 'netns', 'exec', self.tag + side, *command(name, steps, 'trainer.devices=1', 'trainer.num_nodes=2', *more)], env))
        return out


def by_namespaces(name='by_namespaces'):
    with Namespaces() as hosts:
        return run_all(name, hosts.starts(name, STEPS))


def wait_for_step(name, step, processes, limit=60):
    limit *= patience()
    deadline = time.time() + limit
    path = os.path.join(WORK, name, 'metrics.jsonl')
    while time.time() < deadline:
        if os.path.exists(path) and any(s >= step for s, _ in losses(name)):
            return
        if all(process.poll() is not None for process in processes):
            raise Failed(f'{name}: ended before step {step}\n{log_of(name)[-3000:]}')
        time.sleep(0.05)
    raise Failed(f'{name}: no step {step} in {limit:.0f} s\n{log_of(name)[-3000:]}')


def rank_processes(launcher):
    children = open(f'/proc/{launcher.pid}/task/{launcher.pid}/children').read().split()
    ranks = {}
    for pid in children:
        variables = dict(v.split('=', 1) for v in open(f'/proc/{pid}/environ').read().split('\0') if '=' in v)
        ranks[int(variables['RANK'])] = int(pid)
    return ranks


def expect_one_error(name, text):
    """What went wrong is said once, on a console that all ranks share, and in our words."""
    errors = [line for line in log_of(name).splitlines() if 'error:' in line]
    expect(len(errors) == 1 and text in errors[0], f'errors {errors}, one with "{text}" expected', name)


def refused(name='refused'):
    """What all ranks find wrong; then what only one of them does, without a launcher around them."""
    process = start(name, command(name, STEPS, 'trainer.devices=3', f'model.train_ds.manifest_filepath={WORK}/none.json'), environment())
    expect(finish(name, [process]) == [3], 'exit codes', name)
    expect_one_error(name, 'none.json')
    port, codes = free_port(), []
    for rank, width in ((0, 16), (1, 32)):
        env = environment(RANK=rank, WORLD_SIZE=2, MASTER_ADDR='127.0.0.1', MASTER_PORT=port)
        codes.append(start('other_model', command('other_model', STEPS, 'trainer.devices=2', f'model.encoder.d_model={width}'), env))
    expect(finish('other_model', codes) == [2, 2], 'exit codes', 'other_model')
    expect('another model than rank 0' in log_of('other_model'), 'the other model is not told', 'other_model')


def script(name='script'):
    """mm's script with either name of its overrides, which cannot be mixed; on several machines it asks for what it must know."""
    path = os.path.join(CONFIGS, '../../scripts/dist_train.sh')
    for option in ('--cfg-options', '--options'):
        said = subprocess.run([path, 'x.py', '2', option, 'a=b'], env=environment(AERIE='echo'), stdout=subprocess.PIPE, text=True)
        expect(said.stdout == f'train x.py {option} a=b {option} trainer.devices=2\n', said.stdout)
    for given, missing in (({}, 'NODE_RANK'), ({'NODE_RANK': 0}, 'MASTER_ADDR')):
        said = subprocess.run([path, 'x.py', '2'], env=environment(NNODES=2, **given), stderr=subprocess.PIPE, text=True)
        expect(said.returncode == 2 and said.stderr == f'error: the variable {missing} must be set with several machines\n', said.stderr)


def killed(name='killed'):
    process = start(name, command(name, 100000, 'trainer.devices=2'), environment())
    wait_for_step(name, 2, [process])
    os.kill(rank_processes(process)[1], signal.SIGKILL)
    began = time.time()
    codes = finish(name, [process], 30)
    expect(codes == [1], f'exit codes {codes}', name)
    seconds = time.time() - began
    expect(seconds < 8 * patience(), f'took {seconds:.1f} s', name)
    for text in ('rank 1 on ', 'SIGKILL', 'in phase ', 'last lines of rank 1'):
        expect(text in log_of(name), f'no "{text}"', name)
    expect_one_error(name, 'SIGKILL')


def stopped(name='stopped'):
    process = start(name, command(name, 100000, 'trainer.devices=2'), environment())
    wait_for_step(name, 2, [process])
    os.kill(rank_processes(process)[1], signal.SIGSTOP)
    began = time.time()
    codes = finish(name, [process], 60)
    seconds = time.time() - began
    expect(codes == [1], f'exit codes {codes}', name)
    expect(seconds <= HEARTBEAT * patience(), f'took {seconds:.1f} s', name)
    expect('rank 1 on ' in log_of(name), 'the silent rank is not named', name)
    expect_one_error(name, 'has said nothing')


def slowed(name='slowed'):
    """A rank that stands still again and again, for less than the heartbeat: the others wait for it and say who it is."""
    process = start(name, command(name, 100000, 'trainer.devices=2'), environment())
    wait_for_step(name, 2, [process])
    slow = rank_processes(process)[1]
    deadline = time.time() + 60 * patience()
    while 'holds the others up' not in log_of(name) and time.time() < deadline and process.poll() is None:
        os.kill(slow, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(slow, signal.SIGCONT)
        time.sleep(0.5)
    before = losses(name)[-1][0]
    wait_for_step(name, before + 1, [process])
    expect('rank 1 on ' in log_of(name) and 'holds the others up' in log_of(name), 'the slow rank is not named', name)
    process.send_signal(signal.SIGTERM)
    codes = finish(name, [process], 60)
    expect(codes == [0], f'exit codes {codes}', name)


def restarted(name='restarted'):
    """With a sharded optimizer, whose moments a checkpoint collects from all ranks."""
    process = start(name, command(name, 12, 'trainer.devices=2', 'aerie.shard_optimizer=true', '--max-restarts', '1',
                                  '+exp_manager.checkpoint_callback_params.every_n_train_steps=2'), environment())
    wait_for_step(name, 5, [process])
    os.kill(rank_processes(process)[0], signal.SIGKILL)
    codes = finish(name, [process])
    expect(codes == [0], f'exit codes {codes}', name)
    expect('starting the ranks again (1 of 1)' in log_of(name) and 'resuming from' in log_of(name), 'did not go on', name)
    whole = run_all('whole', [(command('whole', 12, 'trainer.devices=2', 'aerie.shard_optimizer=true'), environment())])
    expect(dict(losses(name)) == dict(whole), f'losses differ: {losses(name)}, in one piece {whole}')


def saved(name):
    """The tensors of the newest native checkpoint and the members of the .nemo beside it, as hashes."""
    folder = os.path.join(WORK, name, 'checkpoints')
    newest = max((entry for entry in os.listdir(folder) if os.path.isdir(os.path.join(folder, entry))), key=lambda e: os.path.getmtime(os.path.join(folder, e)))
    out = {}
    for file in sorted(os.listdir(os.path.join(folder, newest))):
        if file.endswith('.safetensors'):
            out[file] = hashlib.sha256(open(os.path.join(folder, newest, file), 'rb').read()).hexdigest()
    archives = [entry for entry in os.listdir(folder) if entry.endswith('.nemo')]
    expect(len(archives) == 1, f'{name}: archives {archives}')
    with tarfile.open(os.path.join(folder, archives[0])) as archive:
        for member in archive:
            if member.isfile():
                out[f'.nemo: {os.path.basename(member.name)}'] = hashlib.sha256(archive.extractfile(member).read()).hexdigest()
    return out


def sharded(name='sharded'):
    """A sharded optimizer leaves the checkpoints and the .nemo of a whole one, to the bit, and their tensors do not depend on the number of ranks."""
    whole = ['trainer.strategy={_target_: lightning.pytorch.strategies.DDPStrategy, gradient_as_bucket_view: true}']
    for ranks in (2, 3):
        found = {}
        for kind, more in (('whole', []), ('shards', ['aerie.shard_optimizer=true'])):
            folder = f'{name}_{kind}_{ranks}'
            found[kind] = run_all(folder, [(command(folder, STEPS, f'trainer.devices={ranks}', *whole, *more), environment())]), saved(folder)
        expect(len(found['whole'][1]) >= 4, f'saved {sorted(found["whole"][1])}')
        expect(found['shards'] == found['whole'], f'{ranks} ranks: {found["shards"]}, whole {found["whole"]}')


# What depends on the batch that a rank happens to have, its padding among it, is off.
EQUAL = ['model.train_ds.batch_augmentor.prob=0.0', 'model.encoder.dropout=0.0', 'model.encoder.dropout_pre_encoder=0.0', 'model.encoder.dropout_emb=0.0',
         'model.encoder.dropout_att=0.0', 'aerie.loss_reduction=global', 'aerie.batch_norm_frames=valid']


def other_worlds(name='other_worlds'):
    """A run that goes on at the next epochs (of 6 steps) with another number of ranks, 2, 4 and 1, and the same eight samples a step, equals one on one rank."""
    more = [*EQUAL, 'aerie.shard_optimizer=true', '++exp_manager.resume_if_exists=true', '++exp_manager.resume_ignore_no_checkpoint=true']
    for folder, parts in ((name, ((2, 6), (4, 12), (1, 18))), ('one_world', ((1, 18),))):
        for ranks, steps in parts:
            run_all(folder, [(command(folder, steps, *more, f'trainer.devices={ranks}', f'model.train_ds.batch_size={8 // ranks}'), environment())])
    found, want = dict(losses(name)), dict(losses('one_world'))
    expect(sorted(found) == sorted(want) == list(range(1, 19)), f'steps {sorted(found)} and {sorted(want)}')
    worst = max(abs(found[s] - want[s]) for s in want)
    expect(worst < 1e-4, f'losses differ by {worst}: {found}, {want}')


def requeued(name='requeued'):
    """SLURM's signal before the time limit: saved, ended well, and `scontrol requeue` called once."""
    tools = os.path.join(WORK, 'bin')
    os.makedirs(tools)
    with open(os.path.join(tools, 'scontrol'), 'w') as script:
        script.write(f'#!/bin/sh\necho "$@" >> {WORK}/requeues\n')
    os.chmod(os.path.join(tools, 'scontrol'), 0o755)
    variables = environment(SLURM_PROCID=0, SLURM_LOCALID=0, SLURM_NTASKS=1, SLURM_NODEID=0, SLURM_NNODES=1, SLURM_NODELIST='localhost', SLURM_JOB_ID=77,
                            PATH=tools + ':' + os.environ['PATH'])
    process = start(name, command(name, 100000, 'trainer.devices=2'), variables)
    wait_for_step(name, 2, [process])
    process.send_signal(signal.SIGUSR1)
    codes = finish(name, [process], 60)
    expect(codes == [0], f'exit codes {codes}', name)
    expect(open(os.path.join(WORK, 'requeues')).read() == 'requeue 77\n', 'not put into the queue again, once', name)
    saved = [entry for entry in os.listdir(os.path.join(WORK, name, 'checkpoints')) if 'step=' in entry]
    expect(saved, 'nothing was saved', name)


def cut(name='cut'):
    with Namespaces() as hosts:
        processes = [start(name, argv, env) for argv, env in hosts.starts(name, 100000)]
        wait_for_step(name, 2, processes)
        hosts.cut()
        began = time.time()
        codes = finish(name, processes, 60)
        seconds = time.time() - began
        expect(codes == [1, 1], f'exit codes {codes}', name)
        expect(seconds <= HEARTBEAT * patience(), f'took {seconds:.1f} s', name)
        expect('rank 1 on ' in log_of(name) and 'rank 0 on ' in log_of(name), 'each side names the other', name)


def may_make_namespaces():
    if os.geteuid() != 0 or shutil.which('ip') is None:
        return False
    probe = f'ae{os.getpid()}p'
    made = subprocess.run(['ip', 'netns', 'add', probe], stderr=subprocess.DEVNULL).returncode == 0
    if made:
        subprocess.run(['ip', 'netns', 'del', probe])
    return made


def main():
    same = {f.__name__: f for f in (by_itself, by_variables, by_slurm, by_mpi, by_nodes, by_namespaces)}
    faults = {f.__name__: f for f in (refused, script, killed, stopped, slowed, restarted, sharded, other_worlds, requeued, cut)}
    wanted = sys.argv[3:] or [*same, *faults]
    namespaces = may_make_namespaces()
    failures = 0
    reference = None
    try:
        corpus()
        for name in wanted:
            if name in ('by_namespaces', 'cut') and not namespaces:
                print(f'SKIPPED {name}: network namespaces need root', flush=True)
                continue
            began = time.time()
            try:
                if name in same:
                    found = same[name]()
                    expect(len(found) >= STEPS, f'{name}: losses {found}', name)
                    reference = reference or found
                    expect(found == reference, f'{name}: losses {found}, by itself {reference}')
                else:
                    faults[name]()
                print(f'ok      {name} ({time.time() - began:.1f} s)', flush=True)
            except Failed as failure:
                failures += 1
                print(f'FAILED  {name}: {failure}', flush=True)
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
