#!/usr/bin/env python3
"""Mixed-precision fixtures: NeMo's modules under CUDA autocast. Needs torch and numpy, nothing else; NeMo's files are read
from a folder and the packages around them are replaced by empty stand-ins.

usage: make_gpu_fixtures.py --nemo-tree DIR --out DIR [--cpu-dry-run]
       make_gpu_fixtures.py --list-files          the NeMo files it reads, to copy just these to another machine

--nemo-tree: a folder that holds the `nemo` package (an unpacked nemo_toolkit 2.6.2 wheel, a source checkout, or a
site-packages folder). --out: gets gpu_step.safetensors and gpu_variants.safetensors (under 300 KB together).
--cpu-dry-run runs the same code on the CPU: its numbers are no reference (CPU autocast has other rules) and the files are
marked so. Format: README.md here, kind `gpu_encoder`.
"""
import argparse
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import os
import sys
import types

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

ASR = "nemo.collections.asr."
REAL = {ASR + n for n in (
    "modules.conformer_encoder", "modules.ssl_modules.masking", "modules.ssl_modules.quantizers",
    "modules.ssl_modules.multi_softmax_decoder", "losses.ssl_losses.mlm", "parts.submodules.conformer_modules",
    "parts.submodules.multi_head_attention", "parts.submodules.subsampling", "parts.submodules.causal_convs",
    "parts.submodules.batchnorm", "parts.submodules.jasper", "parts.utils.activations", "parts.utils.regularization_utils",
    "parts.mixins.streaming")} | {"nemo.utils.cast_utils", "nemo.package_info"}
STAND_INS = ("nemo", "omegaconf", "hydra", "lightning", "pytorch_quantization")


class Blank:
    """Accepts any construction, call and attribute: types, loggers and mixins the modules mention but do not need."""

    def __init__(self, *a, **k): pass
    def __call__(self, *a, **k): return self
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return lambda *a, **k: None


class Module(torch.nn.Module):
    def freeze(self):
        for p in self.parameters(): p.requires_grad_(False)
        self.eval()


class Access:
    def is_access_enabled(self, *a): return False


class Adapter:
    def is_adapter_available(self): return False


class typecheck:
    def __init__(self, *a, **k): pass
    def __call__(self, f): return f


KNOWN = {"NeuralModule": Module, "Loss": Module, "typecheck": typecheck, "AccessMixin": Access,
         "AttentionAdapterModuleMixin": Adapter, "AdapterModuleMixin": Adapter, "ListConfig": type("ListConfig", (), {}),
         "logging": Blank(), "activation_registry": {"relu": torch.nn.ReLU}}


class StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        if name in KNOWN: return KNOWN[name]
        if name == "avoid_float16_autocast_context":
            return importlib.import_module("nemo.utils.cast_utils").avoid_float16_autocast_context
        value = type(name, (Blank,), {})
        setattr(self, name, value)
        return value


KNOWN["adapter_mixins"] = StandIn("adapter_mixins")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, tree): self.tree = tree
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in STAND_INS: return None
        if name == "pytorch_quantization": raise ModuleNotFoundError(name)
        if name in REAL:
            return importlib.util.spec_from_file_location(name, os.path.join(self.tree, *name.split(".")) + ".py")
        return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec): return StandIn(spec.name)
    def exec_module(self, module): pass


# ---------------------------------------------------------------------------------------------------------------------
DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.uint8: "U8", torch.bfloat16: "BF16", torch.float16: "F16"}
SHORT = {torch.float32: "f32", torch.float64: "f64", torch.int64: "i64", torch.uint8: "u8", torch.bfloat16: "bf16",
         torch.float16: "f16", torch.bool: "b", torch.int32: "i32"}


def save(path, tensors, metadata):
    header, blobs, pos = {"__metadata__": metadata}, [], 0
    for k in sorted(tensors, key=lambda k: (-tensors[k].element_size(), k)):
        t = tensors[k].detach().cpu().contiguous()
        raw = (t.view(torch.int16) if t.dtype in (torch.bfloat16, torch.float16) else t).numpy().tobytes()
        header[k] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [pos, pos + len(raw)]}
        blobs.append(raw)
        pos += len(raw)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(len(head).to_bytes(8, "little") + head + b"".join(blobs))
    print(path, os.path.getsize(path), "bytes")


