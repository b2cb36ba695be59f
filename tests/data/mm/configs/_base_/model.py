norm_cfg = dict(type='SyncBN', requires_grad=True)
model = dict(
    type='EncoderDecoder',
    backbone=dict(type='SwinTransformer', embed_dims=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24],
                  init_cfg=dict(type='Pretrained', checkpoint='swin.pth')),
    decode_head=dict(type='UPerHead', in_channels=[96, 192, 384, 768], norm_cfg=norm_cfg, dropout_ratio=0.1,
                     loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))
