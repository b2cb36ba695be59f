"""A text on its own is a comment of the file."""
# -*- coding: utf-8 -*-
a_int = 1_000_000; b_int = 0x1F; c_int = 0o17; d_int = 0b1010; zero = 00
negative = -5
plus = +7
big = 123456789012345678901234567890
floats = [1., .5, 1e-3, 1E+3, 1_0.2_5, 6.02e23, -0.0, 1e-10]
single = 'it\'s'
double = "say \"hi\"\t\x41\u00e9\U0001F600\101\
end"
raw = r'C:\new\table'
unicode_prefix = u'plain'
triple = """two
lines "quoted" """
triple_single = '''a
'b'
'''
joined = ('one '
          "two " r'th\ree')
unknown_escape = '\d\q'
chinese = '混合精度'
flags = (True, False, None)
empty = [(), [], {}, dict(), '']
one_tuple = (1,)
bare_tuple = 1, 2, 3
parens = ((((5))))
nested = dict(
    a=[dict(b=(1, 2), c={'d': None})],  # a comment, with a bracket )
    e={'x-y': 1, 'z w': [1,
                         2, ], },
)
x = y = 3
x = x + 1
arith = [1 + 2 * 3, (1 + 2) * 3, 7 // 2, -7 // 2, 7 % -3, -7 % 3, 7 / 2, 2**10, 2**-1, -2**2,
         2**3**2, 7.5 // 2, -7.5 % 2, 1e-4 * 6, 3 - -2, 10 - 2 - 3, 100 / 4 / 5, True + 1]
data_root = 'data/nuscenes/'
ann_file = data_root + 'infos_train.pkl'
classes = ['car', 'truck'] + ['bus']
first = classes[0]
last = classes[-1]
value_of = nested['e']['x-y']
extended = dict(nested, f=1, e=2)
img_norm_cfg = dict(mean=[123.675, 116.28, 103.53], to_rgb=True)
pipeline = [dict(type='Load'), dict(type='Normalize', **img_norm_cfg), dict(**img_norm_cfg, size=(1, 2))]
unpacked = [*pipeline, dict(type='Last'), *classes]
overlaid = {**img_norm_cfg, 'to_rgb': False, **{'k': 1}, 'mean': None}
before = {'to_rgb': False, **img_norm_cfg}
repeated = [[None] * 2, 2 * [1, 2], [0] * 0, [1] * -3, '-' * 3, (1, 2) * 2]
repeated_key = {'k': 1, 'k': 2}
long = 1 + \
    2
__hidden = 'left out'
_kept = 'kept'
pass
