"""Optimizers on fixed gradients, and every learning-rate schedule as a table."""
import json
import os
import warnings

import torch
from omegaconf import OmegaConf

from .common import OUT_DIR, jsonable, randn, rng, write
import nemo
from nemo.core.optim.lr_scheduler import prepare_lr_scheduler
from nemo.core.optim.optimizers import get_optimizer

STEPS = 5


def optimizers():
    r = rng(61)
    params = {"a": randn(r, 5, 4), "b": randn(r, 7), "scalar": randn(r), "c": randn(r, 2, 3, 3, scale=0.01), "frozen": randn(r, 3)}
    grads = [{k: randn(r, *v.shape, scale=10.0 ** r.integers(-3, 2)) for k, v in params.items() if k != "frozen"} for _ in range(STEPS)]
    grads[0]["b"].zero_()                      # a parameter whose first gradient is exactly zero
    del grads[2]["c"]                          # and one that misses a step
    tensors = {"in.param." + k: v for k, v in params.items()}
    for s, g in enumerate(grads):
        tensors.update({f"in.grad{s}.{k}": v for k, v in g.items()})
    meta = []

    def case(name, opt, lrs=None, groups=None, cyclic=None, **kw):
        lrs = lrs or [0.01] * STEPS
        ps = {k: torch.nn.Parameter(v.clone()) for k, v in params.items()}
        arg = list(ps.values())
        if groups:
            arg = [dict(params=[ps[n] for n in names], **extra) for names, extra in groups]
        optimizer = get_optimizer(opt, lr=lrs[0], **kw)(arg) if opt else None
        i = len(meta)
        momentums = None
        if cyclic:                             # torch's own schedule moves the rate and sgd's momentum or the first beta
            sch = torch.optim.lr_scheduler.CyclicLR(optimizer, **cyclic)
            lrs, momentums = [], []
            for _ in range(STEPS):
                g = optimizer.param_groups[0]
                lrs.append(g["lr"])
                momentums.append(g["betas"][0] if "betas" in g else g["momentum"])
                sch.step()
            for g in optimizer.param_groups:
                g["lr"] = lrs[0]
        base = [g["lr"] for g in optimizer.param_groups]
        for s in range(STEPS):
            for g, b in zip(optimizer.param_groups, base):
                g["lr"] = b * lrs[s] / lrs[0]
                if momentums and "betas" in g:
                    g["betas"] = (momentums[s], g["betas"][1])
                elif momentums:
                    g["momentum"] = momentums[s]
            for k, p in ps.items():
                p.grad = grads[s][k].clone() if k in grads[s] else None
            optimizer.step()
            for k, p in ps.items():
                tensors[f"case{i}.out.step{s}.{k}"] = p.detach().clone()
        for k, p in ps.items():
            for key, v in optimizer.state[p].items():
                if v is not None:
                    tensors[f"case{i}.out.state.{key}.{k}"] = torch.as_tensor(v).clone()
        meta.append(dict(name=name, optimizer=opt, lrs=lrs, kwargs=kw,
                         groups=[dict(params=n, **e) for n, e in groups] if groups else None,
                         **(dict(momentums=momentums) if momentums else {})))

    case("adamw_default_decay", "adamw")
    case("adamw_stock", "adamw", lrs=[1e-3, 2e-3, 3e-3, 2.5e-3, 1e-3], betas=[0.9, 0.98], weight_decay=1e-3)
    case("adamw_eps", "adamw", eps=1e-3, weight_decay=0.0)
    case("adamw_amsgrad", "adamw", amsgrad=True, weight_decay=0.1)
    case("adam", "adam", weight_decay=0.05, betas=[0.8, 0.95])
    case("sgd_plain", "sgd", weight_decay=0.1)
    case("sgd_momentum", "sgd", momentum=0.9, dampening=0.3)
    case("sgd_nesterov", "sgd", momentum=0.9, nesterov=True, weight_decay=0.01)
    case("novograd", "novograd", betas=[0.8, 0.25], weight_decay=0.001)
    case("novograd_default", "novograd")
    case("novograd_averaging", "novograd", grad_averaging=True, weight_decay=0.01)
    case("novograd_amsgrad", "novograd", amsgrad=True)
    case("novograd_luc", "novograd", luc=True, luc_trust=0.01)
    case("adamw_two_groups", "adamw", lrs=[1e-2, 5e-3, 2e-3, 1e-3, 1e-3],
         groups=[(["b", "scalar", "frozen"], {}), (["a", "c"], dict(lr=1e-4, weight_decay=0.3))])
    up = dict(base_lr=0.01, max_lr=0.1, step_size_up=2)
    case("adamw_cyclic", "adamw", cyclic=up, betas=[0.9, 0.98])
    case("adam_cyclic", "adam", cyclic=dict(base_momentum=0.5, max_momentum=0.95, mode="triangular2", step_size_down=1, **up))
    case("sgd_cyclic", "sgd", cyclic=up, momentum=0.3, nesterov=True)
    case("novograd_cyclic", "novograd", cyclic=dict(mode="exp_range", gamma=0.7, **up))
    write("optimizers", "optimizer", {}, meta, tensors)


