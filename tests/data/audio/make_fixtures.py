#!/usr/bin/env python3
"""Makes the recordings and the expected samples of audio_reader_test.cc.

Needs soundfile, librosa, soxr, xxhash and nemo_toolkit (for AudioSegment); run in this folder. Every expected value comes from
those packages. Cases are lines of cases.jsonl; floats are stored as raw little-endian float32 (frames x channels).
"""
import json, os
import numpy as np, soundfile as sf, librosa, soxr, xxhash
import nemo
from nemo.collections.asr.parts.preprocessing.segment import AudioSegment

rng = np.random.default_rng(20240613)
N = 1600
cases = []


def signal(n, channels=1, sr=16000, level=0.4):
    t = np.arange(n) / sr
    cols = []
    for c in range(channels):
        x = level * np.sin(2 * np.pi * (220 + 130 * c) * t) + 0.2 * level * rng.standard_normal(n)
        cols.append(np.clip(x, -0.99, 0.99))
    x = np.stack(cols, axis=1)
    return x[:, 0] if channels == 1 else x


def write(name, x, sr, fmt=None, subtype=None, endian=None):
    if not os.path.exists(name):
        sf.write(name, x, sr, format=fmt, subtype=subtype, endian=endian)
    return name


def case(file, store="hash", tol=0.0, **kw):
    args = dict(target_sr=kw.get("target_sr"), int_values=kw.get("int_values", False), offset=kw.get("offset", 0),
                duration=kw.get("duration", 0), trim=kw.get("trim", False),
                channel_selector=kw.get("channel_selector"))
    out = dict(file=file, **{k: v for k, v in args.items() if v not in (None, False, 0) or k == "channel_selector"})
    try:
        seg = AudioSegment.from_file(file, **args)
        y = np.ascontiguousarray(seg.samples, dtype=np.float32)
        out["frames"], out["channels"], out["rate"] = int(y.shape[0]), 1 if y.ndim == 1 else int(y.shape[1]), int(seg.sample_rate)
        if store == "hash":
            out["xxh64"] = xxhash.xxh64(y.tobytes()).hexdigest()
        elif store == "raw":
            out["expect"] = f"expect_{len(cases):03d}.f32"
            out["tol"] = tol
            y.tofile(out["expect"])
    except Exception as e:  # noqa: BLE001
        out["error"] = type(e).__name__
    cases.append(out)
    return out


mono, stereo, ten = signal(N), signal(N, 2), signal(400, 10)
# (15) decode equality, (17) int_values
for name, x, sub in [("pcm8.wav", mono, "PCM_U8"), ("pcm16.wav", mono, "PCM_16"), ("pcm24.wav", mono, "PCM_24"),
                     ("pcm32.wav", mono, "PCM_32"), ("float.wav", mono, "FLOAT"), ("double.wav", mono, "DOUBLE"),
                     ("ulaw.wav", mono, "ULAW"), ("adpcm.wav", mono, "MS_ADPCM"),
                     ("pcm16_st.wav", stereo, "PCM_16"), ("pcm24_st.wav", stereo, "PCM_24"), ("ten.wav", ten, "PCM_16")]:
    write(name, x, 16000, "WAV", sub)
    case(name)
    if sub not in ("FLOAT", "DOUBLE"):
        case(name, int_values=True)
write("wavex16.wav", stereo, 16000, "WAVEX", "PCM_16"); case("wavex16.wav")
write("wavexf.wav", mono, 16000, "WAVEX", "FLOAT"); case("wavexf.wav")
write("rifx.wav", mono, 16000, "WAV", "PCM_16", "BIG"); case("rifx.wav")
write("rf64.wav", mono, 16000, "RF64", "PCM_16"); case("rf64.wav")
write("a.w64", mono, 16000, "W64", "PCM_16"); case("a.w64")
write("a.aiff", stereo, 16000, "AIFF", "PCM_16"); case("a.aiff"); case("a.aiff", channel_selector=1)
write("a.au", mono, 16000, "AU", "PCM_16"); case("a.au")
write("a.nist", mono, 16000, "NIST", "PCM_16"); case("a.nist")
for name, x, sub in [("f16.flac", mono, "PCM_16"), ("f24.flac", mono, "PCM_24"), ("f8.flac", mono, "PCM_S8"),
                     ("f16_st.flac", stereo, "PCM_16")]:
    write(name, x, 16000, "FLAC", sub)
    case(name)
    case(name, int_values=True)
