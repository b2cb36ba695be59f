#!/usr/bin/env python3
"""All rows of `aerie bench claims` in calls of a few minutes, and the record of them for bench/results.

    bench/claims_proof.py AERIE --hardware h200 [--out build/claims-proof] [--limit 480] [--seconds 55] [--model nest,bev] [--only ROW,...]

A call that reaches --limit seconds ends with 3 and the next one with the same --out goes on: finished rows are kept. In the end OUT/claims_HARDWARE_YYYYMM.json
is a record for bench/results (copy it there, then scripts/bench-results writes its page), with a draft of the paragraph on which claims hold. Exit status: 0 all
rows are there and took no more than a minute each, 1 a row failed or took longer, 2 wrong use, 3 not finished.
"""
import argparse
import datetime
import json
import os
import subprocess
import sys
import time

TITLES = {'nest': 'NEST', 'bev': 'LSS + Swin'}
LONGEST_S = 60.0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('aerie')
    parser.add_argument('--hardware', required=True, help='h200, two_cores: part of the name of the record')
    parser.add_argument('--out', default='build/claims-proof')
    parser.add_argument('--limit', type=float, default=480.0)
    parser.add_argument('--seconds', type=float, default=55.0)
    parser.add_argument('--model', default='nest,bev')
    parser.add_argument('--only')
    return parser.parse_args()


def names(rows):
    return ', '.join(f"{one['what']} ({one['measured']})" for one in rows) or 'none'


def paragraph(rows):
    """Which claims hold and which do not, in one sentence for each verdict."""
    by = {}
    for one in rows:
        by.setdefault(one['verdict'], []).append(one)
    lines = []
    for verdict, words in (('holds', 'Hold'), ('in part', 'Hold in part'), ('does not hold', 'Do not hold'), ('unclear', 'Unclear, within the noise')):
        if verdict in by:
            lines.append(f'{words}: {names(by[verdict])}.')
    if '-' in by:
        lines.append(f"Could not be judged here: {names(by['-'])}.")
    return lines


def record(table, hardware):
    today = datetime.date.today()
    machine = {'cpu': f"{table['cpu']}, {table['cpus']} CPUs"}
    if table['gpu']:
        machine['gpu'] = table['gpu']
    tables = []
    for model in dict.fromkeys(one['model'] for one in table['rows']):
        rows = [one for one in table['rows'] if one['model'] == model]
        engines = dict.fromkeys(s['engine'] for one in rows for s in one['settings'] if s['engine'] and not one.get('where'))
        tables.append({
            'name': TITLES.get(model, model), 'commit': table['commit'], 'command': f'aerie bench claims --model {model}',
            'about': 'Engines: ' + '; '.join(engines) + '. Settings of a row in turn and back again; measured: input a second of the last beside the first, ± the noise.',
            'columns': {'row': 'row', 'claim': 'claim', 'measured': 'measured', 'verdict': 'holds', 'why': 'why'},
            'rows': [{'row': one['what'], 'claim': one['claim']['text'], 'measured': one['measured'], 'verdict': one['verdict'], 'why': one['why'] or '-'} for one in rows],
            'notes': paragraph(rows)})
    busy = max((one.get('others_share', 0.0) for one in table['rows']), default=0.0)
    return {'title': f"What guides promise, measured ({hardware.replace('_', ' ')})", 'measured': today.isoformat(), 'machine': machine, 'tables': tables,
            'notes': [f'Other programs used at most {100 * busy:.0f} % of the CPUs during a row. What the columns mean: [claims.md](../../docs/claims.md).']}


def main():
    args = arguments()
    start = time.time()
    os.makedirs(args.out, exist_ok=True)
    command = [os.path.abspath(args.aerie), 'bench', 'claims', '--out', args.out, '--seconds', str(args.seconds), '--model', args.model, '--json']
    if args.only:
        command += ['--only', args.only]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        text, _ = process.communicate(timeout=max(10.0, args.limit - 20))
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        done = os.path.join(args.out, 'claims.json')
        rows = json.load(open(done))['rows'] if os.path.exists(done) else []
        print(f'not finished after {time.time() - start:.0f} s, {len(rows)} rows so far: call it again with the same --out')
        return 3
    if process.returncode != 0:
        print(f'exit code {process.returncode}')
        return 2 if process.returncode == 2 else 1
    table = json.loads(text)
    path = os.path.join(args.out, f'claims_{args.hardware}_{datetime.date.today():%Y%m}.json')
    with open(path, 'w') as file:
        json.dump(record(table, args.hardware), file, indent=1, ensure_ascii=False)
        file.write('\n')
    bad = 0
    for one in table['rows']:
        slow = one['elapsed_s'] > LONGEST_S and table['gpu']
        bad += bool(one.get('failed')) or bool(slow)
        print(f"{one['model']:4} {one['name']:24} {one['verdict']:13} {one['measured']}" + (f"  FAILED: {one['failed']}" if one.get('failed') else '') +
              (f"  took {one['elapsed_s']:.0f} s" if slow else ''))
    print(f'\nrecord: {path}')
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
