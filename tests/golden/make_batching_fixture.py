"""Writes tests/data/resume_v1_batching/: run folders that an earlier aerie left in the middle of an epoch whose batches follow
the durations of the clips, over the data of resume_v1, and what those runs became without the interruption.

    python3 tests/golden/make_batching_fixture.py AERIE      # the fixture is of commit 4833b49; CPU, one thread

"batches" of expected.json, the numbers of the samples of each batch, is added by hand: ResumeFixtureTest prints it where it is missing. It
was recorded by a version that goes on with the losses of 4833b49 (BatchesByDurationGoOnAsTheyWere).
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import make_resume_fixture as resume

OUT = os.path.join(resume.HERE, "..", "data", "resume_v1_batching")
STEPS = 30
LHOTSE = ["++model.train_ds.use_lhotse=true", "model.train_ds.batch_size=null"]
MODES = {
    # Large enough for the rule of then and Lhotse's to make other batches.
    "packed": LHOTSE + ["++model.train_ds.batch_duration=2.2", "++model.validation_ds.use_lhotse=true", "model.validation_ds.batch_size=null",
                        "++model.validation_ds.batch_duration=1.0"],
    "buckets": LHOTSE + ["++model.train_ds.batch_duration=1.0", "++model.train_ds.use_bucketing=true", "++model.train_ds.num_buckets=3"],
}


def interrupt(command, run):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        steps = [r["step"] for r in resume.records(run, "train")]
        if steps and steps[-1] >= 13:
            process.send_signal(signal.SIGTERM)
            break
        time.sleep(0.001)
    assert process.wait() == 0


def main():
    aerie = os.path.abspath(sys.argv[1])
    os.environ["OMP_NUM_THREADS"] = "1"
    shutil.rmtree(OUT, ignore_errors=True)
    for mode, overrides in MODES.items():
        command = resume.command(aerie) + overrides + ["exp_manager.ema.enable=false"]
        with tempfile.TemporaryDirectory() as work:
            os.chdir(work)
            resume.make_data("data")
            run, out = "runs/old", os.path.join(OUT, mode)
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with open(os.path.join(resume.last(run), "manifest.json")) as f:
                weights = json.load(f)["files"]["model.safetensors"]["xxh64"]
            expected = {"step": STEPS, "train_loss": [r["train_loss"] for r in resume.records(run, "train")],
                        "val_loss": [r["val_loss"] for r in resume.records(run, "val")], "model_xxh64": weights}
            shutil.rmtree(run)
            interrupt(command, run)
            last = resume.last(run)
            with open(os.path.join(last, "state.json")) as f:
                state = json.load(f)["train"]
            cursor = json.loads(state["data_cursor"])
            assert 0 < cursor["step"] < 6 and state["step"] < STEPS and "batching" not in cursor, cursor
            expected["stopped_at"] = state["step"]
            os.makedirs(os.path.join(out, "run", "checkpoints"))
            for name in ("config.yaml", "metrics.jsonl", "bad_samples.jsonl"):
                if os.path.exists(os.path.join(run, name)):
                    shutil.copy(os.path.join(run, name), os.path.join(out, "run", name))
            shutil.copytree(last, os.path.join(out, "run", "checkpoints", os.path.basename(last)))
            with open(os.path.join(out, "expected.json"), "w") as f:
                json.dump(expected, f, indent=1)
                f.write("\n")
            os.chdir(resume.HERE)
            print(mode, "stopped at step", state["step"], "of", STEPS, cursor)


if __name__ == "__main__":
    main()
