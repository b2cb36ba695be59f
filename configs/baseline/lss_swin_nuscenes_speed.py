# Speed: batch 4 in fp16, 16 workers that prepare 8 batches each (the guide expects 8-9 iter/s, 8-10 GB).
_base_ = 'lss_swin_nuscenes.py'
data = dict(samples_per_gpu=4, workers_per_gpu=16, prefetch_factor=8, persistent_workers=True, pin_memory=True)
optimizer = dict(lr=2e-4)
fp16 = dict(loss_scale=512.0)
evaluation = dict(interval=40000, metric='mIoU', efficient_test=True, pre_eval=True)
