_base_ = 'middle.py'
crop = {{_base_.crop_size}}
heads = {{ _base_.model.decode_head }}
listed = [{{_base_.log_level}}, dict(power={{ _base_.lr_config.power }})]
checkpoint_file = 'swin_tiny.pth'
model = dict(
    backbone=dict(
        _delete_=True,
        type='ResNet',
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint_file)),
    decode_head=dict(in_channels=[1, 2], new=dict(_delete_=True, kept=1)))
optimizer = dict(
    _delete_=True,
    type='AdamW',
    lr=0.00006,
    betas=(0.9, 0.999),
    weight_decay=0.01,
    paramwise_cfg=dict(custom_keys={
        'absolute_pos_embed': dict(decay_mult=0.),
        'norm': dict(decay_mult=0.)}))
lr_config = dict(warmup='linear', warmup_iters=1500, warmup_ratio=1e-6)
runner = dict(max_iters=2 * 80000)
data = dict(samples_per_gpu=2, where='{{ fileBasename }} {{fileBasenameNoExtension}}{{ fileExtname }}')
