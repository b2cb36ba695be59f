#!/usr/bin/env python3
"""What only a GPU can show of LSS + Swin, in calls of a few minutes each.

    python3 bench/bev_gpu_proofs.py --out DIR [--build build] [--minutes 9] [--only PART ...] [--again] [--rehearse]

Parts, in this order; what a call did not reach, the next one with the same --out goes on with (--again: also with parts of which something did not hold, from their beginning):

    tests     every *GpuTest of bev_engine_test and bev_model_test; one that skips has seen no GPU: a failure
    parity    bev_parity --gpu over tests/data/bev, TF32 off
    presets   100 iterations of each of the four presets from JPEG: exit status 0, all iterations logged, fp16 on where the preset says so
    resume    trainer.deterministic: a run, the same again, and one that is stopped half way and gone on with end with the same weights (32, 16-mixed)
    bench     aerie bench bev --batch 4,6,8 beside the eager PyTorch peer (AERIE_PYTHON, where it has torch), and the presets
    learning  bench/learning_proofs.py: three seeds a precision, shuffled cameras, overfitting

--rehearse does all of it with the smallest sizes, on a machine without a GPU too: whether commands, files and names are what this script takes them
for. What it says of speed and learning means nothing then.

DIR/README.md says what held and what did not, DIR/state.json the same for programs. Exit status: 0 all parts are done and held, 1 something did not hold, 3 call
again. Standard library only; the towns are made by `aerie data synth` in --towns.
"""
import argparse
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys

from resumable import OutOfTime, Resumable

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PRESETS = ["lss_swin_nuscenes", "lss_swin_nuscenes_optimized", "lss_swin_nuscenes_speed", "lss_swin_nuscenes_high_memory"]
FP16_LINE = "FP16混合精度训练已启用"
SMALL_CONFIG = "configs/baseline/lss_swin_quickstart.yaml"


