#!/usr/bin/env python3
"""Times one training step of NeMo's own NEST model (features to optimizer) on made-up clips, on CPU or GPU.

usage: NEMO_TREE=DIR nemo_step.py [--batch N] [--seconds S] [--precision 32|16|bf16] [--model model.yaml] ...
       NEMO_TREE=DIR nemo_step.py --cases cases.json
NEMO_TREE is a folder with the `nemo` package; without it the installed one is used. Needs nemo_toolkit[asr] (2.6.2 was used).
Prints one JSON line (of each case): `ms` is the median of --steps. No Lightning, no loader: a full NeMo run can only be slower.
`aerie bench step --peer DIR` calls this script with its own case, `--reference-table` with all of its cases at once: a list of
objects with the options below by name, the resolved `model` node, and `case`, `optimizer`, `amsgrad`, `ema_on_cpu`, `detect_anomaly`.
"""
import argparse
import gc
import json
import logging
import os
import sys
import time
import warnings

a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
a.add_argument("--batch", type=int, default=16)
a.add_argument("--seconds", type=float, default=15.0)
a.add_argument("--precision", choices=["32", "16", "bf16"], default="32")
a.add_argument("--tf32", action="store_true", help="in float32 matrix products, too (torch uses it in convolutions anyway)")
a.add_argument("--steps", type=int, default=12)
a.add_argument("--warmup", type=int, default=4)
a.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
a.add_argument("--model", help="a resolved `model` node in YAML; default: NEST-L of the sizes below")
a.add_argument("--d-model", type=int, default=512)
a.add_argument("--layers", type=int, default=17)
a.add_argument("--heads", type=int, default=8)
a.add_argument("--threads", type=int, default=0, help="of torch on the CPU; 0: its own choice")
a.add_argument("--cases", help="a JSON file with many cases; the other options are their defaults")
a = a.parse_args()

warnings.filterwarnings("ignore")
cases = [{}]
if a.cases:
    with open(a.cases) as f:
        cases = json.load(f)
if all(case.get("device", a.device) == "cpu" for case in cases):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
if os.environ.get("NEMO_TREE"):
    sys.path.insert(0, os.environ["NEMO_TREE"])

import nemo
import torch
from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel
from nemo.utils import logging as nemo_logging
from omegaconf import OmegaConf

nemo_logging.setLevel(logging.ERROR)
if a.threads:
    torch.set_num_threads(a.threads)

MODULES = "nemo.collections.asr.modules."


def built_in_model():
    return OmegaConf.create(dict(
        sample_rate=16000, num_classes=8192, num_books=1, code_dim=16, squeeze_single=False, mask_position="pre_conv",
        preprocessor=dict(_target_=MODULES + "AudioToMelSpectrogramPreprocessor", sample_rate=16000, normalize="per_feature", window_size=0.025,
                          window_stride=0.01, window="hann", features=80, n_fft=512, log=True, frame_splicing=1, dither=1e-5, pad_to=16, pad_value=0.0),
        spec_augment=dict(_target_=MODULES + "SpectrogramAugmentation", freq_masks=0, time_masks=0, freq_width=27, time_width=0.05),
        masking=dict(_target_=MODULES + "RandomBlockMasking", block_size=40, mask_prob=0.01, feat_in=80, freeze=True, allow_overlap=True),
        quantizer=dict(_target_=MODULES + "RandomProjectionVectorQuantizer", feat_in=80, code_dim=16, num_books=1, num_classes=8192, dist_fn="l2",
                       freeze=True, squeeze_single=False, combine_time_steps=8),
        encoder=dict(_target_=MODULES + "ConformerEncoder", feat_in=80, feat_out=-1, n_layers=a.layers, d_model=a.d_model, use_bias=True,
                     subsampling="dw_striding", subsampling_factor=8, subsampling_conv_channels=256, causal_downsampling=False, ff_expansion_factor=4,
                     self_attention_model="rel_pos", n_heads=a.heads, att_context_size=[-1, -1], xscaling=True, untie_biases=True, pos_emb_max_len=5000,
                     conv_kernel_size=9, conv_norm_type="batch_norm", dropout=0.1, dropout_pre_encoder=0.1, dropout_emb=0.0, dropout_att=0.1),
        decoder=dict(_target_=MODULES + "MultiSoftmaxDecoder", feat_in=a.d_model, num_classes=8192, num_decoders=1, squeeze_single=False, use_bias=True),
        loss=dict(_target_="nemo.collections.asr.losses.MultiMLMLoss", combine_time_steps=8, mask_threshold=0.8, num_decoders=1, squeeze_single=False)))


