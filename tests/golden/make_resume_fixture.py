"""Writes tests/data/resume_v1/: a run folder that an earlier aerie left in the middle of an epoch.

A very small NEST on tar shards of made-up clips, one of which cannot be decoded, with averaged weights, noise and speech
mixed in, stopped by a signal; and what the same run became without the interruption. resume_fixture_test.cc goes on from a
copy of it: what was true of the format then must stay true.

    python3 tests/golden/make_resume_fixture.py AERIE      # the fixture is of commit 4833b49; CPU, one thread
"""
import io
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "data", "resume_v1")
RATE = 8000
STEPS = 30

OVERRIDES = """
name=old
model.sample_rate=8000
model.num_classes=16
model.code_dim=4
model.train_ds.manifest_filepath=data/train.json
model.train_ds.is_tarred=true
model.train_ds.tarred_audio_filepaths=data/audio__OP_0..1_CL_.tar
model.train_ds.noise_manifest=data/noise.json
model.train_ds.min_duration=0
model.train_ds.batch_size=2
model.train_ds.shuffle_n=6
model.train_ds.num_workers=1
model.validation_ds.manifest_filepath=data/val.json
model.validation_ds.noise_manifest=data/noise.json
model.validation_ds.min_duration=0
model.validation_ds.batch_size=2
model.validation_ds.num_workers=1
model.preprocessor.features=16
model.preprocessor.n_fft=128
model.preprocessor.window_size=0.016
model.masking.mask_prob=0.1
model.masking.block_size=8
model.encoder.d_model=16
model.encoder.n_layers=1
model.encoder.n_heads=2
model.encoder.subsampling_conv_channels=8
model.encoder.ff_expansion_factor=2
model.optim.sched.warmup_steps=5
trainer.accelerator=cpu
trainer.devices=1
trainer.precision=32
trainer.val_check_interval=5
trainer.log_every_n_steps=1
trainer.num_sanity_val_steps=0
exp_manager.exp_dir=runs
exp_manager.resume_if_exists=true
exp_manager.resume_ignore_no_checkpoint=true
exp_manager.create_tensorboard_logger=false
exp_manager.checkpoint_callback_params.save_top_k=1
exp_manager.checkpoint_callback_params.always_save_nemo=false
++exp_manager.checkpoint_callback_params.save_nemo_on_train_end=false
++exp_manager.ema.enable=true
++exp_manager.ema.decay=0.9
aerie.data.min_audio_len_secs=0.06
aerie.max_bad_fraction=0.2
""".split()


def wav(samples):
    data = struct.pack(f"<{len(samples)}h", *samples)
    return struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16,
                       b"data", len(data)) + data


def clip(rng):
    """A few glides over a little noise, 0.2 to 0.45 s."""
    n, phase, out = rng.randrange(int(0.2 * RATE), int(0.45 * RATE)), 0.0, []
    step, slope = rng.uniform(0.05, 0.6), rng.uniform(-1e-4, 1e-4)
    for i in range(n):
        phase += step + slope * i
        out.append(int(6000 * ((phase % 2.0) - 1.0)) + rng.randrange(-800, 800))
    return out


def make_data(folder):
    rng = random.Random(7)
    os.makedirs(folder)
    lines, members = [], [[], []]
    for i in range(20):
        samples = clip(rng)
        name = f"clip{i:02d}.wav"
        # The third clip of the second shard is no audio.
        content = b"this is not a recording" * 20 if i == 12 else wav(samples)
        members[i // 10].append((name, content))
        lines.append({"audio_filepath": name, "duration": len(samples) / RATE, "shard_id": i // 10})
    for shard, files in enumerate(members):
        with tarfile.open(os.path.join(folder, f"audio_{shard}.tar"), "w", format=tarfile.USTAR_FORMAT) as tar:
            for name, content in files:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    write_lines(os.path.join(folder, "train.json"), lines)
    for kind, count in (("val", 4), ("noise", 2)):
        lines = []
        for i in range(count):
            samples = clip(rng)
            with open(os.path.join(folder, f"{kind}{i}.wav"), "wb") as f:
                f.write(wav(samples))
            lines.append({"audio_filepath": f"{kind}{i}.wav", "duration": len(samples) / RATE})
        write_lines(os.path.join(folder, f"{kind}.json"), lines)


def write_lines(path, lines):
    with open(path, "w") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)


def command(aerie):
    configs = os.path.join(HERE, "..", "..", "configs", "nest")
    return [aerie, "train", f"--config-path={os.path.abspath(configs)}", "--config-name=nest_quickstart", *OVERRIDES,
            f"trainer.max_steps={STEPS}"]


def records(run, kind):
    path = os.path.join(run, "metrics.jsonl")
    if not os.path.exists(path):
        return []
    with open(path) as f:
        lines = f.read().splitlines()
    out = []
    for line in lines:
        try:
            out.append(json.loads(line))
        except ValueError:
            pass  # being written
    return [r for r in out if r["kind"] == kind]


def last(run):
    checkpoints = os.path.join(run, "checkpoints")
    return os.path.join(checkpoints, next(n for n in os.listdir(checkpoints) if n.endswith("-last")))


def interrupt(aerie, run):
    """Starts a run and asks it to stop in the second epoch, after the bad clip was met."""
    process = subprocess.Popen(command(aerie), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        steps = [r["step"] for r in records(run, "train")]
        if steps and steps[-1] >= 12:
            process.send_signal(signal.SIGTERM)
            break
        time.sleep(0.001)
    assert process.wait() == 0


def main():
    aerie = os.path.abspath(sys.argv[1])
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        make_data("data")
        run = "runs/old"
        subprocess.run(command(aerie), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        final = last(run)
        expected = {"step": STEPS, "stem": os.path.basename(final),
                    "train_loss": [r["train_loss"] for r in records(run, "train")],
                    "val_loss": [r["val_loss"] for r in records(run, "val")]}
        with open(os.path.join(final, "manifest.json")) as f:
            files = json.load(f)["files"]
        expected["xxh64"] = {name: files[name]["xxh64"] for name in files if name.endswith(".safetensors")}
        shutil.rmtree(run)
        interrupt(aerie, run)
        with open(os.path.join(last(run), "state.json")) as f:
            state = json.load(f)["train"]
        cursor = json.loads(state["data_cursor"])
        assert 0 < state["batch_in_epoch"] < 10 and state["step"] < STEPS and cursor["bad_samples"] == 1, state
        expected["stopped_at"] = state["step"]
        shutil.rmtree(OUT, ignore_errors=True)
        os.makedirs(os.path.join(OUT, "run"))
        shutil.copytree("data", os.path.join(OUT, "data"), ignore=shutil.ignore_patterns(".*"))
        for name in ("config.yaml", "metrics.jsonl", "bad_samples.jsonl", "checkpoints"):
            source = os.path.join(run, name)
            (shutil.copytree if os.path.isdir(source) else shutil.copy)(source, os.path.join(OUT, "run", name))
        os.chdir(HERE)
    with open(os.path.join(OUT, "expected.json"), "w") as f:
        json.dump(expected, f, indent=1)
        f.write("\n")
    print("stopped at step", expected["stopped_at"], "of", STEPS)


if __name__ == "__main__":
    main()
