"""Records what mmcv makes of configurations, options and schedules, for the tests of the mm dialect.

Needs the source of mmcv 1.7.1 (pip download --no-deps --no-binary :all: mmcv==1.7.1, unpacked) and
addict, yapf, pyyaml, opencv-python, numpy, packaging; no torch:

    python tests/golden/make_mm_fixtures.py /path/to/mmcv-1.7.1

writes tests/data/mm/*.json. Recorded with Python 3.11.
"""
import importlib.util
import json
import pathlib
import sys
import types
import warnings

warnings.simplefilter('ignore')
SOURCE = pathlib.Path(sys.argv[1])
DATA = pathlib.Path(__file__).resolve().parents[1] / 'data' / 'mm'
sys.path.insert(0, str(SOURCE))
from mmcv.utils.config import Config, DictAction  # noqa: E402


def write(name, value):
    (DATA / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + '\n', encoding='utf-8')


def configs():
    for name in ['literals', 'middle', 'child']:
        write(f'configs/{name}.json', Config.fromfile(str(DATA / 'configs' / f'{name}.py'))._cfg_dict.to_dict())


def options():
    texts = ['1', '-3', '+4', '1_000', '1e-3', '.5', 'inf', 'true', 'False', 'None', 'none', 'text', "'quoted'", '"x"',
             '1,2,3', '[1,2]', '(1,2)', '[(1,2),[a,b],c]', '[]', '()', 'a, b', '[a]', '1,', '0x10', '007', 'a=b',
             '[[1,2],[3]]', '']
    write('options.json', [[text, DictAction._parse_iterable(text)] for text in texts if text != 'inf'])
    config = Config(dict(model=dict(backbone=dict(depth=50)), pipeline=[dict(type='A', x=1), dict(type='B')], lr=1))
    config.merge_from_dict({'model.backbone.depth': 18, 'model.head.type': 'FCN', 'pipeline.1.type': 'C',
                            'pipeline.0.y': 2, 'lr': 2e-4})
    write('options_merged.json', config._cfg_dict.to_dict())


def hooks():
    """lr_updater.py and momentum_updater.py on their own: their package needs torch."""
    registry = types.SimpleNamespace(register_module=lambda: (lambda cls: cls))
    for name, members in [('mmcv.runner', {}), ('mmcv.runner.hooks', {}),
                          ('mmcv.runner.hooks.hook', dict(HOOKS=registry, Hook=object))]:
        module = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(members)
        sys.modules[name] = module
    import mmcv
    mmcv.runner = sys.modules['mmcv.runner']
    found = []
    for name in ['lr_updater', 'momentum_updater']:
        full = f'mmcv.runner.hooks.{name}'
        spec = importlib.util.spec_from_file_location(full, SOURCE / 'mmcv/runner/hooks' / f'{name}.py')
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
        found.append(module)
    return found


class Optimizer:

    def __init__(self, rates, betas):
        self.defaults = dict(betas=betas)
        self.param_groups = [dict(lr=lr, betas=betas) for lr in rates]


