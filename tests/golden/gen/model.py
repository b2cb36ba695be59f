"""A whole model, written and trained by NeMo: tests/data/fixtures/nest_tiny/ (init.nemo, clips, configs, traces) and
one training step with every gradient (nest_tiny/step.safetensors). Far from the shipped recipe on purpose: 8 kHz,
24 mel bins, x4 subsampling, no biases, LayerNorm in the convolution, two books, other optimizers."""
import copy
import json
import logging
import os
import shutil
import tarfile

import numpy as np
import soundfile as sf
import torch
from omegaconf import OmegaConf

from .common import OUT_DIR, randn, randomize, rng, save
import nemo
import lightning.pytorch as pl
from nemo.collections.asr.data.ssl_dataset import AudioNoiseBatch
from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel

DIR = os.path.join(OUT_DIR, "nest_tiny")
RATE = 8000

CONFIG = """
name: nest-tiny
model:
  sample_rate: 8000
  num_classes: 20
  num_books: 2
  code_dim: 8
  squeeze_single: false
  mask_position: pre_conv
  train_ds:
    manifest_filepath: train.json
    noise_manifest: null
    sample_rate: ${model.sample_rate}
    batch_size: 2
    shuffle: false
    num_workers: 0
    pin_memory: false
    max_duration: 60.0
    min_duration: 0.1
    drop_last: false
    is_tarred: false
  validation_ds:
    manifest_filepath: val.json
    noise_manifest: null
    sample_rate: ${model.sample_rate}
    batch_size: 2
    shuffle: false
    num_workers: 0
    pin_memory: false
    min_duration: 0.1
  preprocessor:
    _target_: nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor
    sample_rate: ${model.sample_rate}
    normalize: per_feature
    window_size: 0.03
    window_stride: 0.0125
    window: hamming
    features: 24
    n_fft: 256
    dither: 0.0
    pad_to: 8
  spec_augment:
    _target_: nemo.collections.asr.modules.SpectrogramAugmentation
    freq_masks: 0
    time_masks: 0
  masking:
    _target_: nemo.collections.asr.modules.RandomBlockMasking
    block_size: 12
    mask_prob: 1.0
    feat_in: ${model.preprocessor.features}
    freeze: true
    allow_overlap: true
  quantizer:
    _target_: nemo.collections.asr.modules.RandomProjectionVectorQuantizer
    feat_in: ${model.preprocessor.features}
    code_dim: ${model.code_dim}
    num_books: ${model.num_books}
    num_classes: ${model.num_classes}
    dist_fn: l2
    freeze: true
    squeeze_single: ${model.squeeze_single}
    combine_time_steps: ${model.encoder.subsampling_factor}
  encoder:
    _target_: nemo.collections.asr.modules.ConformerEncoder
    feat_in: ${model.preprocessor.features}
    feat_out: -1
    n_layers: 2
    d_model: 18
    use_bias: false
    subsampling: dw_striding
    subsampling_factor: 4
    subsampling_conv_channels: 6
    ff_expansion_factor: 2
    self_attention_model: rel_pos
    n_heads: 3
    att_context_size: [12, 8]
    att_context_style: regular
    xscaling: false
    untie_biases: true
    pos_emb_max_len: 64
    conv_kernel_size: 7
    conv_norm_type: layer_norm
    conv_context_size: null
    dropout: 0.0
    dropout_pre_encoder: 0.0
    dropout_emb: 0.0
    dropout_att: 0.0
  decoder:
    _target_: nemo.collections.asr.modules.MultiSoftmaxDecoder
    feat_in: ${model.encoder.d_model}
    num_classes: ${model.num_classes}
    num_decoders: ${model.num_books}
    squeeze_single: ${model.squeeze_single}
    use_bias: true
  loss:
    _target_: nemo.collections.asr.losses.MultiMLMLoss
    combine_time_steps: ${model.encoder.subsampling_factor}
    mask_threshold: 0.6
    num_decoders: ${model.num_books}
    squeeze_single: ${model.squeeze_single}
trainer:
  devices: 1
  accelerator: cpu
  max_steps: 6
  max_epochs: -1
  log_every_n_steps: 1
  precision: 32
  accumulate_grad_batches: 1
  val_check_interval: 3
  check_val_every_n_epoch: null
  num_sanity_val_steps: 0
  enable_checkpointing: false
  logger: false
  enable_progress_bar: false
init_from_nemo_model: init.nemo
"""
# Each run: what it adds to CONFIG. Five training clips in batches of two, drop_last false: the last batch of an epoch
# has one clip, and accumulation 2 steps on it.
RUNS = {
    "adam": dict(model=dict(optim=dict(lr=2e-3, betas=[0.8, 0.95], sched=dict(name="CosineAnnealing", warmup_steps=2, constant_steps=1, min_lr=1e-4)))),
    "sgd": dict(model=dict(optim=dict(name="sgd", lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3,
                                      sched=dict(name="PolynomialHoldDecayAnnealing", warmup_steps=1, hold_steps=2, power=2.0, min_lr=1e-3))),
                trainer=dict(accumulate_grad_batches=2, gradient_clip_val=0.5)),
    "novograd": dict(model=dict(optim=dict(name="novograd", lr=0.02, betas=[0.8, 0.25], weight_decay=1e-3, sched=dict(name="InverseSquareRootAnnealing", warmup_steps=2)),
                                optim_param_groups=dict(encoder=dict(lr=0.01), decoder=dict(weight_decay=0.0))),
                     trainer=dict(gradient_clip_val=0.02, gradient_clip_algorithm="value")),
}


