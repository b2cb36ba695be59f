#!/usr/bin/env python3
"""Makes the tarred data sets of the shard and tar tests with NeMo's own converter.

    python make_fixtures.py PATH/TO/convert_to_tarred_audio_dataset.py

Run in this folder, with nemo_toolkit installed. The converter (NVIDIA/NeMo, scripts/speech_recognition, commit 8cfedd7203)
is not part of this tree. In that commit slicing and transcoding stop with a NameError (`file_path`); those variants
are therefore made from a copy in which that name is spelled `audio_filepath`.
"""
import io, json, os, shutil, subprocess, sys, tarfile, tempfile
import numpy as np, soundfile as sf, xxhash
from nemo.collections.asr.parts.preprocessing.segment import AudioSegment

rng = np.random.default_rng(5)
converter = os.path.abspath(sys.argv[1])
fixed = os.path.join(tempfile.mkdtemp(), "fixed.py")
open(fixed, "w").write(open(converter).read().replace("soundfile.read(file_path,", "soundfile.read(audio_filepath,"))


def clip(name, seconds, sr=16000, channels=1, subtype="PCM_16"):
    os.makedirs(os.path.dirname(name), exist_ok=True)
    n = int(seconds * sr)
    t = np.arange(n) / sr
    x = 0.3 * np.sin(2 * np.pi * rng.uniform(100, 800) * t)[:, None] * np.ones((1, channels)) + 0.02 * rng.standard_normal((n, channels))
    sf.write(name, x if channels > 1 else x[:, 0], sr, subtype=subtype)


shutil.rmtree("clips", ignore_errors=True)
durations = dict(a=0.1, b=0.04, c=0.08, d=0.06, e=0.12, f=0.05, g=0.055, h=0.015)
lines = []
for i, (k, d) in enumerate(durations.items()):
    name = f"clips/spk.{i % 2}/{k}" + (".flac" if i % 3 == 1 else ".wav")
    clip(name, d)
    lines.append({"audio_filepath": name, "duration": d, "text": f"utt \u00e9 {k}", "speaker": i % 2})
lines[2]["offset"] = 0
lines[4]["extra"] = {"snr": 1e-05, "tags": ["x", 1, 2.5, None, True]}


def manifest(name, rows):
    with open(name, "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False) + "\n")


manifest("plain.json", lines)
subs = []
for off, dur in [(0.0, 0.03), (0.03, 0.03), (0.06, 0.04), (0.1, 0.02)]:
    subs.append({"audio_filepath": "clips/spk.0/e.flac", "offset": off, "duration": dur, "text": ""})
    subs.append({"audio_filepath": "clips/spk.1/b.flac", "offset": off / 4, "duration": dur / 4, "text": ""})
subs.append({"audio_filepath": "clips/spk.0/c.wav", "offset": 0.02, "duration": 0.03, "text": ""})
manifest("subs.json", subs)


def convert(script, target, src, *args):
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run([sys.executable, script, f"--manifest_path={src}", f"--target_dir={target}", *args], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for root, _, files in os.walk(target):  # the only thing that differs from run to run
        for f in files:
            if f.endswith(".yaml"):
                p = os.path.join(root, f)
                text = open(p).read().splitlines()
                text[0] = "created_datetime: 01-02-2025 03-04-05"
                open(p, "w").write("\n".join(text) + "\n")


convert(converter, "nemo_plain", "plain.json", "--num_shards=2", "--min_duration=0.04", "--max_duration=0.12", "--shuffle", "--shuffle_seed=7", "--dynamic_buckets_num=2")
convert(converter, "nemo_sorted", "plain.json", "--num_shards=2", "--max_duration=10", "--sort_in_shards", "--dynamic_buckets_num=3", "--no_shard_manifests")
convert(converter, "nemo_subs", "subs.json", "--num_shards=2", "--max_duration=10", "--shuffle", "--shuffle_seed=1", "--keep_files_together", "--dynamic_buckets_num=4")
convert(converter, "nemo_buckets", "plain.json", "--num_shards=1", "--min_duration=0.015", "--max_duration=0.12", "--buckets_num=2", "--shuffle", "--shuffle_seed=123456789012")
convert(fixed, "nemo_sliced", "subs.json", "--num_shards=2", "--max_duration=10", "--slice_with_offset", "--dynamic_buckets_num=2")
convert(fixed, "nemo_flac", "plain.json", "--num_shards=2", "--max_duration=10", "--force_codec=flac", "--dynamic_buckets_num=2")

# What NeMo decodes for every manifest line of every set, -subN stripped.
out = {}
for target in ("nemo_plain", "nemo_sorted", "nemo_subs", "nemo_sliced", "nemo_flac"):
    rows = []
    for line in open(f"{target}/tarred_audio_manifest.json", encoding="utf-8"):
        e = json.loads(line)
        tar = tarfile.open(f"{target}/audio_{e['shard_id']}.tar")
        stem = os.path.splitext(e["audio_filepath"])[0]
        if "-sub" in stem:
            stem = stem[: stem.rindex("-sub")]
        member = [m for m in tar.getmembers() if os.path.splitext(m.name)[0] == stem][0]
        seg = AudioSegment.from_file(io.BytesIO(tar.extractfile(member).read()), target_sr=16000, offset=e.get("offset", 0), duration=e["duration"])
        x = np.ascontiguousarray(seg.samples, dtype=np.float32)
        rows.append([e["shard_id"], member.name, int(len(x)), xxhash.xxh64(x.tobytes()).hexdigest()])
    out[target] = rows
json.dump(out, open("decoded.json", "w"), indent=0)
# The manifests of these are enough.
for root in ("nemo_sorted", "nemo_flac", "nemo_buckets/bucket1", "nemo_buckets/bucket2"):
    for f in os.listdir(root):
        if f.endswith(".tar"):
            os.remove(os.path.join(root, f))
