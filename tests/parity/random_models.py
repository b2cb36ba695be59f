#!/usr/bin/env python3
"""Random small NEST models, one step each, in real NeMo and in aerie; every number compared.

usage: random_models.py MODEL_STEP [--count N] [--seed S] [--keep FOLDER] [--only I]

MODEL_STEP is the binary of model_step.cc (ninja model_step). Each case draws a configuration (front end, masking, quantizer,
encoder, decoder, loss), random weights, a ragged batch, and train or eval mode; NeMo runs it on the CPU in float32, and every
random draw it makes (mask, dropout, stochastic depth, attention context) is recorded and given to aerie. Compared are the mel
features, tokens, encoder output and lengths, frames in the loss, loss, running statistics and the gradient of every parameter.
Exit status 1 when something differs. What was seen: README.md.
"""
import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import numpy as np
import torch
import torch.nn.functional as F
from gen.common import patched, randn, randomize, rng
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel

ASR = "nemo.collections.asr."


def draw_config(r):
    """A model section, as a user could write it. `r` is a numpy generator."""
    one = lambda *values: values[r.integers(len(values))]
    maybe = lambda p: bool(r.random() < p)
    rate = one(8000, 16000, 16000, 22050)
    factor = one(2, 4, 4, 8, 8)
    sub = one("dw_striding", "dw_striding", "striding", "stacking", "stacking_norm")
    if maybe(0.05):
        factor = 1
    if sub.startswith("stacking") and maybe(0.2):
        factor = one(3, 5, 6)
    features = int(r.integers(8, 41))
    splicing = 2 if maybe(0.08) else 1
    pre = dict(_target_=ASR + "modules.AudioToMelSpectrogramPreprocessor", sample_rate=rate, features=features, dither=0.0,
               window=one("hann", "hann", "hamming", "blackman", "bartlett"), preemph=one(0.97, 0.97, 0.5, None),
               lowfreq=one(0, 0, 60, 300.5), highfreq=one(None, None, rate * 0.4), mel_norm=one("slaney", "slaney", "slaney", None),
               mag_power=one(2.0, 2.0, 1.0, 1.3), log=not maybe(0.08), log_zero_guard_type=one("add", "add", "clamp"),
               log_zero_guard_value=one(2**-24, "tiny", "eps", 1e-4), normalize=one("per_feature", "per_feature", "all_features", None, "NA"),
               frame_splicing=splicing, pad_to=factor * one(1, 2, 3, 4), pad_value=one(0.0, 0.0, -1.5), exact_pad=maybe(0.15))
    if maybe(0.5):
        pre.update(window_size=one(0.02, 0.025, 0.032), window_stride=one(0.01, 0.008, 0.0125))
    else:
        pre.update(window_size=None, window_stride=None, n_window_size=int(one(200, 320, 401)), n_window_stride=int(one(80, 100, 160)))
    hop = pre.get("n_window_stride") or int(pre["window_stride"] * rate)
    if hop % 2:
        pre["exact_pad"] = False
    pre["n_fft"] = one(None, 512, 1024, 600) if rate < 20000 else one(None, 1024, 800)
    win = pre.get("n_window_size") or int(pre["window_size"] * rate)
    if pre["n_fft"] and pre["n_fft"] < win:
        pre["n_fft"] = None
    if maybe(0.1):
        pre.update(nb_augmentation_prob=1.0, nb_max_freq=int(rate * 0.2))
    width = features * splicing
    heads = int(one(1, 2, 2, 3, 4))
    d = heads * 2 * int(r.integers(2, 6))
    kernel = int(one(1, 3, 5, 7, 9, 15))
    left = int(r.integers(0, kernel))
    att = one("rel_pos", "rel_pos", "rel_pos", "abs_pos", "rel_pos_local_attn")
    enc = dict(_target_=ASR + "modules.ConformerEncoder", feat_in=width, n_layers=int(r.integers(1, 4)), d_model=d, n_heads=heads,
               feat_out=one(-1, -1, -1, d, d + 3), subsampling=sub, subsampling_factor=factor, subsampling_conv_channels=int(one(-1, 3, 5, 8)),
               ff_expansion_factor=int(one(1, 2, 4)), self_attention_model=att, xscaling=maybe(0.6), untie_biases=maybe(0.7),
               use_bias=maybe(0.6), conv_kernel_size=kernel, pos_emb_max_len=int(one(8, 64, 5000)),
               conv_norm_type=one("batch_norm", "batch_norm", "layer_norm", "instance_norm", "fused_batch_norm", "group_norm1", f"group_norm{heads}", f"group_norm{d}"),
               conv_context_size=one(None, None, "causal", [left, kernel - 1 - left]))
    if att == "rel_pos_local_attn":
        enc["att_context_size"] = [int(r.integers(0, 8)), int(r.integers(1, 8))]
        if maybe(0.5):
            enc.update(global_tokens=int(one(1, 2, 3)), global_tokens_spacing=int(one(1, 1, 2)), global_attn_separate=maybe(0.4))
    else:
        kind = one("full", "full", "regular", "chunked", "several", "several_chunked")
        if kind == "regular":
            enc["att_context_size"] = [int(one(-1, 0, 3, 7)), int(one(-1, 0, 2, 5))]
        elif kind == "chunked":
            right = int(one(0, 1, 2))
            enc.update(att_context_style="chunked_limited", att_context_size=[int(one(-1, 0, 1, 3)) * (right + 1) if maybe(0.8) else -1, right])
            if enc["att_context_size"][0] < -1:
                enc["att_context_size"][0] = -1
        elif kind == "several":
            enc["att_context_size"] = [[-1, -1], [4, 2], [0, 3]]
            if maybe(0.5):
                enc["att_context_probs"] = [0.5, 0.25, 0.25]
        elif kind == "several_chunked":
            enc.update(att_context_style="chunked_limited", att_context_size=[[6, 2], [4, 1], [0, -1]])
        enc["use_pytorch_sdpa"] = maybe(0.15)
    for key in ("dropout", "dropout_pre_encoder", "dropout_emb", "dropout_att"):
        enc[key] = float(one(0.0, 0.0, 0.1, 0.3))
    if enc.get("use_pytorch_sdpa"):
        enc["dropout_att"] = 0.0
    if maybe(0.3):
        enc.update(stochastic_depth_drop_prob=0.5, stochastic_depth_mode=one("linear", "uniform"),
                   stochastic_depth_start_layer=int(r.integers(1, enc["n_layers"] + 1)))
        if enc["stochastic_depth_mode"] == "linear" and enc["stochastic_depth_start_layer"] == enc["n_layers"]:
            enc["stochastic_depth_start_layer"] = 1 if enc["n_layers"] > 1 else 1
            if enc["n_layers"] == 1:
                enc["stochastic_depth_mode"] = "uniform"
    books = int(one(1, 1, 2, 3))
    classes = int(one(5, 17, 64))
    squeeze = maybe(0.3) if books == 1 else False
    return dict(
        sample_rate=rate, num_classes=classes, num_books=books, code_dim=int(one(3, 8, 16)), squeeze_single=squeeze, mask_position="pre_conv",
        preprocessor=pre, spec_augment=dict(_target_=ASR + "modules.SpectrogramAugmentation", freq_masks=0, time_masks=0),
        masking=dict(_target_=ASR + "modules.RandomBlockMasking", feat_in=width, mask_prob=float(one(0.0, 0.03, 0.1, 0.3, 1.0)),
                     block_size=int(one(1, factor, 2 * factor, 12, 40)), mask_value=one(None, None, 0.0, 0.7), freeze=maybe(0.5),
                     allow_overlap=maybe(0.6), max_mask_ratio=one(0.8, 0.5, 1.0)),
        quantizer=dict(_target_=ASR + "modules.RandomProjectionVectorQuantizer", feat_in=width, code_dim=int(one(3, 8, 16)), num_books=books,
                       num_classes=classes, dist_fn="l2", freeze=maybe(0.7), squeeze_single=squeeze, combine_time_steps=factor),
        encoder=enc,
        decoder=dict(_target_=ASR + "modules.MultiSoftmaxDecoder", feat_in=enc["feat_out"] if enc["feat_out"] > 0 else d, num_classes=classes,
                     num_decoders=books, squeeze_single=squeeze, use_bias=maybe(0.6), init_mode=one("xavier_uniform", "kaiming_normal", None)),
        loss=dict(_target_=ASR + "losses.MultiMLMLoss", combine_time_steps=factor, mask_threshold=float(one(0.8, 0.8, 0.5, 0.0, -0.1, 0.95)),
                  num_decoders=books, squeeze_single=squeeze),
        optim=dict(name="adamw", lr=1e-3))


