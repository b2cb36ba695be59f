#!/usr/bin/env python3
"""Times NeMo's own NEST loader: AudioNoiseDataset with MultiSpeakerNoiseAugmentation behind a torch DataLoader.

usage: nemo_loader.py [--format wav|flac] [--workers N] [--json FILE] ...
Needs nemo_toolkit[asr] (2.6.2 was used). Runs on the CPU and prints one JSON line.
"""
import logging
import os
import warnings

os.environ["CUDA_VISIBLE_DEVICES"] = ""
warnings.filterwarnings("ignore")
import loader_common as common

a = common.arguments(__doc__).parse_args()
speech = common.make_clips(a, "speech", 96, a.seconds, 0.0)
noise = common.make_clips(a, "noise", 32, a.seconds + 5, a.noise_dc)

import nemo
import torch
from nemo.collections.asr.data import ssl_dataset
from nemo.core.classes.common import Serialization
from nemo.utils import logging as nemo_logging
from omegaconf import OmegaConf

nemo_logging.setLevel(logging.ERROR)
torch.set_num_threads(1)
cfg = OmegaConf.create(dict(
    manifest_filepath=speech, noise_manifest=noise, sample_rate=common.RATE, batch_size=a.batch_size, shuffle=True, num_workers=a.workers,
    pin_memory=False, use_start_end_token=False, trim_silence=False, max_duration=60.0, min_duration=1.0, drop_last=True, is_concat=False,
    is_tarred=False, shuffle_n=2048,
    batch_augmentor=dict(_target_="nemo.collections.asr.modules.ssl_modules.MultiSpeakerNoiseAugmentation", **common.AUGMENT)))
dataset = ssl_dataset.get_audio_noise_dataset_from_config(cfg, global_rank=0, world_size=1)
if getattr(dataset, "batch_augmentor", None) is None:
    dataset.batch_augmentor = Serialization.from_config_dict(cfg.batch_augmentor)
# NeMo restarts its workers every epoch; keeping them is the kinder figure.
loader = torch.utils.data.DataLoader(dataset, batch_size=a.batch_size, shuffle=True, num_workers=a.workers, drop_last=True,
                                     collate_fn=dataset.collate_fn, persistent_workers=a.workers > 0)
common.measure(a, "nemo", loader, lambda b: float(b.audio_len.sum()) / common.RATE + 0.0 * float(b.noisy_audio[0, 0]),
               dict(nemo=nemo.__version__, torch=torch.__version__))