def schedules():
    table = []

    def one(name, lr=0.1, max_steps=24, at=None, groups=(1.0,), metrics=None, **sched):
        opt = torch.optim.SGD([dict(params=[torch.nn.Parameter(torch.zeros(1))], lr=lr * g) for g in groups], lr=lr)
        cfg = dict(name=name, **sched)
        if max_steps is not None:
            cfg["max_steps"] = max_steps
        row = dict(name=name, lr=[lr * g for g in groups], sched=cfg)
        steps = at if at is not None else list(range(0, (max_steps or 24) + 3))
        values, momentums, done = [], [], -1
        try:
            made = prepare_lr_scheduler(opt, OmegaConf.create(cfg))
            if made is None:
                row["scheduler"] = None
                table.append(row)
                return
            row["interval"] = made["interval"]
            sch, s = made["scheduler"], 0
            if at is not None and at != sorted(at):
                raise AssertionError
            for target in steps:
                jump = at is not None
                while s < target:
                    if jump and hasattr(sch, "last_epoch") and name.endswith(("Annealing", "Policy", "Root", "Linear")):
                        sch.last_epoch, s = target - 1, target - 1   # NeMo's own are closed forms of the step
                    sch.step(metrics[s]) if metrics is not None else sch.step()
                    s += 1
                values.append([g["lr"] for g in opt.param_groups])
                momentums.append(opt.param_groups[0]["momentum"])
                done += 1
        except Exception as e:
            row["error"] = dict(type=type(e).__name__, at_step=steps[done + 1] if done >= 0 else 0)
            steps = steps[:done + 1]
        row["steps"], row["values"] = steps, values
        if name == "CyclicLR" and sched.get("cycle_momentum", True):
            row["momentum"] = momentums
        if metrics is not None:
            row["metrics"] = metrics
        table.append(row)

    W = dict(warmup_steps=5)
    # Noam: stock values, no warm-up, floor, ratio, errors.
    one("NoamAnnealing", lr=5.0, max_steps=500000, d_model=512, warmup_steps=25000, warmup_ratio=None, min_lr=1e-6,
        at=[0, 1, 2, 100, 24999, 25000, 25001, 100000, 499999, 500000, 500001, 10**9, 10**12])
    one("NoamAnnealing", lr=2.0, d_model=64, **W)
    one("NoamAnnealing", lr=2.0, d_model=64)
    one("NoamAnnealing", lr=2.0, d_model=64, warmup_ratio=0.3, min_lr=0.08)
    one("NoamAnnealing", lr=2.0, d_model=64, warmup_ratio=0.3, warmup_steps=5)
    one("NoamAnnealing", lr=0.01, d_model=64, min_lr=0.02, **W)
    one("NoamAnnealing", lr=2.0, d_model=64, groups=(1.0, 0.1), min_lr=0.06, **W)
    # Cosine
    one("CosineAnnealing", lr=1e-3, max_steps=10000, warmup_steps=1000, min_lr=1e-6,
        at=[0, 1, 999, 1000, 1001, 5500, 9999, 10000, 10001, 20000])
    for kw in (W, dict(warmup_ratio=0.21, min_lr=0.01), {}, dict(constant_steps=6, min_lr=0.01, **W), dict(constant_ratio=0.25, min_lr=0.01),
               dict(min_lr=0.2, **W), dict(min_lr=0.1, **W), dict(constant_steps=4, min_lr=0.1, **W), dict(warmup_steps=24), dict(warmup_steps=30)):
        one("CosineAnnealing", **kw)
    one("CosineAnnealing", groups=(1.0, 0.2), min_lr=0.01, **W)
    one("CosineAnnealing", groups=(1.0, 0.2), min_lr=0.01, constant_steps=4, **W)
    # The others, with and without warm-up, holds at their edges, ratios, floors.
    for name in ("WarmupPolicy", "SquareAnnealing", "SquareRootAnnealing", "WarmupAnnealing", "InverseSquareRootAnnealing", "PolynomialDecayAnnealing"):
        for kw in (W, {}, dict(warmup_ratio=0.3, min_lr=0.03), dict(warmup_steps=1)):
            one(name, **kw)
        one(name, groups=(1.0, 0.2), min_lr=0.01, **W)
    hold = ("WarmupHoldPolicy", "NoamHoldAnnealing", "WarmupHoldAnnealOneMinusSquareRoot", "WarmupHoldAnnealLinear", "PolynomialHoldDecayAnnealing")
    for name in hold:
        for kw in (dict(hold_steps=6, **W), dict(hold_ratio=0.25, warmup_ratio=0.2, min_lr=0.02), W, dict(hold_steps=6), dict(hold_steps=0, min_lr=0.02, **W)):
            one(name, **kw)
        one(name, groups=(1.0, 0.2), hold_steps=6, min_lr=0.01, **W)
        one(name, hold_steps=6, hold_ratio=0.1, **W)
    one("NoamHoldAnnealing", hold_steps=6, decay_rate=1.0, min_lr=0.02, **W)
    one("NoamHoldAnnealing", lr=0.002, max_steps=100000, warmup_steps=5000, hold_steps=20000, decay_rate=0.5, min_lr=1e-6,
        at=[0, 1, 4999, 5000, 5001, 24999, 25000, 25001, 60000, 100000, 100001])
    for kw in (dict(power=2.0), dict(power=0.5, min_lr=0.02), dict(cycle=True, power=1.0)):
        one("PolynomialDecayAnnealing", **{**W, **kw})
        one("PolynomialHoldDecayAnnealing", **{**W, **kw}, hold_steps=6)
    one("T5InverseSquareRootAnnealing", constant_steps=9, min_lr=0.01)
    one("T5InverseSquareRootAnnealing", constant_ratio=0.25)
    one("T5InverseSquareRootAnnealing")
    # torch's own
    one("StepLR", step_size=7, gamma=0.3)
    one("StepLR", step_size=7)
    one("ExponentialLR", gamma=0.83)
    one("CyclicLR", base_lr=0.01, max_lr=0.1, step_size_up=4, cycle_momentum=False)
    one("CyclicLR", base_lr=0.01, max_lr=0.1, step_size_up=3, step_size_down=5, mode="triangular2", cycle_momentum=False)
    one("CyclicLR", base_lr=0.01, max_lr=0.1, step_size_up=4, mode="exp_range", gamma=0.9, cycle_momentum=False)
    one("CyclicLR", base_lr=0.01, max_lr=0.1, step_size_up=4)
    one("CyclicLR", base_lr=0.01, max_lr=0.1, step_size_up=3, step_size_down=2, mode="exp_range", gamma=0.95, base_momentum=0.6, max_momentum=0.99)
    m = [5.0, 4.0, 4.1, 4.0, 3.9999, 4.2, 4.3, 4.4, 3.0, 3.1, 3.2, 3.3, 3.4, 3.5, 3.6, 3.7]
    one("ReduceLROnPlateau", at=list(range(17)), metrics=m, factor=0.5, patience=2)
    one("ReduceLROnPlateau", at=list(range(17)), metrics=m, factor=0.1, patience=1, cooldown=2, min_lr=0.005, threshold=0.1)
    one("ReduceLROnPlateau", at=list(range(17)), metrics=m, mode="max", threshold_mode="abs", factor=0.5, patience=1)
    # No scheduler at all, and unknown names.
    one("CosineAnnealing", max_steps=-1, at=[0], **W)
    one("CosineAnnealing", max_steps=None, at=[0], **W)
    one("NoSuchAnnealing", at=[0])
    one("WarmupPolicy", at=[0], bogus_key=1)
    path = os.path.join(OUT_DIR, "schedules.json")
    with open(path, "w") as f:
        f.write('{"nemo_version": "%s", "schedules": [\n' % nemo.__version__)
        f.write(",\n".join(json.dumps(jsonable(t), separators=(",", ":")) for t in table))
        f.write("\n]}\n")
    print(f"schedules.json {os.path.getsize(path)/1024:.1f} KiB, {len(table)} rows, {sum('error' in t for t in table)} errors")


def all_fixtures():
    warnings.filterwarnings("ignore")
    optimizers()
    schedules()