def plain(x):
    """numpy scalars out of the way of OmegaConf."""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, list):
        return [plain(v) for v in x]
    return x.item() if isinstance(x, np.generic) else x


def draw_batch(r, cfg):
    rate = cfg["sample_rate"]
    rows = int(r.integers(1, 5))
    n = int(r.integers(int(0.3 * rate), int(0.9 * rate)))
    lengths = [n] + [int(r.integers(1, n + 1)) for _ in range(rows - 1)]
    if rows > 2 and r.random() < 0.3:
        lengths[-1] = int(r.integers(1, 400))           # no frame, or hardly one
    audio = randn(r, rows, n, scale=0.1)
    t = np.arange(n) / rate
    for b in range(rows):
        audio[b] += torch.from_numpy(sum(a * np.sin(2 * np.pi * f * t * (1 + 0.3 * t)) for f, a in zip(r.uniform(80, rate / 3, 3), r.uniform(0.02, 0.3, 3))).astype(np.float32))
    noisy = audio + randn(r, rows, n, scale=0.05)
    noisy_lengths = [int(r.integers(1, x + 1)) if r.random() < 0.15 and x > 400 and i else x for i, x in enumerate(lengths)]
    for b in range(rows):
        audio[b, lengths[b]:] = 0
        noisy[b, noisy_lengths[b]:] = 0
    return audio, torch.tensor(lengths), noisy, torch.tensor(noisy_lengths)


