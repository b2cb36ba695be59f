_base_ = ['_base_/model.py', './_base_/schedule.py', '_base_/runtime.yaml']
model = dict(decode_head=dict(num_classes=150))
