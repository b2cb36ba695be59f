# 200,000 iterations of AdamW with linear decay. lr is the final rate of its batch (5e-5 per sample);
# optimizer.lr_scaling is off.
optimizer = dict(
    type='AdamW',
    lr=2e-4,
    betas=(0.9, 0.999),
    weight_decay=0.01,
    paramwise_cfg=dict(
        custom_keys={
            'relative_position_bias_table': dict(decay_mult=0.0),
            'absolute_pos_embed': dict(decay_mult=0.0),
        }))
optimizer_config = dict(grad_clip=dict(max_norm=35, norm_type=2))
lr_config = dict(
    policy='poly', power=1.0, min_lr=0.0, by_epoch=False, warmup='linear', warmup_iters=1500, warmup_ratio=1e-6)
runner = dict(type='IterBasedRunner', max_iters=200000)
checkpoint_config = dict(by_epoch=False, interval=20000, max_keep_ckpts=3)
evaluation = dict(interval=20000, metric='mIoU', pre_eval=True)
log_config = dict(interval=50, hooks=[dict(type='TextLoggerHook', by_epoch=False), dict(type='TensorboardLoggerHook')])