@contextlib.contextmanager
def recorded(model, r, setup, tensors):
    """Draws inside the encoder come from `r` and are written down."""
    keeps, layers = [], []
    enc = model.encoder
    probs = list(enc.layer_drop_probs)

    def dropout(x, p=0.5, training=True, inplace=False):
        if not training or p == 0.0:
            return x
        keep = torch.from_numpy((r.random(tuple(x.shape)) >= p).astype("uint8"))
        keeps.append(keep)
        return x * (keep.to(x.dtype) / (1.0 - p))

    def rand(*size, **kw):
        return torch.from_numpy(np.asarray(r.random(size[0] if isinstance(size[0], tuple) else size), dtype=np.float32))

    def rand_layer(*size, **kw):
        value = rand(*size)
        layers.append(float(value))
        return value

    def choices(population, weights=None, **kw):
        pick = population[int(r.integers(len(population)))]
        setup["context"] = [int(v) for v in pick]
        return [pick]

    forward = enc.forward

    def wrapped(*args, **kw):
        with patched(F, "dropout", dropout), patched(torch, "rand", rand_layer), patched(random, "choices", choices):
            out = forward(*args, **kw)
            setup["frames"] = int(out[0].shape[2])
            return out

    with patched(enc, "forward", wrapped):
        yield
    if layers:
        values, drop = iter(layers), []
        for p in probs:
            drop.append(bool(next(values) < p) if p > 0 else False)
        setup["drop_layers"] = drop
    if hasattr(enc.layers[0].self_attn, "global_tokens"):
        # Local attention pads the time axis for its own convenience; those rows and columns go nowhere.
        frames, weights = setup.pop("frames"), [i for i, k in enumerate(keeps) if k.dim() == 4]
        both = enc.layers[0].self_attn.global_tokens > 0
        for i in weights:
            keeps[i] = keeps[i][:, :, :frames].contiguous()
            if both:
                keeps[i + 1] = keeps[i + 1][..., :frames].contiguous()
    setup.pop("frames", None)
    setup["dropouts"] = len(keeps)
    tensors.update({f"keep{i}": k for i, k in enumerate(keeps)})


