# Lift-Splat-Shoot as published, with Swin-T in place of EfficientNet: vehicles, cameras of the car's own
# frame, 5 of 6 cameras in training, Adam at 1e-3 without a schedule, gradients clipped at 5.
_base_ = '_base_/runtime.py'
model = dict(type='LSS', profile='lss')
data = dict(
    samples_per_gpu=4,
    workers_per_gpu=10,
    train=dict(type='NuScenesDataset', data_root='data/nuscenes', split='train'),
    val=dict(type='NuScenesDataset', data_root='data/nuscenes', split='val'))
optimizer = dict(type='Adam', lr=1e-3, weight_decay=1e-7)
optimizer_config = dict(grad_clip=dict(max_norm=5.0, norm_type=2))
lr_config = dict(policy='fixed')
runner = dict(type='IterBasedRunner', max_iters=300000)
checkpoint_config = dict(interval=10000, max_keep_ckpts=3)
evaluation = dict(interval=10000, metric='mIoU')
log_config = dict(interval=50, hooks=[dict(type='TextLoggerHook'), dict(type='TensorboardLoggerHook')])
