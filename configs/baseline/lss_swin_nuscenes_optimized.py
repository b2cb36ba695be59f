# Balanced: batch 6 in fp16, 12 workers that prepare 4 batches each (the guide expects 5-6 iter/s, 15-18 GB).
_base_ = 'lss_swin_nuscenes.py'
data = dict(samples_per_gpu=6, workers_per_gpu=12, prefetch_factor=4, persistent_workers=True, pin_memory=True)
optimizer = dict(lr=3e-4)
fp16 = dict(loss_scale=512.0)
runner = dict(type='IterBasedRunner', max_iters=200000, accumulative_counts=1)
evaluation = dict(interval=40000, metric='mIoU', efficient_test=True, pre_eval=True)