def run_nemo(folder, seed):
    """Writes init.nemo, batch.safetensors, want.safetensors; returns a description or raises."""
    r = rng(seed)
    cfg = plain(draw_config(r))
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(cfg, f, indent=1)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    model = EncDecDenoiseMaskedTokenPredModel(OmegaConf.create(cfg), trainer=None)
    kept = {k: v.clone() for k, v in model.state_dict().items() if k.startswith("preprocessor.")}
    randomize(model, seed)
    model.load_state_dict(kept, strict=False)
    model.quantizer.codebooks.data.copy_(F.normalize(model.quantizer.codebooks.data, dim=-1))
    model.save_to(os.path.join(folder, "init.nemo"))
    audio, lengths, noisy, noisy_lengths = draw_batch(r, cfg)
    setup = dict(training=bool(r.random() < 0.75), recompute=bool(r.random() < 0.25))
    tensors = dict(audio=audio.clone(), audio_len=lengths, noisy=noisy.clone(), noisy_len=noisy_lengths)
    model.eval()
    with torch.no_grad():
        mel, mel_len = model.preprocessor(input_signal=audio.clone(), length=lengths)
    model.train(setup["training"])
    got = {}
    hooks = [model.mask_processor.register_forward_hook(lambda m, i, o: got.__setitem__("mask", o[1])),
             model.encoder.register_forward_hook(lambda m, i, o: got.__setitem__("encoded", o))]
    with recorded(model, r, setup, tensors):
        lp, enc_len, masks, tokens = model(input_signal=audio, input_signal_length=lengths, noisy_input_signal=noisy,
                                           noisy_input_signal_length=noisy_lengths, apply_mask=True)
    loss = model.loss(masks=masks, decoder_outputs=lp, targets=tokens, decoder_lengths=enc_len)
    model.zero_grad(set_to_none=True)
    loss.backward()
    for h in hooks:
        h.remove()
    tensors["mask"] = got["mask"][:, 0].to(torch.uint8).contiguous()
    save_file(tensors, os.path.join(folder, "batch.safetensors"), metadata=dict(setup=json.dumps(setup)))
    tokens = tokens if tokens.dim() == 3 else tokens.unsqueeze(-1)
    want = dict(mel=mel, tokens=tokens, encoded=got["encoded"][0], encoded_len=enc_len, loss=loss.reshape(()))
    for name, p in model.named_parameters():
        if p.grad is not None:
            want["grad." + name] = p.grad
    names = {n for n, _ in model.named_parameters(remove_duplicate=False)}
    for name, t in model.state_dict().items():
        if name not in names:
            want["after." + name] = t
    save_file({k: v.detach().clone().contiguous() for k, v in want.items()}, os.path.join(folder, "want.safetensors"))
    return cfg, setup


def deviation(a, b, scale=0.0):
    a, b = a.double(), b.double()
    both_nan = torch.isnan(a) & torch.isnan(b)
    gap = torch.where(both_nan, torch.zeros_like(a), (a - b).abs())
    if gap.numel() == 0:
        return 0.0
    if torch.isnan(gap).any():
        return float("inf")
    size = torch.where(torch.isnan(b), torch.zeros_like(b), b.abs()).max()
    return float(gap.max() / max(float(size), scale, 1e-20))