def curve(kind, hook, max_iters, epoch_iters, rates, points):
    """What the hook sets before every iteration of a run."""
    optimizer = Optimizer(rates, (0.9, 0.999))
    epochs = -(-max_iters // epoch_iters)
    runner = types.SimpleNamespace(optimizer=optimizer, iter=0, epoch=0, max_iters=max_iters, max_epochs=epochs,
                                   data_loader=[None] * epoch_iters)
    hook.before_run(runner)
    out = []
    for i in range(max_iters):
        runner.iter = i
        if i % epoch_iters == 0:
            runner.epoch = i // epoch_iters
            hook.before_train_epoch(runner)
        hook.before_train_iter(runner)
        if i in points:
            values = [g['lr'] if kind == 'lr' else g['betas'][0] for g in optimizer.param_groups]
            out.append([i, values])
    return out


LR = [
    ('fixed', dict(by_epoch=False)),
    ('fixed', dict(by_epoch=False, warmup='constant', warmup_iters=100, warmup_ratio=0.25)),
    ('poly', dict(power=0.9, min_lr=1e-4, by_epoch=False)),
    ('poly', dict(power=1.0, by_epoch=False, warmup='linear', warmup_iters=150, warmup_ratio=1e-6)),
    ('poly', dict(power=2.0, min_lr=1e-5)),
    ('step', dict(step=[2, 5], gamma=0.1)),
    ('step', dict(step=300, gamma=0.5, min_lr=2e-3, by_epoch=False, warmup='exp', warmup_iters=90,
                  warmup_ratio=0.001)),
    ('step', dict(step=[3, 6], warmup='linear', warmup_iters=130, warmup_ratio=0.1)),
    ('exp', dict(gamma=0.7)),
    ('exp', dict(gamma=0.999, by_epoch=False)),
    ('inv', dict(gamma=0.1, power=0.5, by_epoch=False)),
    ('CosineAnnealing', dict(min_lr=1e-4, by_epoch=False)),
    ('CosineAnnealing', dict(min_lr_ratio=0.05, warmup='linear', warmup_iters=2, warmup_ratio=0.3, warmup_by_epoch=True)),
    ('FlatCosineAnnealing', dict(start_percent=0.4, min_lr_ratio=0.01, by_epoch=False)),
    ('CosineRestart', dict(periods=[300, 700], restart_weights=[1, 0.5], min_lr=1e-6, by_epoch=False)),
    ('LinearAnnealing', dict(min_lr_ratio=0.1, by_epoch=False)),
    ('cyclic', dict()),
    ('cyclic', dict(target_ratio=(10, 1e-4), cyclic_times=3, step_ratio_up=0.25, gamma=0.8)),
    ('cyclic', dict(target_ratio=8.0, step_ratio_up=0.4, anneal_strategy='linear')),
    ('OneCycle', dict(max_lr=0.02)),
    ('OneCycle', dict(max_lr=0.01, total_steps=1200, pct_start=0.25, anneal_strategy='linear', div_factor=10.0,
                      final_div_factor=100.0, three_phase=True)),
]
MOMENTUM = [
    ('cyclic', dict()),
    ('cyclic', dict(target_ratio=(0.85 / 0.95, 1.), cyclic_times=2, step_ratio_up=0.3, gamma=0.5)),
    ('CosineAnnealing', dict(min_momentum=0.5, by_epoch=False)),
    ('LinearAnnealing', dict(min_momentum_ratio=0.8, by_epoch=False, warmup='linear', warmup_iters=50,
                             warmup_ratio=0.95)),
    ('step', dict(step=[2, 4], gamma=0.9)),
    ('step', dict(step=200, by_epoch=False, min_momentum=0.3)),
    ('step', dict(step=[2], warmup='exp', warmup_iters=40, warmup_ratio=0.95)),
    ('OneCycle', dict()),
    ('OneCycle', dict(base_momentum=0.8, max_momentum=0.9, pct_start=0.4, three_phase=True)),
]


def schedules():
    lr, momentum = hooks()
    max_iters, epoch_iters, rates = 1000, 130, [0.01, 0.004]
    points = {0, 1, 2, 49, 50, 90, 99, 100, 129, 130, 149, 150, 151, 259, 260, 299, 300, 333, 400, 401, 499, 500, 599,
              650, 700, 799, 850, 910, 998, 999}
    out = []
    for kind, module, cases, suffix in [('lr', lr, LR, 'LrUpdaterHook'), ('momentum', momentum, MOMENTUM,
                                                                          'MomentumUpdaterHook')]:
        for policy, arguments in cases:
            hook = getattr(module, policy[0].upper() + policy[1:] + suffix)(**arguments)
            out.append(dict(kind=kind, policy=policy, arguments=arguments, max_iters=max_iters, epoch_iters=epoch_iters,
                            base_rates=rates, values=curve(kind, hook, max_iters, epoch_iters, rates, points)))
    write('schedules.json', out)


configs()
options()
schedules()
