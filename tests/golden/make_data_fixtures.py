#!/usr/bin/env python3
"""Write tests/data/engine/{augment,perturb}.json: what NeMo's batch augmentors and perturbations did, with every random
decision they made recorded by name, so that the C++ tests can repeat it. Same environment as make_fixtures.py."""
import json
import linecache
import logging
import os
import random
import sys
from collections import Counter

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import numpy as np
import torch
from nemo.collections.asr.data.ssl_dataset import AudioNoiseBatch
from nemo.collections.asr.modules.ssl_modules import augmentation
from nemo.collections.asr.parts.preprocessing import perturb
from nemo.utils import logging as nemo_logging

nemo_logging.setLevel(logging.ERROR)
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "engine")


class Recorder:
    """Stands in for the module `random`; names each draw after the source line that asks for it."""

    NAMES = [("num_segments = ", "num_segments"), ("num_speakers = ", "num_speakers"), ("mix_rate = ", "mix_rate"),
             ("mix_len = random", "mix_length"), ("mix_start_idx = ", "placement"), ("energy_ratio = ", "ratio"),
             ("noise_start_idx = ", "source_start"), ("sid = ", "next_speaker"),
             ("start_idx = random.randint(0, audio_lengths", "source_start"), ("start_idx = random.randint(min_start", "placement"),
             ("> self.prob", "skip"), ("< self.noise_ratio", "mode"), ("speed_rate = ", "speed_rate"), ("gain = ", "gain"),
             ("shift_ms = ", "shift"), ("random.random() < prob", "apply")]

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.draws = []

    def note(self, value):
        f = sys._getframe(2)
        line = linecache.getline(f.f_code.co_filename, f.f_lineno)
        name = next(n for text, n in self.NAMES if text in line)
        self.draws.append([name, value])
        return value

    def random(self): return self.note(self.r.random())
    def uniform(self, a, b): return self.note(self.r.uniform(a, b))
    def randint(self, a, b): return self.note(self.r.randint(int(a), int(b)))

    def choices(self, population, k):
        out = self.r.choices(population, k=k)
        self.draws.append(["partition", list(Counter(out).values())])
        return out

    def sample(self, population, k):
        out = self.r.sample(population, k)
        self.draws.append(["choose", [population.index(x) for x in out]])
        return out

    def choice(self, population):
        i = self.r.randrange(len(population))
        if isinstance(population, list):
            self.draws.append(["choose", [i]])
        else:
            self.note(i)
        return population[i]


def signal(r, n): return np.round(r.standard_normal(n) * 0.2, 3).astype(np.float32)


def augment_case(name, kind, config, lengths, noise_lengths, seed):
    r = np.random.default_rng(seed)
    n = max(lengths)
    audio = np.stack([np.pad(signal(r, a), (0, n - a)) for a in lengths])
    noise = np.stack([np.pad(signal(r, b), (0, n - b)) for b in noise_lengths])
    for attempt in range(1000):
        rec = Recorder(1000 * seed + attempt)
        augmentation.random = rec
        batch = AudioNoiseBatch(audio=torch.tensor(audio), audio_len=torch.tensor(lengths), noise=torch.tensor(noise),
                                noise_len=torch.tensor(noise_lengths))
        try:
            out = getattr(augmentation, kind)(**config)(batch)
            break
        except (IndexError, ValueError):  # an empty segment or an empty range: NeMo fails, try other draws
            continue
    else:
        raise RuntimeError(name)
    rows = lambda a: [[float(f"{x:.9g}") for x in row] for row in np.asarray(a, np.float64)]
    return dict(name=name, kind=kind, config=config, audio_len=list(lengths), noise_len=list(noise_lengths), audio=rows(audio), noise=rows(noise),
                draws=rec.draws, out_noise=rows(out.noise), out_noisy=rows(out.noisy_audio), out_noise_len=out.noise_len.tolist(),
                out_noisy_len=out.noisy_audio_len.tolist())


