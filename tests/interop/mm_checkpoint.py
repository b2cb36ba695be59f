"""Checks that torch reads the .pth files of a bird's-eye-view run, and makes files as mmcv writes them.

Needs torch alone (2.4 or later).
  python tests/interop/mm_checkpoint.py check WORK_DIR [--json RESULT]
      loads every .pth of the folder with torch.load(weights_only=True), puts its optimizer state into a torch optimizer built
      as mmcv's DefaultOptimizerConstructor does, and does a step with it
  python tests/interop/mm_checkpoint.py make IN.pth OUT.pth [--legacy]
      IN as mmcv's IterBasedRunner would have saved it: no mark of ours, meta.iter one less than done, names below `module.`,
      BEVFusion's constants among them; --legacy: in the format from before torch 1.6
"""
import argparse
import collections
import json
import os

import torch


def parameters_of(state_dict):
    """Names of parameters in torch's order: what is not a buffer."""
    buffers = ('.running_mean', '.running_var', '.num_batches_tracked', '.relative_position_index', '.attn_mask')
    return [name for name in state_dict if not name.endswith(buffers)]


def check(path):
    file = torch.load(path, map_location='cpu', weights_only=True)
    assert set(file) >= {'meta', 'state_dict'}, sorted(file)
    meta, weights = file['meta'], file['state_dict']
    assert isinstance(weights, collections.OrderedDict)
    for key in ('epoch', 'iter', 'config', 'CLASSES', 'seed', 'hook_msgs', 'time'):
        assert key in meta, key
    names = parameters_of(weights)
    out = dict(file=os.path.basename(path), iter=meta['iter'], epoch=meta['epoch'], classes=list(meta['CLASSES']),
               tensors=len(weights), parameters=len(names))
    if 'optimizer' not in file:
        return out
    saved = file['optimizer']
    params = [torch.nn.Parameter(weights[name].clone()) for name in names]
    groups = [dict(params=[p]) for p in params] if len(saved['param_groups']) > 1 else params
    optimizer = torch.optim.AdamW(groups, lr=1.0)
    optimizer.load_state_dict(saved)
    assert sum(len(group['params']) for group in saved['param_groups']) == len(names)
    for index, state in saved['state'].items():
        assert state['exp_avg'].shape == params[index].shape, names[index]
    out.update(groups=len(saved['param_groups']), states=len(saved['state']), lr=saved['param_groups'][0]['lr'],
               steps=sorted({int(state['step']) for state in saved['state'].values()}),
               undecayed=sum(group['weight_decay'] == 0 for group in saved['param_groups']))
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert all(torch.isfinite(p).all() for p in params)
    return out


def make(source, target, legacy):
    file = torch.load(source, map_location='cpu', weights_only=True)
    meta = dict(file['meta'])
    meta.pop('aerie')
    meta['iter'] -= 1
    meta['hook_msgs'] = dict(last_ckpt=f'./work/iter_{meta["iter"] + 1}.pth')
    weights = collections.OrderedDict()
    for name, value in file['state_dict'].items():
        weights['module.' + name] = value
    weights['module.encoders.camera.backbone.stages.0.blocks.0.attn.w_msa.relative_position_index'] = torch.zeros(49, 49).long()
    torch.save(dict(meta=meta, state_dict=weights, optimizer=file['optimizer']), target,
               _use_new_zipfile_serialization=not legacy)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True)
    checks = commands.add_parser('check')
    checks.add_argument('work_dir')
    checks.add_argument('--json')
    makes = commands.add_parser('make')
    makes.add_argument('source')
    makes.add_argument('target')
    makes.add_argument('--legacy', action='store_true')
    args = parser.parse_args()
    if args.command == 'make':
        return make(args.source, args.target, args.legacy)
    files = sorted(name for name in os.listdir(args.work_dir) if name.endswith('.pth'))
    assert 'latest.pth' in files, files
    result = dict(torch=torch.__version__, files=[check(os.path.join(args.work_dir, name)) for name in files])
    for line in result['files']:
        print(line)
    if args.json:
        with open(args.json, 'w') as out:
            json.dump(result, out, indent=1)
            out.write('\n')


if __name__ == '__main__':
    main()
