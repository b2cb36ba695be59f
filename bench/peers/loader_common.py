"""Shared by the loader peers: the clips they read, the timing loop and the JSON line they print.

The task is one NEST training batch: 16 clips of 15 s, 16 kHz mono PCM16, half of them mixed (half of those with noise,
half with another clip of the batch) over half their length at a random level, MultiSpeakerNoiseAugmentation with the
values of the shipped config.
"""
import argparse
import json
import os
import platform
import tempfile
import time

import numpy as np
import soundfile as sf

RATE = 16000
AUGMENT = dict(prob=0.5, noise_ratio=0.5, min_r_speech=-5.0, max_r_speech=5.0, min_r_noise=-5.0, max_r_noise=20.0,
               min_mix_rate=0.5, max_mix_rate=0.5, min_num_segments=1, max_num_segments=1, min_num_speakers=1, max_num_speakers=1)


def arguments(doc):
    ap = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--format", default="wav", choices=["wav", "flac"])
    ap.add_argument("--workers", type=int, default=1)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--batches", type=int, default=20, help="timed batches")
    ap.add_argument("--warmup", type=int, default=3)
    ap.add_argument("--repeats", type=int, default=3, help="timed runs of --batches; the median is reported")
    ap.add_argument("--seconds", type=int, default=15)
    ap.add_argument("--noise-dc", type=float, default=0.01, help="offset of the noise clips; see README")
    ap.add_argument("--data", default=os.path.join(tempfile.gettempdir(), "aerie-loader-peer"))
    ap.add_argument("--speech-manifest", metavar="FILE", help="read these clips (16 kHz mono 16-bit) instead of making some")
    ap.add_argument("--noise-manifest", metavar="FILE")
    ap.add_argument("--json", metavar="FILE", help="also append the result line to this file")
    return ap


def make_clips(a, tag, count, seconds, dc):
    """Writes `count` clips once and returns their manifest; later calls reuse them. A manifest that was named goes first."""
    given = a.noise_manifest if tag == "noise" else a.speech_manifest
    if given:
        return given
    os.makedirs(a.data, exist_ok=True)
    stem = os.path.join(a.data, f"{tag}_{seconds}s_dc{dc:g}_{a.format}")
    manifest = stem + ".json"
    if os.path.exists(manifest):
        return manifest
    rng, lines = np.random.default_rng(0), []
    for i in range(count):
        x = np.cumsum(rng.standard_normal(RATE * seconds))
        x -= np.convolve(x, np.ones(400) / 400, "same")     # coloured noise: FLAC has to work for its bits, as with speech
        path = f"{stem}_{i:03d}.{a.format}"
        sf.write(path, 0.3 * x / np.abs(x).max() + dc, RATE, subtype="PCM_16")
        lines.append(json.dumps(dict(audio_filepath=path, duration=float(seconds), offset=0.0, text="-")))
    with open(manifest + ".tmp", "w") as f:
        f.write("\n".join(lines) + "\n")
    os.replace(manifest + ".tmp", manifest)
    return manifest


def cpu_seconds(pids):
    """User + system time of this process and of `pids`."""
    tick, total = os.sysconf("SC_CLK_TCK"), 0
    for pid in ["self", *pids]:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / tick


def measure(a, peer, loader, consume, extra=None):
    """`loader` is a DataLoader that can be iterated again and again; `consume(batch)` touches the batch and returns seconds of audio."""
    it, epochs = iter(loader), 1

    def nxt():
        nonlocal it, epochs
        try:
            return next(it)
        except StopIteration:
            it, epochs = iter(loader), epochs + 1
            return next(it)

    for _ in range(a.warmup):
        consume(nxt())
    pids = [w.pid for w in getattr(it, "_workers", [])]
    runs, audio = [], 0.0
    for _ in range(a.repeats):
        c0, t0, audio = cpu_seconds(pids), time.perf_counter(), 0.0
        for _ in range(a.batches):
            audio += consume(nxt())
        runs.append((time.perf_counter() - t0, cpu_seconds(pids) - c0))
    runs.sort()
    wall, cpu = runs[len(runs) // 2]
    result = dict(peer=peer, format=a.format, workers=a.workers, batch_size=a.batch_size, seconds=a.seconds, batches=a.batches,
                  ms_per_batch=round(1e3 * wall / a.batches, 2), ms_spread=[round(1e3 * r[0] / a.batches, 2) for r in (runs[0], runs[-1])],
                  audio_s_per_s=round(audio / wall), cpu_ms_per_batch=round(1e3 * cpu / a.batches, 2), audio_s_per_cpu_s=round(audio / max(cpu, 1e-9)),
                  load_average=round(os.getloadavg()[0], 2), machine=f"{platform.machine()}, {os.cpu_count()} cores", **(extra or {}))
    line = json.dumps(result)
    print(line)
    if a.json:
        with open(a.json, "a") as f:
            f.write(line + "\n")
