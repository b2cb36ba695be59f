# The baseline: batch 4 in float32, 8 workers (7.45 iter/s and 10 GB in the guide's table).
_base_ = ['_base_/lss_swin.py', '_base_/nuscenes.py', '_base_/schedule_200k.py', '_base_/runtime.py']