def make_optimizer(case, parameters):
    name = case.get("optimizer", "adamw")
    amsgrad = case.get("amsgrad", False)
    if name == "sgd":
        out = torch.optim.SGD(parameters, lr=1e-4)
    elif name == "novograd":
        from nemo.core.optim.novograd import Novograd
        out = Novograd(parameters, lr=1e-4, betas=(0.9, 0.98), weight_decay=1e-3, amsgrad=amsgrad)
    else:
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        out = kind(parameters, lr=1e-4, betas=(0.9, 0.98), weight_decay=1e-3, amsgrad=amsgrad)
    if case.get("ema_on_cpu"):
        from nemo.collections.common.callbacks.ema import EMAOptimizer
        out = EMAOptimizer(out, device=torch.device("cpu"), decay=0.999)
    return out


def measure(case):
    batch, seconds = case.get("batch", a.batch), case.get("seconds", a.seconds)
    precision, device = case.get("precision", a.precision), case.get("device", a.device)
    steps, tf32 = case.get("steps", a.steps), case.get("tf32", a.tf32)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.autograd.set_detect_anomaly(case.get("detect_anomaly", False))
    torch.manual_seed(0)
    if "model" in case:
        cfg = OmegaConf.create(case["model"])
    else:
        cfg = OmegaConf.load(a.model) if a.model else built_in_model()
    for key in ("train_ds", "validation_ds", "test_ds", "optim"):
        if key in cfg:
            del cfg[key]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    model = EncDecDenoiseMaskedTokenPredModel(cfg=cfg, trainer=None).to(device).train()
    samples = int(seconds * cfg.sample_rate)
    audio = torch.randn(batch, samples, device=device) * 0.1
    noisy = audio + 0.02 * torch.randn_like(audio)
    lengths = (samples * torch.linspace(1.0, 0.8, batch, device=device)).long()
    lengths[0] = samples
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(case, parameters)
    scaler = torch.amp.GradScaler(device, enabled=precision == "16")
    dtype = {"bf16": torch.bfloat16, "16": torch.float16}.get(precision)

    def synchronize():
        if device == "cuda":
            torch.cuda.synchronize()

    def step():
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            log_probs, encoded_len, masks, tokens = model(
                input_signal=audio, input_signal_length=lengths, noisy_input_signal=noisy, noisy_input_signal_length=lengths, apply_mask=True)
            loss = model.loss(masks=masks, decoder_outputs=log_probs, targets=tokens, decoder_lengths=encoded_len)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for _ in range(case.get("warmup", a.warmup)):
        loss = step()
    synchronize()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        loss = step()
        synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    times.sort()
    ms = times[len(times) // 2]
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
    return dict(
        what=f"NeMo {nemo.__version__}, torch {torch.__version__}, {device}", ms=round(ms, 3), ms_p10=round(times[len(times) // 10], 3),
        ms_p90=round(times[len(times) * 9 // 10], 3), batch=batch, seconds=seconds, precision=precision, tf32=tf32, steps=steps,
        parameters=sum(p.numel() for p in parameters), padded_audio_s_per_s=round(batch * seconds / ms * 1e3, 1), peak_memory_gib=peak,
        loss=round(float(loss), 4))


for case in cases:
    if not a.cases:
        print(json.dumps(measure(case)))
        continue
    try:
        result = measure(case)
    except Exception as error:  # what NeMo cannot run does not take the other cases with it
        result = dict(error=f"{type(error).__name__}: {error}"[:400])
    print(json.dumps(dict(case=case["case"], **result)), flush=True)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
