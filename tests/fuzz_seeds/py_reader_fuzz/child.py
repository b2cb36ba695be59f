_base_ = ['base.py']
lr = 5e-5 * 4
optimizer = dict(_delete_=True, type='AdamW', lr=lr, betas=(0.9, 0.999), paramwise_cfg=dict(custom_keys={'norm': dict(decay_mult=0.)}))
model = dict(depths={{_base_.depths}}, names=['a' 'b', r'\d', """c"""], size=[128 // 8, -2 ** 3, 7 % 3])
data = {'x': None, 1: True}; pass
