#!/usr/bin/env python3
"""aerie under the real torchrun (torch 2.11): the same losses as when it starts its own ranks, and the reason of a failure in torchrun's report.

    tests/interop/torchrun.py AERIE TORCHRUN     e.g. build/aerie ~/venv/bin/torchrun
"""
import os
import subprocess
import sys

here = os.path.dirname(os.path.abspath(__file__))
aerie, torchrun = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
sys.argv = [sys.argv[0], aerie, os.path.join(here, '../../configs/nest')]
sys.path.insert(0, os.path.join(here, '../dist'))
import launch_ways as ways  # noqa: E402


def under_torchrun(name, steps, *more):
    argv = [torchrun, '--no-python', '--nproc-per-node', '2', '--master-port', str(ways.free_port()), *ways.command(name, steps, *more)]
    process = ways.start(name, argv, ways.environment())
    return process


def main():
    ways.corpus()
    own = ways.by_itself()
    process = under_torchrun('torchrun', ways.STEPS)
    codes = ways.finish('torchrun', [process])
    ways.expect(codes == [0], f'exit codes {codes}', 'torchrun')
    found = ways.losses('torchrun')
    ways.expect(found == own, f'losses {found}, by itself {own}')
    print(f'ok      2 ranks under torchrun: losses of {len(found)} steps equal to those of its own launcher: {[round(v, 6) for _, v in found]}')

    process = under_torchrun('missing', ways.STEPS, 'model.train_ds.manifest_filepath=/nowhere.json')
    codes = ways.finish('missing', [process])
    ways.expect(codes != [0] and '/nowhere.json' in ways.log_of('missing'), f'exit codes {codes}', 'missing')
    report = ways.log_of('missing').split('Root Cause')[-1]
    ways.expect('nowhere.json' in report, 'torchrun does not print the reason', 'missing')
    print('ok      a failure: torchrun prints our reason as the root cause')

    process = under_torchrun('killed', 100000)
    ways.wait_for_step('killed', 2, [process])
    workers = subprocess.run(['pgrep', '-P', str(process.pid)], capture_output=True, text=True).stdout.split()
    ranks = [pid for pid in workers if os.readlink(f'/proc/{pid}/exe') == os.path.realpath(aerie)]
    os.kill(int(ranks[-1]), 9)
    codes = ways.finish('killed', [process], 60)
    ways.expect(codes != [0], f'exit codes {codes}', 'killed')
    print('ok      a killed rank: torchrun ends with', codes[0])
    return 0


if __name__ == '__main__':
    try:
        sys.exit(main())
    except ways.Failed as failure:
        print('FAILED ', failure)
        sys.exit(1)
    finally:
        ways.shutil.rmtree(ways.WORK, ignore_errors=True)