def augment():
    multi, single = "MultiSpeakerNoiseAugmentation", "SpeakerNoiseAugmentation"
    stock = dict(prob=0.5, noise_ratio=0.5, min_r_speech=-5.0, max_r_speech=5.0, min_r_noise=-5.0, max_r_noise=20.0, min_mix_rate=0.5,
                 max_mix_rate=0.5, min_num_segments=1, max_num_segments=1, min_num_speakers=1, max_num_speakers=1)
    always = dict(prob=1.0, noise_ratio=0.5, min_r_speech=-5.0, max_r_speech=5.0, min_r_noise=-5.0, max_r_noise=20.0)
    cases = [
        augment_case("stock", multi, stock, [60, 41, 55, 60, 33], [60, 20, 55, 60, 33], 1),
        augment_case("many_segments", multi, dict(always, min_mix_rate=0.2, max_mix_rate=0.9, min_num_segments=2, max_num_segments=4,
                                                  min_num_speakers=1, max_num_speakers=4), [70, 48, 61, 30], [70, 11, 61, 30], 2),
        augment_case("speech_only", multi, dict(always, noise_ratio=0.0, min_mix_rate=0.8, max_mix_rate=1.0, min_num_segments=1,
                                                max_num_segments=5, min_num_speakers=2, max_num_speakers=3), [80, 21, 40], [80, 21, 40], 3),
        augment_case("noise_only_tiled", multi, dict(always, noise_ratio=1.0, min_mix_rate=1.0, max_mix_rate=1.0, min_num_segments=1,
                                                     max_num_segments=3), [50, 37], [7, 5], 4),
        augment_case("one_item", multi, dict(always, noise_ratio=0.0, min_mix_rate=0.3, max_mix_rate=0.7, min_num_segments=1, max_num_segments=2),
                     [64], [64], 5),
        augment_case("one_sample_mix", multi, dict(always, min_mix_rate=0.0, max_mix_rate=0.0, min_num_segments=1, max_num_segments=1), [30, 20], [30, 20], 6),
        augment_case("single_stock", single, {k: v for k, v in stock.items() if "num" not in k}, [60, 41, 55, 60, 33], [60, 20, 55, 60, 33], 7),
        augment_case("single_range", single, dict(always, min_mix_rate=0.1, max_mix_rate=0.9), [70, 48, 61, 30], [70, 11, 61, 30], 8),
        augment_case("single_speech_tiled", single, dict(always, noise_ratio=0.0, min_mix_rate=0.9, max_mix_rate=0.9), [80, 21, 40], [80, 21, 40], 9),
        augment_case("single_noise", single, dict(always, noise_ratio=1.0, min_mix_rate=0.4, max_mix_rate=0.6), [50, 37], [50, 5], 10),
    ]
    write("augment.json", dict(cases=cases))


class Segment:
    """What a perturbation needs of NeMo's AudioSegment."""
    def __init__(self, samples, rate): self._samples, self.sample_rate = samples, rate
    @property
    def duration(self): return len(self._samples) / float(self.sample_rate)


def perturb_case(name, config, n, seed, rate=16000):
    samples = signal(np.random.default_rng(seed), n)
    rec = Recorder(seed)
    perturb.random = rec
    normals = []

    class NumpyRandom:
        def __init__(self): self.r = np.random.RandomState(seed)
        def randint(self, low, high, dtype):
            v = self.r.randint(low, high, dtype=dtype)
            rec.draws.append(["noise_level", int(v) - low])
            return v
        def randn(self, k):
            v = self.r.randn(k).astype(np.float32).astype(np.float64)  # ours are single precision
            normals.extend(v.tolist())
            return v

    class Numpy:
        random = NumpyRandom()
        def __getattr__(self, key): return getattr(np, key)

    perturb.np = Numpy()
    seg = Segment(samples.copy(), rate)
    perturb.process_augmentations(config).perturb(seg)
    perturb.np = np
    fine = lambda a: [float(f"{x:.9g}") for x in np.asarray(a, np.float64)]
    return dict(name=name, config=config, sample_rate=rate, samples=fine(samples), draws=rec.draws, normals=fine(normals), out=fine(seg._samples))


def perturbations():
    best = dict(prob=1.0, sr=16000, resample_type="kaiser_best")
    cases = [perturb_case(f"speed_{i}", dict(speed=best), 700, i) for i in range(1, 5)]
    cases += [perturb_case("speed_fast", dict(speed=dict(best, resample_type="kaiser_fast", min_speed_rate=0.8, max_speed_rate=1.3, num_rates=2)), 400, 7),
              perturb_case("speed_fast_up", dict(speed=dict(best, resample_type="kaiser_fast", min_speed_rate=0.8, max_speed_rate=1.3, num_rates=2)), 400, 9),
              perturb_case("speed_continuous", dict(speed=dict(best, num_rates=-1)), 300, 11),
              perturb_case("gain", dict(gain=dict(prob=1.0, min_gain_dbfs=-20, max_gain_dbfs=3)), 60, 12),
              perturb_case("shift_left", dict(shift=dict(prob=1.0, min_shift_ms=1.0, max_shift_ms=2.0)), 60, 13),
              perturb_case("shift_right", dict(shift=dict(prob=1.0, min_shift_ms=-2.0, max_shift_ms=-1.0)), 60, 14),
              perturb_case("shift_too_far", dict(shift=dict(prob=1.0, min_shift_ms=50.0, max_shift_ms=60.0)), 60, 15),
              perturb_case("white_noise", dict(white_noise=dict(prob=1.0, min_level=-30, max_level=-10)), 60, 16)]
    chain = dict(gain=dict(prob=0.5), shift=dict(prob=0.5), white_noise=dict(prob=0.5), speed=dict(best, prob=0.5))
    cases += [perturb_case(f"chain_{i}", chain, 200, 20 + i) for i in range(6)]
    write("perturb.json", dict(cases=cases))


def write(name, data):
    os.makedirs(OUT, exist_ok=True)
    with open(os.path.join(OUT, name), "w") as f:
        json.dump(data, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    augment()
    perturbations()
