#!/usr/bin/env python3
"""The loader an expert would write in Python for the same task: no NeMo, torch DataLoader, int16 reads, vectorised mixing.

usage: expert_loader.py [--format wav|flac] [--workers N] [--transport ring|shared|queue] [--json FILE] ...
Needs torch, numpy and soundfile. Prints one JSON line.

What it does that NeMo's does not:
- one dataset item is a whole batch (batch_size=None), so nothing is pickled or stacked per clip;
- clips are read as int16 straight into a reused buffer and converted into their row of the batch: that conversion is the
  only copy of the samples, and collation is over;
- noise is read only for the clips that get noise, and only the samples that are mixed in;
- energies are dot products, mixing is one multiply-add over the mixed part;
- the batch is born where the trainer will read it. --transport ring: a ring of shared-memory slots per worker, only the slot
  number crosses the process boundary (a slot is reused after `prefetch + 2` batches, so the trainer must have copied it to the
  device by then). shared: a fresh shared-memory tensor per batch (what default_collate does; the kernel zeroes its pages every time).
  queue: an ordinary tensor, which the DataLoader copies into shared memory.
- `noise` itself is not returned: nothing in training reads it.
"""
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("OMP_NUM_THREADS", "1")
import json
import math
import random

import numpy as np
import soundfile as sf
import torch

import loader_common as common

SCALE = np.float32(1.0 / 32768.0)
PREFETCH = 2


def read_manifest(path):
    folder = os.path.dirname(os.path.abspath(path))
    with open(path) as f:
        return [(os.path.join(folder, m["audio_filepath"]), float(m["duration"])) for m in map(json.loads, f)]


class Batches(torch.utils.data.Dataset):
    """Item = list of clip indices (one batch). Rows 0..B-1 of the result are clean, B..2B-1 noisy."""

    def __init__(self, a, speech, noise):
        self.a, self.speech, self.noise = a, speech, noise
        self.width = max(int(d * common.RATE) for _, d in speech)
        self.slots = PREFETCH + 2
        self.ring = None
        if a.transport == "ring":
            shape = (max(1, a.workers), self.slots, 2, a.batch_size, self.width)
            self.ring = torch.zeros(shape, dtype=torch.float32).share_memory_()   # allocated and touched once, before the fork
        self.next_slot, self.pcm, self.rng = 0, np.empty(self.width, dtype=np.int16), None

    def __len__(self):
        return len(self.speech)

    def buffer(self, worker):
        if self.ring is not None:
            slot, self.next_slot = self.next_slot, (self.next_slot + 1) % self.slots
            return self.ring[worker, slot], (worker, slot)
        n = 2 * self.a.batch_size * self.width
        if self.a.transport == "shared" and self.a.workers:
            storage = torch.UntypedStorage._new_shared(4 * n)
            t = torch.empty(0, dtype=torch.float32).set_(storage, 0, (2, self.a.batch_size, self.width))
        else:
            t = torch.empty(2, self.a.batch_size, self.width)
        return t, t

    def read(self, path, start, count, out):
        """`count` samples from `start` into the float32 vector `out`; returns how many there were."""
        with sf.SoundFile(path) as f:
            if start:
                f.seek(start)
            got = f.read(count, dtype="int16", out=self.pcm[:count])
        np.multiply(got, SCALE, out=out[: len(got)], dtype=np.float32, casting="unsafe")
        return len(got)

    def __getitem__(self, indices):
        info = torch.utils.data.get_worker_info()
        worker = info.id if info else 0
        if self.rng is None:
            self.rng = random.Random(torch.initial_seed() + worker)
        rng, aug, B = self.rng, common.AUGMENT, len(indices)
        batch, ticket = self.buffer(worker)
        clean, noisy = batch[0].numpy(), batch[1].numpy()
        lengths = np.empty(B, dtype=np.int64)
        for i, k in enumerate(indices):
            path, duration = self.speech[k]
            n = lengths[i] = self.read(path, 0, min(self.width, int(duration * common.RATE)), clean[i])
            clean[i, n:] = 0.0
        np.copyto(noisy, clean)
        for i in range(B):
            n = int(lengths[i])
            if rng.random() > aug["prob"]:
                continue
            m = max(1, int(n * rng.uniform(aug["min_mix_rate"], aug["max_mix_rate"])))
            if B == 1 or rng.random() < aug["noise_ratio"]:
                db, part = rng.uniform(aug["min_r_noise"], aug["max_r_noise"]), self.noise_part(rng, m)
            else:
                db, part = rng.uniform(aug["min_r_speech"], aug["max_r_speech"]), self.speech_part(rng, clean, lengths, i, m)
            energy = float(np.dot(part, part))
            if energy <= 0.0:
                continue
            gain = math.sqrt(float(np.dot(clean[i, :n], clean[i, :n])) / (10.0 ** (db / 10.0) * energy))
            start = rng.randrange(n - m) if n > m else 0
            part *= np.float32(gain)
            noisy[i, start : start + m] += part
        return ticket, torch.from_numpy(lengths)

    def noise_part(self, rng, m):
        path, duration = self.noise[rng.randrange(len(self.noise))]
        total, part = int(duration * common.RATE), np.empty(m, dtype=np.float32)
        got = self.read(path, rng.randrange(total - m) if total > m else 0, min(m, total), part)
        if 0 < got < m:
            part[got:] = np.resize(part[:got], m - got)
        return part

    @staticmethod
    def speech_part(rng, clean, lengths, i, m):
        j = rng.randrange(len(lengths) - 1)
        j += j >= i
        n = int(lengths[j])
        if n <= m:
            return np.resize(clean[j, :n], m)
        start = rng.randrange(n - m)
        return clean[j, start : start + m].copy()


class ShuffledBatches(torch.utils.data.Sampler):
    def __init__(self, count, batch_size):
        self.count, self.batch_size = count, batch_size

    def __iter__(self):
        order = torch.randperm(self.count).tolist()
        for i in range(0, self.count - self.batch_size + 1, self.batch_size):
            yield order[i : i + self.batch_size]

    def __len__(self):
        return self.count // self.batch_size


def main():
    ap = common.arguments(__doc__)
    ap.add_argument("--transport", default="ring", choices=["ring", "shared", "queue"])
    a = ap.parse_args()
    torch.set_num_threads(1)
    speech = read_manifest(common.make_clips(a, "speech", 96, a.seconds, 0.0))
    noise = read_manifest(common.make_clips(a, "noise", 32, a.seconds + 5, a.noise_dc))
    data = Batches(a, speech, noise)
    options = dict(persistent_workers=True, prefetch_factor=PREFETCH) if a.workers else {}
    loader = torch.utils.data.DataLoader(data, batch_size=None, sampler=ShuffledBatches(len(speech), a.batch_size), num_workers=a.workers, **options)

    def consume(item):
        ticket, lengths = item
        batch = data.ring[ticket[0], ticket[1]] if isinstance(ticket, (tuple, list)) else ticket
        return float(lengths.sum()) / common.RATE + 0.0 * float(batch[1, 0, 0])

    common.measure(a, "expert", loader, consume, dict(transport=a.transport, torch=torch.__version__, soundfile=sf.__version__))


if __name__ == "__main__":
    main()
