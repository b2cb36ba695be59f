# Memory: batch 8 in fp16, 8 workers (the guide expects 4-5 iter/s and measured 3.64, 18-20 GB).
_base_ = 'lss_swin_nuscenes.py'
data = dict(samples_per_gpu=8, workers_per_gpu=8, persistent_workers=True, pin_memory=True)
optimizer = dict(lr=4e-4)
fp16 = dict(loss_scale=512.0)
evaluation = dict(interval=40000, metric='mIoU', efficient_test=True, pre_eval=True)
