"""AudioToMelSpectrogramPreprocessor: one shared batch of short signals, one case per option."""
import contextlib

import numpy as np
import torch

from .common import patched, randn, rng, write
from nemo.collections.asr.modules import AudioToMelSpectrogramPreprocessor

BASE = dict(sample_rate=16000, normalize="per_feature", window_size=0.025, window_stride=0.01, window="hann",
            features=16, n_fft=512, log=True, frame_splicing=1, dither=0.0, pad_to=16, pad_value=0.0)


def signals(n=3600):
    """Three rows: tones with noise, a chirp with a silent stretch (log of the guard alone), noise. The padding is
    filled with garbage on purpose: only `length` says where a signal ends."""
    r, t = rng(5), np.arange(n)
    a = 0.4 * np.sin(2 * np.pi * 440 * t / 16000) + 0.2 * np.sin(2 * np.pi * 2500 * t / 16000 + 0.5)
    b = 0.3 * np.sin(2 * np.pi * (200 + 0.4 * t) * t / 16000)
    b[900:1900] = 0.0
    c = 0.05 * r.standard_normal(n)
    x = np.stack([a, b, c]) + np.array([[1e-3], [0.0], [0.0]]) * r.standard_normal((3, n))
    return torch.from_numpy(x.astype(np.float32))


def all_fixtures():
    x, length = signals(), torch.tensor([3600, 2750, 200])
    tensors = {"in.input_signal": x, "in.length": length}
    meta = []

    def case(name, *, length=None, signal=None, training=False, dither_draw=None, nb=None, buffers=(), error=None, **cfg):
        i, m = len(meta), dict(name=name, training=training, config=cfg)
        sig = (x if signal is None else signal).clone()
        lens = tensors["in.length"] if length is None else torch.tensor(length)
        with contextlib.ExitStack() as stack:
            if error is not None:
                try:
                    AudioToMelSpectrogramPreprocessor(**{**BASE, **cfg})(input_signal=sig, length=lens)
                except Exception as e:  # noqa: the kind of failure is the record
                    assert type(e).__name__ == error, repr(e)
                    m["error"] = error
                    meta.append(m)
                    return
                raise AssertionError(f"{name}: expected {error}")
            mod = AudioToMelSpectrogramPreprocessor(**{**BASE, **cfg}).train(training)
            p = f"case{i}."
            if length is not None:
                tensors[p + "in.length"] = lens
            if signal is not None:
                tensors[p + "in.input_signal"] = signal
            if dither_draw is not None:
                tensors[p + "draw.dither"] = dither_draw
                stack.enter_context(patched(torch, "randn_like", lambda t: dither_draw))
            if nb is not None:
                m["nb_applied"] = nb
                draws = [0.0 if v else 0.999999 for v in nb]
                mod.featurizer._rng = type("R", (), {"random": lambda self: draws.pop(0)})()
            out, out_len = mod(input_signal=sig, length=lens)
            tensors[p + "out.processed_signal"] = out
            tensors[p + "out.processed_length"] = out_len
            if dither_draw is not None:
                tensors[p + "after.input_signal"] = sig
            for b in buffers:
                tensors[p + "out." + b] = getattr(mod.featurizer, b)
        meta.append(m)

    case("stock80", features=80, buffers=["window"])
    case("small")
    case("lengths_0_1_159", length=[0, 1, 159])
    case("lengths_160_319_320", length=[160, 319, 320])
    case("not_normalized", normalize="NA")
    case("normalize_null", normalize=None)
    case("all_features", normalize="all_features")
    case("all_features_short", normalize="all_features", length=[3600, 160, 0])
    r = rng(77)
    mean, std = r.uniform(-12, 0, 48).round(3).tolist(), r.uniform(0.5, 3, 48).round(3).tolist()
    # NeMo views the vectors as (batch, features): they must hold batch*features numbers.
    case("fixed_mean_std", normalize=dict(fixed_mean=mean, fixed_std=std))
    case("fixed_one_item", normalize=dict(fixed_mean=mean[:16], fixed_std=std[:16]), signal=x[:1, :1700].clone(), length=[1700])
    case("exact_pad", exact_pad=True)
    case("exact_pad_not_normalized", exact_pad=True, normalize="NA", length=[3600, 1601, 159])
    case("clamp_guard", log_zero_guard_type="clamp", normalize="NA")
    case("clamp_eps", log_zero_guard_type="clamp", log_zero_guard_value="eps", normalize="NA")
    case("add_tiny", log_zero_guard_value="tiny", normalize="NA")
    case("guard_1e-3", log_zero_guard_value=1e-3)
    case("no_preemph", preemph=None)
    case("no_preemph_not_normalized", preemph=None, normalize="NA")
    case("preemph_half", preemph=0.5)
    for w in ("hamming", "blackman", "bartlett"):
        case("window_" + w, window=w, buffers=["window"])
    # `none` (and any unknown name) leaves no window and NeMo then fails in forward.
    case("window_none", window="none", error="AttributeError")
    case("pad_to_max", pad_to="max", error="TypeError")
    case("n_window_sizes", window_size=None, window_stride=None, n_window_size=320, n_window_stride=200, n_fft=None)
    # Meant as ValueError; formatting the message fails first because the module is not built yet.
    case("both_window_sizes", n_window_size=320, error="AttributeError")
    case("n_fft_default", n_fft=None, window_size=0.02)
    case("n_fft_1024", n_fft=1024, features=20, buffers=["fb"])
    case("n_fft_400", n_fft=400)
    case("pad_to_0", pad_to=0)
    case("pad_to_7_value", pad_to=7, pad_value=-1.5)
    case("mag_power_1", mag_power=1.0)
    case("mag_power_half", mag_power=0.5, normalize="NA")
    case("no_log", log=False)
    case("no_log_not_normalized", log=False, normalize="NA")
    case("low_high_freq", lowfreq=300, highfreq=3400, features=12, buffers=["fb"])
    case("mel_norm_null", mel_norm=None, normalize="NA", features=12)
    # Splicing stacks the same frame: every block of `features` rows repeats the first.
    case("frame_splicing_3", frame_splicing=3, features=8)
    case("features128", features=128, signal=x[:1, :1600].clone(), length=[1600])
    case("rate_8000", sample_rate=8000, n_fft=256, features=20, buffers=["fb"])
    case("rate_22050", sample_rate=22050, n_fft=1024)
    case("rate_11025_truncated_sizes", sample_rate=11025)
    case("nb_augmentation", nb_augmentation_prob=0.5, nb_max_freq=2500, training=True, nb=[True, False, True])
    case("nb_above_nyquist", nb_augmentation_prob=0.5, nb_max_freq=8000, training=True)
    # Dither is added in place, to the padding too: `after.input_signal` is the caller's tensor afterwards.
    sig = x[:1, :1700].clone()
    case("dither_train", dither_draw=randn(rng(78), 1, 1700), training=True, signal=sig, length=[1500], dither=0.01)
    case("dither_eval", signal=sig, length=[1500], dither=0.01)
    write("pre_all", "preprocessor", BASE, meta, tensors)