def compare(folder):
    """Returns (figures, list of differences)."""
    got, want = load_file(os.path.join(folder, "out.safetensors")), load_file(os.path.join(folder, "want.safetensors"))
    bad, figures = [], {}
    def check(kind, name, bound, scale=0.0):
        if name not in got:
            bad.append(f"{name} missing")
        elif got[name].shape != want[name].shape:
            bad.append(f"{name}: shape {tuple(got[name].shape)}, NeMo {tuple(want[name].shape)}")
        else:
            dev = deviation(got[name], want[name], scale)
            figures[kind] = max(figures.get(kind, 0.0), dev)
            if not dev <= bound:
                bad.append(f"{name}: off by {dev:.2g}")

    check("mel", "mel", 2e-4)
    check("encoded", "encoded", 1e-4)
    for name in ("encoded_len",):
        if not torch.equal(got[name], want[name]):
            bad.append(f"{name}: {got[name].tolist()}, NeMo {want[name].tolist()}")
    selected = got["selected"].bool()
    figures["frames"] = int(selected.sum())
    if got["tokens"].shape == want["tokens"].shape and selected.shape == got["tokens"].shape[:2]:
        differ = int((got["tokens"] != want["tokens"])[selected].sum())
        if differ:
            bad.append(f"tokens: {differ} of {figures['frames']} differ")
    if figures["frames"]:
        check("loss", "loss", 1e-5)
    elif not (torch.isnan(want["loss"]) and torch.isnan(got["loss"])):
        bad.append(f"empty mask: loss {float(got['loss'])}, NeMo {float(want['loss'])}")
    grads = [k for k in want if k.startswith("grad.")]
    top = max((float(want[k].abs().max()) for k in grads if want[k].numel()), default=0.0)
    for name in grads:
        check("grad", name, 2e-4, top)
        if name in got and got[name].shape == want[name].shape:
            own = float(want[name].abs().max())
            if own > 1e-3 * top:
                check("grad of its own size", name, 2e-2)
    for name in got:
        if name.startswith("grad.") and name not in want and float(got[name].abs().max()) != 0:
            bad.append(f"{name}: a gradient where NeMo has none")
    for name in [k for k in want if k.startswith("after.")]:
        check("statistics", name, 1e-4)
    return figures, bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model_step")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="leave the cases in this folder")
    parser.add_argument("--only", type=int, help="just this seed")
    args = parser.parse_args()
    work = args.keep or tempfile.mkdtemp()
    os.makedirs(work, exist_ok=True)
    seeds = [args.only] if args.only is not None else range(args.seed * 100000, args.seed * 100000 + args.count)
    cases, nemo_failed = [], []
    for seed in seeds:
        folder = os.path.join(work, str(seed))
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        try:
            run_nemo(folder, seed)
            cases.append((seed, folder))
        except Exception as error:
            nemo_failed.append((seed, f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"))
    subprocess.run([args.model_step] + [f for _, f in cases], check=True, stdout=subprocess.DEVNULL)
    worst, failed, refused = {}, 0, []
    for seed, folder in cases:
        error = os.path.join(folder, "error.txt")
        if os.path.exists(error):
            refused.append((seed, open(error).read().strip()))
            continue
        figures, bad = compare(folder)
        for k, v in figures.items():
            worst[k] = max(worst.get(k, 0), v) if k != "frames" else worst.get(k, 0) + (v > 0)
        if bad:
            failed += 1
            print(f"{seed}: " + "; ".join(bad[:4]) + (f"; and {len(bad) - 4} more" if len(bad) > 4 else ""))
    for seed, text in refused:
        print(f"{seed}: refused by aerie: {text}")
    for seed, text in nemo_failed:
        print(f"{seed}: NeMo fails: {text}")
    print(f"{len(cases)} models in NeMo ({len(nemo_failed)} more fail there), {len(refused)} refused by aerie, {failed} differ, "
          f"{worst.pop('frames', 0)} with frames in the loss; largest deviations: " + ", ".join(f"{k} {v:.2g}" for k, v in sorted(worst.items())))
    if not args.keep:
        shutil.rmtree(work)
    sys.exit(1 if failed or refused else 0)


if __name__ == "__main__":
    main()