class Proofs(Resumable):
    def __init__(self, args):
        super().__init__(args.out, "state.json", 60 * args.minutes, {"parts": {}})
        self.args = args
        self.build = os.path.abspath(args.build)
        self.aerie = os.path.join(self.build, "aerie")
        self.env = os.environ | {"AERIE_TEST_DATA": f"{ROOT}/tests/data", "AERIE_CONFIG_DIR": f"{ROOT}/configs"}

    def run(self, log, *command, least=15):
        """Output and exit status; a command that runs into the end of the call comes again in the next."""
        done = self.limited(*command, least=least, env=self.env, cwd=ROOT)
        with open(os.path.join(self.args.out, log + ".log"), "w") as f:
            f.write(done.stdout + done.stderr)
        return done.stdout + done.stderr, done.returncode

    def once(self, part, name, make):
        """The result of a step, from an earlier call if there was one: [holds, sentence, ...]."""
        known = self.state["parts"].setdefault(part, {})
        if name not in known:
            known[name] = make()
            self.save()
            print(("holds: " if known[name][0] else "DOES NOT HOLD: ") + f"{part}, {known[name][1]}", flush=True)
        return known[name]

    def town(self, size):
        root = os.path.join(self.args.towns, "town_" + size)
        text, status = self.run("town_" + size, self.aerie, "data", "synth", "--kind", "nuscenes", "--out", root, "--size", size)
        if status != 0:
            sys.exit(f"the town could not be made:\n{text[-2000:]}")
        return root

    # parts

    def tests(self):
        for binary in ("bev_engine_test", "bev_model_test"):
            def make():
                names, _ = self.run(binary + "_list", os.path.join(self.build, binary), "--gtest_list_tests", "--gtest_filter=*GpuTest*")
                count = sum(line.startswith("  ") for line in names.splitlines())
                if count == 0:
                    return [True, f"{binary} has no test for a GPU"]
                text, status = self.run(binary, os.path.join(self.build, binary), "--gtest_filter=*GpuTest*")
                skipped = "[  SKIPPED ]" in text
                return [status == 0 and (self.args.rehearse or not skipped), f"{binary}: {count} tests for a GPU, exit status {status}" + (", skipped" if skipped else "")]
            self.once("tests", binary, make)

    def parity(self):
        for file in sorted(glob.glob(f"{ROOT}/tests/data/bev/*.safetensors")):
            name = os.path.basename(file)
            if name in ("map_boxes.safetensors", "map_masks.safetensors", "swin_outputs.safetensors", "swin_timm.safetensors"):
                continue  # of other tests
            if self.args.rehearse and name.startswith("full_"):
                continue  # minutes on a CPU
            def make():
                text, status = self.run("parity_" + name, os.path.join(self.build, "bev_parity"), *([] if self.args.rehearse else ["--gpu"]), file)
                return [status == 0, f"{name}: exit status {status}"]
            self.once("parity", name, make)

    def presets(self):
        root = self.town("tiny")
        most = 2 if self.args.rehearse else 100
        small = ["data.samples_per_gpu=1", "data.workers_per_gpu=1", "log_config.interval=1"] if self.args.rehearse else []
        for preset in PRESETS:
            def make():
                text, status = self.run("preset_" + preset, self.aerie, "train", f"configs/baseline/{preset}.py", "--work-dir",
                                        os.path.join(self.args.out, "preset_" + preset), "--gpu-ids", "0", "--options", f"runner.max_iters={most}",
                                        f"data.train.data_root={root}", f"data.val.data_root={root}", *small, least=60)
                lines = [line for line in text.splitlines() if "Iter [" in line]
                half = preset != PRESETS[0] and self.state.get("gpu", "") != ""
                holds = status == 0 and any(f"Iter [{most}/{most}]" in line for line in lines) and (FP16_LINE in text) == half
                last = lines[-1][lines[-1].index("Iter ["):].replace("\t", " ") if lines else "no iteration was logged"
                return [holds, f"{preset}: exit status {status}; {last}"]
            self.once("presets", preset, make)
        for preset in PRESETS[:2]:
            def make():
                text, status = self.run("precision_" + preset, self.aerie, "train", f"configs/baseline/{preset}.py", "--dump-precision")
                return [status == 0 and ("float16" in text) == (preset != PRESETS[0]), f"{preset}: operations by precision in precision_{preset}.log"]
            self.once("presets", "precision " + preset, make)

    def resume(self):
        root = self.town("tiny")
        config, half_way = (SMALL_CONFIG, 2) if self.args.rehearse else ("bench/learning_proofs.yaml", 20)

        def weights(name, precision, *steps):
            folder = os.path.join(self.args.out, f"resume_{name}_{precision}")
            shutil.rmtree(folder, ignore_errors=True)  # of a call that ran out of time
            for most in steps:
                # Without a schedule: one that knows the end of the run would make runs of other lengths differ.
                text, status = self.run(f"resume_{name}_{precision}_{most}", self.aerie, "train", config, "--work-dir", folder, "--deterministic",
                                        "--cfg-options", f"model.train_ds.root={root}", f"trainer.precision={precision}", f"trainer.max_steps={most}",
                                        f"trainer.val_check_interval={half_way}", f"exp_manager.checkpoint_callback_params.every_n_train_steps={half_way}",
                                        "exp_manager.checkpoint_callback_params.save_top_k=1", "model.optim.sched=None", least=60)
                if status != 0:
                    return f"exit status {status}: {text[-300:]}"
            last = sorted(glob.glob(folder + "/checkpoints/*-last/model.safetensors"))
            if not last:
                return "no checkpoint"
            with open(last[-1], "rb") as f:
                return hashlib.sha256(f.read()).hexdigest()[:16]

        for precision in ("32", "16-mixed"):
            for name, steps in (("straight", (2 * half_way,)), ("again", (2 * half_way,)), ("parts", (half_way, 2 * half_way))):
                self.once("resume", f"{precision} {name}", lambda: [True, f"{precision}, {name}: weights " + weights(name, precision, *steps)])
            def make():
                hashes = [self.state["parts"]["resume"][f"{precision} {name}"][1].split("weights ")[1] for name in ("straight", "again", "parts")]
                return [len(set(hashes)) == 1 and len(hashes[0]) == 16, f"{precision}: run, run again, run in parts: {', '.join(hashes)}"]
            self.once("resume", precision, make)

    def bench(self):
        root = self.town("tiny" if self.args.rehearse else "small")
        sizes = ["--small", "--batch", "1,2", "--steps", "2", "--warmup", "1"] if self.args.rehearse else ["--batch", "4,6,8", "--steps", "40"]
        preset_sizes = ["--steps", "1", "--warmup", "0", "--options", "data.samples_per_gpu=1", "data.workers_per_gpu=1"] if self.args.rehearse else ["--steps", "40"]

        def measured(name, *options):
            text, status = self.run("bench_" + name, self.aerie, "bench", "bev", "--data", root, "--json", *options, least=120)
            begin = text.find("{")
            if status != 0 or begin < 0:
                return None, f"{name}: exit status {status}: {text[-300:]}"
            report = json.JSONDecoder().raw_decode(text[begin:])[0]
            with open(os.path.join(self.args.out, f"bench_{name}.json"), "w") as f:
                json.dump(report, f, indent=1)
            return report["rows"], ""

        def rows_text(rows):
            return "; ".join(f"{r['name']} {r['samples_per_s']:.1f} samples/s, wait {100 * r['data_wait_share']:.1f} %, GPU {r.get('gpu_util', 0):.0f} %, "
                             f"{r['peak_memory_gib']:.1f} GiB" + (f", {r['beside_peer']:.2f} of the peer's step" if "beside_peer" in r else "") for r in rows)

        def make():
            rows, why = measured("batches", *sizes, "--peer", f"{ROOT}/bench/peers")
            if rows is None:
                return [False, why]
            rates = [r["samples_per_s"] for r in rows]
            rising = all(b >= 0.98 * a for a, b in zip(rates, rates[1:]))  # 2 % is noise
            peers = [r["beside_peer"] for r in rows if "beside_peer" in r]
            note = "" if peers else "; NOT CHECKED beside the peer: " + str(rows[0].get("peer_note", "")).strip()[-200:]
            return [self.args.rehearse or (rising and all(p <= 1.0 for p in peers)), rows_text(rows) + note]
        self.once("bench", "batches", make)

        def make_presets():
            rows, why = measured("presets", "--presets", *preset_sizes)
            return [rows is not None, why or rows_text(rows)]
        self.once("bench", "presets", make_presets)

    def learning(self):
        def make():
            out, work = os.path.join(self.args.out, "learning"), os.path.join(self.args.out, "proofs")
            root = self.town("tiny" if self.args.rehearse else "small")
            small = ["--config", SMALL_CONFIG, "--seeds", "2", "--options", "trainer.max_steps=4", "trainer.val_check_interval=2"] if self.args.rehearse else []
            command = [sys.executable, f"{ROOT}/bench/learning_proofs.py", "--aerie", self.aerie, "--work", work, "--out", out, "--data", root,
                       "--jobs", str(1 if self.args.rehearse else self.args.jobs), *small, "--minutes", str(max(0.5, (self.left(60) - 30) / 60))]
            status = subprocess.run(command, env=self.env, cwd=ROOT, stdout=subprocess.DEVNULL).returncode
            if status == 3:
                raise OutOfTime()
            if status not in (0, 1, 2):  # 1, 2: verdicts, read below
                return [False, f"learning_proofs.py ended with {status}"]
            with open(os.path.join(out, "README.md")) as f:
                verdicts = [line[2:].strip() for line in f if line.startswith(("- holds", "- DOES NOT HOLD"))]
            return [bool(verdicts) and (self.args.rehearse or not any(v.startswith("DOES NOT") for v in verdicts)), "; ".join(verdicts)]
        self.once("learning", "proofs", make)

    def report(self, names):
        lines = ["# What a GPU shows of LSS + Swin", "", f"`bench/bev_gpu_proofs.py`, {self.state.get('gpu', '')}, {self.state.get('aerie', '')}.", ""]
        for part in names:
            lines.append(f"## {part}")
            for holds, sentence in (entry[:2] for entry in self.state["parts"].get(part, {}).values()):
                lines.append(f"- {'holds' if holds else '**does not hold**'}: {sentence}")
            lines.append("")
        with open(os.path.join(self.args.out, "README.md"), "w") as f:
            f.write("\n".join(lines))


