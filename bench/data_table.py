#!/usr/bin/env python3
"""Times aerie's loader beside the Python peers on the same clips, in one run, and prints a Markdown table.

usage: bench/data_table.py --aerie build/aerie [--python PYTHON] [--seconds 3] [--repeats 3] [--out FILE.md] [--skip-nemo]

PYTHON is an interpreter with torch, numpy and soundfile (and nemo_toolkit for NeMo's loader); default: the one that runs this.
The peers make the clips (see bench/peers/README.md). Every case is measured --repeats times, in turns, and the best run counts:
on a machine that does other work as well the figures per CPU second are the ones to compare.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
AUGMENTOR = ("{_target_: nemo.collections.asr.modules.ssl_modules.MultiSpeakerNoiseAugmentation, prob: 0.5, noise_ratio: 0.5, min_r_speech: -5.0, "
             "max_r_speech: 5.0, min_r_noise: -5.0, max_r_noise: 20.0, min_mix_rate: 0.5, max_mix_rate: 0.5, min_num_segments: 1, "
             "max_num_segments: 1, min_num_speakers: 1, max_num_speakers: 1}")


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def write_config(folder, name, train, noise, augment, extra=""):
    lines = ["model:", "  sample_rate: 16000", "  train_ds:", f"    manifest_filepath: {train['manifest']}"]
    if "tars" in train:
        lines += ["    is_tarred: true", f"    tarred_audio_filepaths: {train['tars']}", "    shuffle_n: 64"]
    if augment:
        lines += [f"    noise_manifest: {noise}", f"    batch_augmentor: {AUGMENTOR}"]
    lines += ["    sample_rate: 16000", "    batch_size: 16", "    shuffle: true", "    drop_last: true", "    num_workers: 1", "    min_duration: 1.0",
              "    max_duration: 60.0"]
    if "cache" in train:
        lines += ["aerie:", f"  data: {{cache_dir: {train['cache']}}}"]
    path = os.path.join(folder, name + ".yaml")
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n" + extra)
    return path


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--aerie", required=True)
    ap.add_argument("--python", default=sys.executable)
    ap.add_argument("--seconds", type=float, default=3.0)
    ap.add_argument("--repeats", type=int, default=3)
    ap.add_argument("--skip-nemo", action="store_true")
    ap.add_argument("--data", default=os.path.join(tempfile.gettempdir(), "aerie-loader-peer"))
    ap.add_argument("--out")
    a = ap.parse_args()
    a.aerie = os.path.abspath(a.aerie)

    def peer(name, fmt, workers, batches):
        out = run([a.python, os.path.join(HERE, "peers", name + "_loader.py"), "--format", fmt, "--workers", str(workers), "--batches", str(batches),
                   "--repeats", "1", "--data", a.data])
        return json.loads(out.strip().splitlines()[-1])

    def aerie(config, workers, *more):
        out = run([a.aerie, "bench", "data", config, "--seconds", str(a.seconds), "--warmup", "2", "--workers", str(workers), "--json", *more])
        return json.loads(out)[0]

    # The peers make the clips.
    for fmt in ("wav", "flac"):
        peer("expert", fmt, 0, 1)
    manifest = {fmt: os.path.join(a.data, f"speech_15s_dc0_{fmt}.json") for fmt in ("wav", "flac")}
    noise = {fmt: os.path.join(a.data, f"noise_20s_dc0.01_{fmt}.json") for fmt in ("wav", "flac")}
    tarred, packed = os.path.join(a.data, "tarred_flac"), os.path.join(a.data, "packed")
    if not os.path.exists(os.path.join(tarred, "tarred_audio_manifest.json")):
        run([a.aerie, "data", "shard", "--manifest_path", manifest["flac"], "--target_dir", tarred, "--num_shards", "4"])
    run([a.aerie, "data", "pack", "--manifest", manifest["wav"], "--out", packed])
    sources = [
        ("WAV", dict(manifest=manifest["wav"]), noise["wav"]),
        ("FLAC", dict(manifest=manifest["flac"]), noise["flac"]),
        ("FLAC in tar shards", dict(manifest=os.path.join(tarred, "tarred_audio_manifest.json"), tars=os.path.join(tarred, "audio__OP_0..3_CL_.tar")),
         noise["flac"]),
        ("packed, 16-bit", dict(manifest=manifest["wav"], cache=packed), noise["wav"]),
    ]
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        if not a.skip_nemo:
            for fmt in ("wav", "flac"):
                cases.append((f"NeMo, {fmt.upper()}, augmented", 1, lambda fmt=fmt: peer("nemo", fmt, 1, 4)))
        for fmt, count in (("wav", 60), ("flac", 12)):
            for workers in (1, 2):
                cases.append((f"expert Python, {fmt.upper()}, augmented", workers, lambda fmt=fmt, w=workers, c=count: peer("expert", fmt, w, c)))
        for number, (name, train, clips) in enumerate(sources):
            for augment in (True, False):
                config = write_config(folder, f"c{number}{int(augment)}", train, clips, augment)
                label = f"aerie, {name}, {'augmented' if augment else 'plain'}"
                for workers in (1, 2):
                    cases.append((label, workers, lambda c=config, w=workers: aerie(c, w)))
                if augment and number in (0, 3):
                    for workers in (1, 2):
                        cases.append((label + ", 16-bit batches, mixing left to the consumer", workers,
                                      lambda c=config, w=workers: aerie(c, w, "--dtype", "int16", "--mix", "gpu")))
        results = [[] for _ in cases]
        for turn in range(a.repeats):
            for k, (name, _, measure) in enumerate(cases):
                if name.startswith("NeMo") and turn > 0:
                    continue
                results[k].append(measure())
                print(f"turn {turn + 1}, {name}: {results[k][-1]['audio_s_per_cpu_s']:.0f}", file=sys.stderr)
    best = {}
    rows = ["| loader | workers | audio s per CPU second | audio s per second | CPU % |", "|---|---|---|---|---|"]
    for (name, workers, _), runs in zip(cases, results):
        cpu = max(r["audio_s_per_cpu_s"] for r in runs)
        wall = max(r["audio_s_per_s"] for r in runs)
        share = 100.0 * wall / cpu
        best[name, workers] = (cpu, wall)
        rows.append(f"| {name} | {workers} | {cpu:,.0f} | {wall:,.0f} | {share:.0f} |")
    one = best["aerie, WAV, augmented", 1][0]
    facts = []
    if not a.skip_nemo:
        facts.append(f"WAV with augmentation, per core: {one / best['NeMo, WAV, augmented', 1][0]:.0f}x NeMo")
    facts.append(f"{one / best['expert Python, WAV, augmented', 1][0]:.2f}x the expert's loader")
    facts.append(f"{best['aerie, WAV, augmented, 16-bit batches, mixing left to the consumer', 1][0] / best['expert Python, WAV, augmented', 1][0]:.2f}x with 16-bit "
                 "batches and the mixing left to the GPU")
    for name in ("WAV", "FLAC"):
        label = f"aerie, {name}, augmented"
        facts.append(f"{name}: 2 workers do {100 * best[label, 2][0] / best[label, 1][0]:.0f} % of the work of 1 per CPU second "
                     f"(wall: {best[label, 2][1] / best[label, 1][1]:.2f}x)")
    load = os.getloadavg()
    text = "\n".join(rows) + "\n\n" + "\n".join("- " + f for f in facts) + f"\n- load average at the end: {load[0]:.1f} on {os.cpu_count()} CPUs\n"
    print(text)
    if a.out:
        with open(a.out, "w") as f:
            f.write(text)


if __name__ == "__main__":
    main()
