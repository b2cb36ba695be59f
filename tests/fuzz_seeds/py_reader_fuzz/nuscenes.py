# nuScenes with six cameras at 128 x 352 and the six classes of the map. The tables below data_root are
# read directly: no info files are made beforehand.
dataset_type = 'NuScenesDataset'
data_root = 'data/nuscenes'
map_classes = ['drivable_area', 'ped_crossing', 'walkway', 'stop_line', 'carpark_area', 'divider']
image_size = (128, 352)
train_pipeline = [
    dict(type='LoadMultiViewImageFromFiles', to_float32=True),
    dict(type='ImageAug3D', final_dim=image_size, resize_lim=[0.193, 0.225], bot_pct_lim=[0.0, 0.22],
         rot_lim=[-5.4, 5.4], rand_flip=True, is_train=True),
    dict(type='GlobalRotScaleTrans', resize_lim=[0.9, 1.1], rot_lim=[-0.78539816, 0.78539816], trans_lim=0.5,
         is_train=True),
    dict(type='LoadBEVSegmentation', xbound=[-50.0, 50.0, 0.5], ybound=[-50.0, 50.0, 0.5], classes=map_classes),
    dict(type='RandomFlip3D'),
    dict(type='ImageNormalize', mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
]
data = dict(
    samples_per_gpu=4,
    workers_per_gpu=8,
    pin_memory=True,
    persistent_workers=True,
    train=dict(
        type=dataset_type,
        data_root=data_root,
        split='train',
        pipeline=train_pipeline),
    val=dict(type=dataset_type, data_root=data_root, split='val'))