def clip(seed, n):
    """Smooth enough that FLAC shrinks it, different enough per clip and over time to give various tokens."""
    r, t = rng(seed), np.arange(n) / RATE
    x = np.zeros(n)
    for _ in range(4):
        f0, f1, a = r.uniform(120, 2500), r.uniform(120, 2500), r.uniform(0.05, 0.2)
        x += a * np.sin(2 * np.pi * (f0 + (f1 - f0) * t / 3) * t + r.uniform(0, 6)) * (1 + 0.8 * np.sin(2 * np.pi * r.uniform(1, 5) * t))
    return 0.8 * x / np.abs(x).max()


class Trace(pl.Callback):
    def __init__(self):
        self.micro, self.steps, self.val = [], [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        # Lightning hands back the loss divided by the accumulation factor.
        self.micro.append(dict(batch=batch_idx, loss=float(outputs["loss"]) * trainer.accumulate_grad_batches))

    def on_before_optimizer_step(self, trainer, module, optimizer):
        g = [p.grad for p in module.parameters() if p.grad is not None]
        lrs = [float(x["lr"]) for x in optimizer.param_groups]
        self.steps.append(dict(step=len(self.steps) + 1, lr=lrs[0], lrs=lrs,
                               grad_norm=float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(x) for x in g])))))

    def on_validation_end(self, trainer, module):
        self.val.append(dict(after_step=trainer.global_step, val_loss=float(trainer.callback_metrics["val_loss"])))


def build(cfg, trainer=None):
    cfg = copy.deepcopy(cfg)
    return EncDecDenoiseMaskedTokenPredModel(cfg.model, trainer=trainer)


def all_fixtures():
    shutil.rmtree(DIR, ignore_errors=True)
    os.makedirs(os.path.join(DIR, "clips"))
    for tag, lengths in (("train", [9600, 8800, 10345, 8000, 9001]), ("val", [8100, 9111])):
        with open(os.path.join(DIR, tag + ".json"), "w") as f:
            for i, n in enumerate(lengths):
                name = f"clips/{tag}{i}.flac"
                sf.write(os.path.join(DIR, name), clip(100 * len(tag) + i, n), RATE, subtype="PCM_16")
                f.write(json.dumps(dict(audio_filepath=name, duration=n / RATE)) + "\n")
    base = OmegaConf.create(CONFIG)
    here = os.getcwd()
    os.chdir(DIR)
    try:
        configs = {}
        for run, extra in RUNS.items():
            configs[run] = OmegaConf.merge(base, OmegaConf.create(extra))
            OmegaConf.save(configs[run], f"config_{run}.yaml")
        # init.nemo carries the first run's config, resolved, as NeMo writes it.
        model = build(configs["adam"])
        pre = {k: v.clone() for k, v in model.state_dict().items() if k.startswith("preprocessor.")}
        randomize(model, 71)
        model.load_state_dict(pre, strict=False)
        model.quantizer.codebooks.data.copy_(torch.nn.functional.normalize(model.quantizer.codebooks.data, dim=-1))
        model.mask_processor.mask_embedding.data.copy_(randn(rng(72), 24, scale=0.1))
        model.save_to("init.nemo")
        state = {k: v.clone() for k, v in model.state_dict().items()}
        one_step(model, state)
        features(model, state)
        for run, cfg in configs.items():
            trace = Trace()
            trainer = pl.Trainer(**OmegaConf.to_container(cfg.trainer), callbacks=[trace])
            m = build(cfg, trainer)
            m.load_state_dict(state)
            trainer.fit(m)
            norms = {k: float(v.double().norm()) for k, v in m.state_dict().items() if v.is_floating_point()}
            with open(f"trace_{run}.json", "w") as f:
                json.dump(dict(nemo_version=nemo.__version__, torch_version=torch.__version__, micro=trace.micro, steps=trace.steps,
                               val=trace.val, final_norms=norms), f, indent=1)
            print(run, [round(x["loss"], 4) for x in trace.micro], trace.val, [s["lrs"] for s in trace.steps][:3])
    finally:
        os.chdir(here)
    total = sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(DIR) for f in fs)
    print(f"nest_tiny {total/1024:.1f} KiB")


