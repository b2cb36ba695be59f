#!/usr/bin/env python3
"""Train small models of many kinds with aerie and restore every one of them in real NeMo.

usage: variants_in_nemo.py AERIE_BINARY [NAME ...]

Each variant is trained for three steps on the clips of tests/data/golden/plain; the .nemo that the run wrote is restored in
NeMo (strict, weights-only loadable, same order and dtypes) and NeMo's encoder output on the validation clips is compared with
that of `aerie features` from the same archive. Prints one line per variant; exit status 1 when one differs by more than 1e-4.
"""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

import common
import soundfile
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "data", "golden", "plain")
ENC = "model.encoder."
VARIANTS = {
    "stock": [],
    "d256_l12": [ENC + "d_model=256", ENC + "n_layers=12"],
    "no_bias_no_xscaling": [ENC + "use_bias=false", ENC + "xscaling=false"],
    "striding": [ENC + "subsampling=striding"],
    "stacking": [ENC + "subsampling=stacking"],
    "stacking_norm": [ENC + "subsampling=stacking_norm"],
    "abs_pos": [ENC + "self_attention_model=abs_pos"],
    "local": [ENC + "self_attention_model=rel_pos_local_attn", ENC + "att_context_size=[6,4]"],
    "local_global": [ENC + "self_attention_model=rel_pos_local_attn", ENC + "att_context_size=[4,4]", "+" + ENC + "global_tokens=2",
                     "+" + ENC + "global_attn_separate=true"],
    "contexts": [ENC + "att_context_style=chunked_limited", ENC + "att_context_size=[[8,3],[6,1]]"],
    "layer_norm": [ENC + "conv_norm_type=layer_norm"],
    "group_norm": [ENC + "conv_norm_type=group_norm8"],
    "instance_norm": [ENC + "conv_norm_type=instance_norm"],
    "causal_conv": [ENC + "conv_context_size=causal"],
    "tied_biases": [ENC + "untie_biases=false"],
    "two_books_feat_out": ["model.num_books=2", ENC + "feat_out=40", "model.decoder.feat_in=40"],
    "post_conv": ["model.mask_position=post_conv", "model.quantizer.combine_time_steps=1"],
    "hamming_40_features": ["model.preprocessor.window=hamming", "model.preprocessor.features=40"],
}


def encoded(model, manifest):
    """Encoder output of every file alone (with several global tokens NeMo mixes the items of a batch)."""
    out = {}
    for i, line in enumerate(open(manifest)):
        x, _ = soundfile.read(os.path.join(os.path.dirname(manifest), json.loads(line)["audio_filepath"]), dtype="float32")
        with torch.no_grad():
            mel, n = model.preprocessor(input_signal=torch.from_numpy(x)[None], length=torch.tensor([len(x)]))
            enc, m = model.encoder(audio_signal=mel, length=n)
        out[f"{i}.encoded"] = enc[0, :, : int(m)].t().contiguous()
    return out


def run_variant(aerie, name, overrides, tmp):
    out = os.path.join(tmp, name)
    data = os.path.join(tmp, "data")
    command = [aerie, "train", "--config-path", data, "--config-name", "config", "trainer.max_steps=3", "~trainer.val_check_interval",
               "~trainer.check_val_every_n_epoch", "~init_from_nemo_model", "model.masking.mask_prob=0.05",
               f"+exp_manager={{explicit_log_dir: {out}, name: m, checkpoint_callback_params: {{always_save_nemo: true}}}}"] + overrides
    done = subprocess.run(command, cwd=data, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{name}: aerie train failed\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return 1
    archive = glob.glob(os.path.join(out, "checkpoints", "*.nemo"))[0]
    features = os.path.join(tmp, name + "_features")
    done = subprocess.run([aerie, "features", "--model_path", archive, "--input", os.path.join(data, "val.json"), "--output", features,
                           "--layers", "last", "--device", "cpu", "--batch_size", "1"], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{name}: aerie features failed\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return 1
    model, report = common.restore(archive)
    tensors = encoded(model, os.path.join(data, "val.json"))
    print(f"{name}: {report}")
    return common.compare_features(tensors, os.path.join(features, "features.json"), 1e-4)


def main():
    aerie = os.path.abspath(sys.argv[1])
    names = sys.argv[2:] or list(VARIANTS)
    status = 0
    with tempfile.TemporaryDirectory() as tmp:
        shutil.copytree(DATA, os.path.join(tmp, "data"))
        for name in names:
            try:
                status |= run_variant(aerie, name, VARIANTS[name], tmp)
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}")
                status = 1
    sys.exit(status)


if __name__ == "__main__":
    main()