PARTS = ["tests", "parity", "presets", "resume", "bench", "learning"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--towns", help="folder of the towns (default: --out)")
    parser.add_argument("--build", default=f"{ROOT}/build", help="folder with aerie, bev_parity and the test executables")
    parser.add_argument("--minutes", type=float, default=9.0, help="stop after so long; the next call goes on")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--jobs", type=int, default=3, help="learning runs at a time")
    parser.add_argument("--again", action="store_true", help="repeat parts of which something did not hold")
    parser.add_argument("--rehearse", action="store_true", help="the smallest sizes, without a GPU too")
    args = parser.parse_args()
    args.out, args.towns = os.path.abspath(args.out), os.path.abspath(args.towns or args.out)
    proofs = Proofs(args)
    if not os.access(proofs.aerie, os.X_OK):
        sys.exit(f"there is no {proofs.aerie}: build it, or name the folder in --build")
    if args.again:
        proofs.state["parts"] = {part: entries for part, entries in proofs.state["parts"].items() if all(entry[0] for entry in entries.values())}
    done = True
    try:
        version = proofs.run("version", proofs.aerie, "--version")[0].strip().split("\n")
        proofs.state["aerie"] = version[0]
        # "device  0: NVIDIA H200, compute 9.0, 139 GiB"
        proofs.state["gpu"] = ", ".join(line.split(": ", 1)[1].split(",")[0] for line in version if line.startswith("device "))
        if not args.rehearse and not proofs.state["gpu"]:
            sys.exit("aerie --version shows no GPU; --rehearse tries everything without one")
        for part in args.only:
            getattr(proofs, part)()
    except OutOfTime:
        done = False
    proofs.save()
    proofs.report([part for part in PARTS if part in proofs.state["parts"]])
    failed = [f"{part}, {entry[1]}" for part in args.only for entry in proofs.state["parts"].get(part, {}).values() if not entry[0]]
    for line in failed:
        print("DOES NOT HOLD:", line)
    return 3 if not done else 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