def one_step(model, state):
    """One training_step on a hand-made batch whose noisy audio and lengths differ from the clean ones."""
    model.load_state_dict(state)
    model.train()
    n = 2600
    audio = torch.from_numpy(np.stack([clip(900, n), clip(901, n)]).astype(np.float32))
    alen, nlen = torch.tensor([n, 2100]), torch.tensor([n, 1900])
    audio[1, 2100:] = 0
    noise = randn(rng(73), 2, n, scale=0.05)
    noise[1, 1900:] = 0
    noisy = audio + noise
    tensors = {"in.audio": audio.clone(), "in.audio_len": alen, "in.noisy_audio": noisy.clone(), "in.noisy_audio_len": nlen}
    got = {}
    hooks = [model.preprocessor.register_forward_hook(lambda m, i, o: got.setdefault("mel", []).append(o)),
             model.quantizer.register_forward_hook(lambda m, i, o: got.__setitem__("tokens", o[1])),
             model.mask_processor.register_forward_hook(lambda m, i, o: got.__setitem__("mask", o[1])),
             model.encoder.register_forward_hook(lambda m, i, o: got.__setitem__("encoded", o))]
    lp, enc_len, masks, tokens = model(input_signal=audio, input_signal_length=alen, noisy_input_signal=noisy, noisy_input_signal_length=nlen, apply_mask=True)
    loss = model.loss(masks=masks, decoder_outputs=lp, targets=tokens, decoder_lengths=enc_len)
    model.zero_grad(set_to_none=True)
    loss.backward()
    for h in hooks:
        h.remove()
    tensors.update({"case0.out.clean_mel": got["mel"][0][0], "case0.out.noisy_mel": got["mel"][1][0], "case0.out.clean_mel_len": got["mel"][0][1],
                    "case0.out.noisy_mel_len": got["mel"][1][1], "case0.out.tokens": tokens, "case0.out.mask": got["mask"][:, 0].to(torch.uint8),
                    "case0.out.encoded": got["encoded"][0], "case0.out.encoded_len": enc_len, "case0.out.loss": loss.reshape(())})
    none = []
    for name, p in model.named_parameters():
        if p.grad is None:
            none.append(name)
        else:
            tensors["case0.grad." + name] = p.grad
    model.zero_grad(set_to_none=True)
    save("step.safetensors", tensors, dict(kind="model_step", config=json.dumps(dict(archive="init.nemo")),
         cases=json.dumps([dict(name="train", training=True, loss=float(loss), grad_none=none)]), nemo_version=nemo.__version__, torch_version=torch.__version__))


def features(model, state):
    model.load_state_dict(state)
    model.eval()
    tensors = {}
    for i in range(2):
        x, _ = sf.read(f"clips/val{i}.flac", dtype="float32")
        n = torch.tensor([len(x)])
        with torch.no_grad():
            mel, mel_len = model.preprocessor(input_signal=torch.from_numpy(x)[None], length=n)
            enc, enc_len = model.encoder(audio_signal=mel, length=mel_len)
            _, tok = model.quantizer(input_signal=mel)
        p = f"case{i}.out."
        tensors.update({p + "mel": mel[0, :, : int(mel_len)].contiguous(), p + "encoded": enc[0, :, : int(enc_len)].t().contiguous(), p + "tokens": tok[0, : int(enc_len)].contiguous()})
    save("features_init.safetensors", tensors, dict(kind="model_features", config=json.dumps(dict(archive="init.nemo")),
         cases=json.dumps([dict(name=f"val{i}", audio=f"clips/val{i}.flac") for i in range(2)]), nemo_version=nemo.__version__, torch_version=torch.__version__))