lossy = signal(6000)
for name, x, sr, fmt, sub in [("v.ogg", lossy, 16000, "OGG", "VORBIS"), ("o.ogg", lossy, 16000, "OGG", "OPUS"),
                              ("m.mp3", lossy, 16000, "MP3", "MPEG_LAYER_III"), ("m44.mp3", signal(6000, 2, 44100), 44100, "MP3", "MPEG_LAYER_III")]:
    write(name, x, sr, fmt, sub)
    case(name, store="count")
    case(name, store="raw", tol=2e-6, offset=0.1, duration=0.05)
    case(name, store="raw", tol=2e-6, int_values=True, offset=0.05, duration=0.05)
case("m44.mp3", store="raw", tol=2e-6, target_sr=16000, channel_selector="average", duration=0.06)

# (16) truncation: 0.0312 * 16000 = 499.2, 0.07 * 16000 = 1120.0000000000002, 0.29 * 100 like cases
for f in ("pcm16.wav", "pcm24_st.wav", "float.wav", "f16.flac", "f16_st.flac", "a.aiff"):
    for off, dur in [(0.0312, 0), (0.07, 0.01), (0.0, 0.0299999), (0.05, 10.0), (0.1, 0), (0.1, 0.5), (0.09999, 0.001),
                     (-1.0, -2.0), (0.00001, 0.00001), (0.057, 0.0285), (None, None)]:
        case(f, offset=off, duration=dur)

# (19) channel selector table
for f in ("pcm16.wav", "pcm16_st.wav", "ten.wav", "f16_st.flac"):
    for sel in (None, 0, 1, 2, 9, 10, -1, "average", [0], [1], [0, 1], [1, 0], [1, 1], [0, 2], [], [3, 1, 3], [-1], "mean"):
        case(f, channel_selector=sel)

# (18) resampling
for sr in (8000, 11025, 22050, 32000, 44100, 48000):
    name = f"sr{sr}.wav"
    write(name, signal(int(sr * 0.06) + 7, 1, sr), sr, "WAV", "PCM_16")
    case(name, store="raw", tol=1e-6, target_sr=16000)
    case(name, store="raw", tol=1e-6, target_sr=16000, offset=0.011, duration=0.02)
write("st48.flac", signal(2000, 2, 48000), 48000, "FLAC", "PCM_16")
case("st48.flac", store="raw", tol=1e-6, target_sr=16000)
case("st48.flac", store="raw", tol=1e-6, target_sr=16000, channel_selector="average")
case("st48.flac", store="raw", tol=1e-6, target_sr=16000, channel_selector=[1])
case("pcm16.wav", store="raw", tol=1e-6, target_sr=8000)
case("pcm16.wav", store="raw", tol=1e-6, target_sr=44100, duration=0.01)

# file lists
write("ch1.wav", signal(N), 16000, "WAV", "PCM_16")
write("short.wav", signal(N - 5), 16000, "WAV", "PCM_16")
for files in (["pcm16.wav", "ch1.wav"], ["pcm16.wav", "ch1.wav", "f16.flac"], ["pcm16.wav"], ["pcm16.wav", "short.wav"],
              ["pcm16.wav", "pcm16_st.wav"]):
    for sel in (None, 0, 1, 2, "average", [0], [1, 0]):
        case(files, channel_selector=sel)
    case(files, offset=0.01, duration=0.05)
case(["sr48000.wav", "sr48000.wav"], store="raw", tol=1e-6, target_sr=16000)

# (20) trimming
quiet = np.concatenate([np.zeros(3000), 1e-5 * rng.standard_normal(2000), signal(5000), np.zeros(2500), 0.001 * signal(2000), np.zeros(4321)])
write("trim.flac", quiet, 16000, "FLAC", "PCM_24"); case("trim.flac", trim=True)
write("silence.flac", np.zeros(3000), 16000, "FLAC", "PCM_16"); case("silence.flac", trim=True)
case("pcm16.wav", trim=True)
st = np.stack([quiet, np.roll(quiet, 2600)], axis=1)
write("trim_st.flac", st, 16000, "FLAC", "PCM_24"); case("trim_st.flac", trim=True); case("trim_st.flac", trim=True, channel_selector=1)
# (22) empty
write("empty.wav", np.zeros(0), 16000, "WAV", "PCM_16"); case("empty.wav"); case("empty.wav", duration=1.0); case("empty.wav", trim=True)

with open("cases.jsonl", "w") as f:
    for c in cases:
        f.write(json.dumps(c) + "\n")
print(len(cases), "cases with soundfile", sf.__version__, sf.__libsndfile_version__, "librosa", librosa.__version__, "soxr", soxr.__version__, "nemo", nemo.__version__)
