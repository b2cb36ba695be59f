# BEVFusion's camera-only segmentation (camera-bev256d2): 256 x 704, grid of 256 x 256 cells, CBGS, 20
# epochs, cyclic rate and momentum. Its rate is for a batch of 32 in all.
_base_ = '_base_/runtime.py'
map_classes = ['drivable_area', 'ped_crossing', 'walkway', 'stop_line', 'carpark_area', 'divider']
data_root = 'data/nuscenes'
train_pipeline = [
    dict(type='LoadMultiViewImageFromFiles', to_float32=True),
    dict(type='ImageAug3D', final_dim=[256, 704], resize_lim=[0.38, 0.55], bot_pct_lim=[0.0, 0.0],
         rot_lim=[-5.4, 5.4], rand_flip=True, is_train=True),
    dict(type='GlobalRotScaleTrans', resize_lim=[0.9, 1.1], rot_lim=[-0.78539816, 0.78539816], trans_lim=0.5,
         is_train=True),
    dict(type='LoadBEVSegmentation', xbound=[-50.0, 50.0, 0.5], ybound=[-50.0, 50.0, 0.5], classes=map_classes),
    dict(type='RandomFlip3D'),
    dict(type='ImageNormalize', mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
]
test_pipeline = [
    dict(type='LoadMultiViewImageFromFiles', to_float32=True),
    dict(type='ImageAug3D', final_dim=[256, 704], resize_lim=[0.48, 0.48], bot_pct_lim=[0.0, 0.0],
         rot_lim=[0.0, 0.0], rand_flip=False, is_train=False),
    dict(type='LoadBEVSegmentation', xbound=[-50.0, 50.0, 0.5], ybound=[-50.0, 50.0, 0.5], classes=map_classes),
    dict(type='ImageNormalize', mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
]
model = dict(
    type='BEVFusion',
    profile='bf',
    encoders=dict(camera=dict(backbone=dict(drop_path_rate=0.3))),
    heads=dict(map=dict(classes=map_classes, loss='focal')))
data = dict(
    samples_per_gpu=4,
    workers_per_gpu=4,
    train=dict(
        type='CBGSDataset',
        dataset=dict(type='NuScenesDataset', data_root=data_root, split='train', pipeline=train_pipeline)),
    val=dict(type='NuScenesDataset', data_root=data_root, split='val', pipeline=test_pipeline))
optimizer = dict(
    type='AdamW',
    lr=1e-4,
    weight_decay=0.01,
    paramwise_cfg=dict(
        custom_keys={
            'absolute_pos_embed': dict(decay_mult=0),
            'relative_position_bias_table': dict(decay_mult=0),
        }))
optimizer_config = dict(grad_clip=dict(max_norm=35, norm_type=2))
lr_config = dict(policy='cyclic')
momentum_config = dict(policy='cyclic')
fp16 = dict(loss_scale=dict(growth_interval=2000))
runner = dict(type='CustomEpochBasedRunner', max_epochs=20)
checkpoint_config = dict(interval=1, max_keep_ckpts=1)
evaluation = dict(interval=1, metric='map')
log_config = dict(interval=50, hooks=[dict(type='TextLoggerHook'), dict(type='TensorboardLoggerHook')])