class OpLog(TorchDispatchMode):
    """Which dtypes go into and out of every ATen operator: what a dtype policy table has to reproduce."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types_, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        flat = lambda v: [SHORT.get(t.dtype, str(t.dtype)) for t in torch.utils._pytree.tree_leaves(v) if isinstance(t, torch.Tensor)]
        self.seen.add(f"{func}({','.join(flat(args))})->{','.join(flat(out))}")
        return out


def randn(r, *shape, scale=1.0):
    return torch.from_numpy(np.asarray(scale * r.standard_normal(shape), dtype=np.float32))


def randomize(module, seed):
    r = np.random.default_rng(seed)
    with torch.no_grad():
        for name, t in module.state_dict().items():
            leaf = name.rsplit(".", 1)[-1]
            if not t.is_floating_point(): t.fill_(3)
            elif leaf == "running_var": t.copy_(1.0 + 0.5 * torch.from_numpy(r.uniform(-1, 1, tuple(t.shape))))
            elif leaf in ("running_mean", "bias", "pos_bias_u", "pos_bias_v"): t.copy_(randn(r, *t.shape, scale=0.3))
            elif t.dim() == 1: t.copy_(1.0 + randn(r, *t.shape, scale=0.2))
            else: t.copy_(randn(r, *t.shape, scale=1.3 / math.sqrt(t.numel() / t.shape[0])))
    return module


ENC = dict(feat_in=8, n_layers=2, d_model=8, subsampling="dw_striding", subsampling_factor=8, subsampling_conv_channels=4, ff_expansion_factor=2,
           n_heads=2, conv_kernel_size=9, dropout=0.0, dropout_pre_encoder=0.0, dropout_emb=0.0, dropout_att=0.0)
PRECISIONS = {"fp32_ieee": (None, False), "fp32_default": (None, True), "bf16": (torch.bfloat16, True), "fp16": (torch.float16, True)}
LOSS_SCALE = 1024.0     # fp16 only; stored gradients are divided by it again


def dtype_of(precision):
    return PRECISIONS[precision][0] is not None


def set_tf32(conv):
    """torch's default: convolutions in TF32, matrix products not. `fp32_ieee` switches both off."""
    torch.backends.cudnn.allow_tf32 = conv
    torch.backends.cuda.matmul.allow_tf32 = False


def run_case(enc, quant, dec, loss_mod, device, precision, x_clean, x, lengths, mask, cot):
    """One training step (or, without a decoder, an encoder pass with a cotangent). Returns tensors and record."""
    dtype, conv_tf32 = PRECISIONS[precision]
    set_tf32(conv_tf32)
    mods = torch.nn.ModuleList([m for m in (enc, quant, dec) if m is not None])
    mods.to(device)
    enc.train()
    for p in mods.parameters(): p.grad = None
    taps, dtypes, handles = {}, {}, []

    def note(name):
        def hook(m, i, o):
            t = o[0] if isinstance(o, tuple) else o
            if isinstance(t, torch.Tensor): dtypes[name] = SHORT[t.dtype]
        return hook

    for n, m in enc.named_modules():
        if n: handles.append(m.register_forward_hook(note("encoder." + n)))
    if dec is not None: handles.append(dec.decoder_layers.register_forward_hook(note("decoder.decoder_layers")))
    if quant is not None: handles.append(quant.proj.register_forward_hook(note("quantizer.proj")))
    for i, layer in enumerate(enc.layers):
        handles.append(layer.register_forward_hook(lambda m, a, o, i=i: taps.__setitem__(f"layer{i}", o)))
    handles.append(enc.pre_encode.register_forward_hook(lambda m, a, o: taps.__setitem__("pre_encode", o[0])))
    dev = lambda t: None if t is None else t.to(device)
    xin = dev(x).clone().requires_grad_(True)
    out, log = {}, OpLog()
    with log, torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        if quant is not None: out["tokens"] = quant(input_signal=dev(x_clean))[1]
        encoded, enc_len = enc(audio_signal=xin, length=dev(lengths))
        out["encoded"], out["encoded_len"] = encoded, enc_len
        if dec is not None:
            lp = dec(encoder_output=encoded)
            out["logprobs"] = lp
            loss = loss_mod(masks=dev(mask), decoder_outputs=lp, targets=out["tokens"])
            out["loss"] = loss.reshape(())
        else:
            loss = (encoded.float() * dev(cot)).sum()
    scale = LOSS_SCALE if dtype == torch.float16 else 1.0
    (loss * scale).backward()
    for h in handles: h.remove()
    grads = {"encoder." + n: p.grad / scale for n, p in enc.named_parameters() if p.grad is not None}
    if dec is not None: grads.update({"decoder." + n: p.grad / scale for n, p in dec.named_parameters()})
    grads["in.audio_signal"] = xin.grad / scale
    after = {"encoder." + k: v.clone() for k, v in enc.state_dict().items() if "running_" in k}
    out.update(taps)
    assert all(torch.isfinite(g).all() for g in grads.values()), precision
    return out, grads, after, dict(dtypes=dtypes, ops=sorted(log.seen))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--nemo-tree")
    ap.add_argument("--out")
    ap.add_argument("--list-files", action="store_true")
    ap.add_argument("--cpu-dry-run", action="store_true")
    a = ap.parse_args()
    if a.list_files:
        print("\n".join(sorted(n.replace(".", "/") + ".py" for n in REAL)))
        return
    if not a.nemo_tree or not a.out:
        ap.error("--nemo-tree and --out are needed")
    if not os.path.isfile(os.path.join(a.nemo_tree, "nemo", "package_info.py")):
        sys.exit(f"--nemo-tree {a.nemo_tree}: no nemo/package_info.py there")
    if not a.cpu_dry_run and not torch.cuda.is_available():
        sys.exit("no CUDA device; --cpu-dry-run only checks that the script runs")
    device = torch.device("cpu" if a.cpu_dry_run else "cuda")
    os.makedirs(a.out, exist_ok=True)
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = False
    sys.meta_path.insert(0, Finder(os.path.abspath(a.nemo_tree)))
    load = lambda m, c: getattr(importlib.import_module(ASR + m), c)
    Encoder = load("modules.conformer_encoder", "ConformerEncoder")
    Quantizer = load("modules.ssl_modules.quantizers", "RandomProjectionVectorQuantizer")
    Decoder = load("modules.ssl_modules.multi_softmax_decoder", "MultiSoftmaxDecoder")
    Loss = load("losses.ssl_losses.mlm", "MultiMLMLoss")
    version = importlib.import_module("nemo.package_info").__version__
    common = dict(kind="gpu_encoder", nemo_version=version, torch_version=torch.__version__,
                  device="cpu dry run, no reference" if a.cpu_dry_run else torch.cuda.get_device_name())

    # A whole step: tokens, encoder, decoder, loss, gradients, in four precisions from the same weights.
    quant_cfg = dict(feat_in=8, code_dim=8, num_classes=32, num_books=2, dist_fn="l2", combine_time_steps=8)
    dec_cfg = dict(feat_in=8, num_classes=32, num_decoders=2, use_bias=True)
    loss_cfg = dict(combine_time_steps=8, mask_threshold=0.8, num_decoders=2)
    enc, dec, quant = randomize(Encoder(**ENC), 1), randomize(Decoder(**dec_cfg), 2), Quantizer(**quant_cfg)
    r = np.random.default_rng(3)
    quant.proj.weight.data.copy_(randn(r, *quant.proj.weight.shape, scale=0.3))
    quant.codebooks.data.copy_(torch.nn.functional.normalize(torch.from_numpy(r.standard_normal((2, 32, 8))), dim=-1))
    state = {k: v.clone() for k, v in enc.state_dict().items()}
    x_clean = randn(r, 3, 8, 96)
    x = x_clean + randn(r, 3, 8, 96, scale=0.2)
    lengths = torch.tensor([96, 61, 9])
    mask = torch.zeros(3, 8, 96)
    for b, lo, hi in ((0, 10, 50), (1, 8, 40), (1, 47, 61), (2, 0, 8)): mask[b, :, lo:hi] = 1.0
    x = torch.where(mask > 0, 0.1 * torch.arange(-4, 4).float().view(1, 8, 1), x)
    tensors = {"w.encoder." + k: v for k, v in state.items()}
    tensors.update({"w.decoder." + k: v for k, v in dec.state_dict().items()})
    tensors.update({"w.quantizer." + k: v for k, v in quant.state_dict().items()})
    tensors.update({"in.clean": x_clean, "in.audio_signal": x, "in.length": lengths, "in.mask": mask[:, 0].to(torch.uint8)})
    tensors = {k: v.clone() for k, v in tensors.items()}
    cases = []
    for i, prec in enumerate(PRECISIONS):
        enc.load_state_dict(state)
        out, grads, after, rec = run_case(enc, quant, dec, Loss(**loss_cfg), device, prec, x_clean, x, lengths, mask, None)
        keep = ("tokens", "encoded", "loss", "layer0", "pre_encode", "encoded_len") + (("logprobs",) if prec == "bf16" else ())
        tensors.update({f"case{i}.out.{k}": v for k, v in out.items() if k in keep})
        if dtype_of(prec):
            tensors.update({f"case{i}.grad.{k}": v for k, v in grads.items() if prec == "bf16" or not k.startswith("in.")})
            tensors.update({f"case{i}.after.{k}": v for k, v in after.items()})
        record = dict(name=prec, training=True, precision=prec, grads=dtype_of(prec), loss=float(out["loss"].detach()))
        if dtype_of(prec): record.update(rec)
        cases.append(record)
        print(prec, "loss", float(out["loss"].detach()), "encoded", out["encoded"].dtype)
    save(os.path.join(a.out, "gpu_step.safetensors"), tensors,
         dict(common, config=json.dumps(dict(encoder=ENC, quantizer=quant_cfg, decoder=dec_cfg, loss=loss_cfg)), cases=json.dumps(cases)))

    # bf16 only: the variants whose operators differ. Each case has its own weights and config.
    small = dict(ENC, n_layers=1, d_model=8, subsampling_conv_channels=4, conv_kernel_size=5)
    variants = {
        "local_attention": dict(self_attention_model="rel_pos_local_attn", att_context_size=[3, 2], subsampling="stacking", subsampling_factor=4, feat_in=4),
        "layer_norm_abs_pos": dict(conv_norm_type="layer_norm", self_attention_model="abs_pos"),
        "group_norm_striding": dict(conv_norm_type="group_norm4", subsampling="striding", subsampling_factor=4, feat_in=8),
        "sdpa_no_bias": dict(use_pytorch_sdpa=True, use_bias=False, xscaling=False),
    }
    tensors, cases = {}, []
    for i, (name, extra) in enumerate(variants.items()):
        cfg = {**small, **extra}
        enc = randomize(Encoder(**cfg), 10 + i)
        r = np.random.default_rng(20 + i)
        x, lengths = randn(r, 2, cfg["feat_in"], 64), torch.tensor([64, 37])
        tensors.update({f"case{i}.w.encoder.{k}": v.clone() for k, v in enc.state_dict().items()})
        frames = math.ceil(64 / cfg["subsampling_factor"])
        cot = randn(r, 2, cfg["d_model"], frames, scale=0.3)
        p = f"case{i}."
        try:
            out, grads, after, rec = run_case(enc, None, None, None, device, "bf16", None, x, lengths, None, cot)
        except RuntimeError as e:   # NeMo itself cannot run this combination: that is the record
            cases.append(dict(name=name, precision="bf16", config=dict(encoder=cfg), error=str(e).splitlines()[0]))
            print(name, "fails in NeMo:", e)
            continue
        tensors.update({p + "in.audio_signal": x, p + "in.length": lengths, p + "in.cotangent": cot})
        tensors.update({p + "out." + k: v for k, v in out.items()})
        tensors.update({p + "grad." + k: v for k, v in grads.items()})
        tensors.update({p + "after." + k: v for k, v in after.items()})
        cases.append(dict(name=name, training=True, precision="bf16", grads=True, config=dict(encoder=cfg), **rec))
        print(name, "encoded", out["encoded"].dtype)
    save(os.path.join(a.out, "gpu_variants.safetensors"), tensors, dict(common, config="{}", cases=json.dumps(cases)))


if __name__ == "__main__":
    main()
