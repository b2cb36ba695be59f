"""Eager PyTorch reference of the LSS + Swin bird's-eye-view segmentation model (docs: tests/parity/bev/README.md).

Plain, readable, unfused: this is what aerie is compared with, in numbers (make_golden.py) and in time (bench_bev.py).
Needs torch and numpy only. Profiles: seed (the default), bf, lss, and tiny_* of each with the same code paths.

Batch (a dict): img u8 or float [B,N,3,H,W] (u8 is normalised here), camera2lidar / intrin / img_aug f32
[B,N,4,4], bev_aug f32 [B,4,4], gt u8 [B,K,nx,ny]. First spatial axis of every BEV map is x, second is y.
"""
import functools
import math
from dataclasses import dataclass, field, replace
from typing import Dict, Optional, Tuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES = ("drivable_area", "ped_crossing", "walkway", "stop_line", "carpark_area", "divider")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Bound = Tuple[float, float, float]


@dataclass
class Config:
    name: str = "seed"
    image: Tuple[int, int] = (128, 352)              # network input H, W
    cams: int = 6
    # backbone
    embed: int = 96
    depths: Tuple[int, ...] = (2, 2, 6, 2)
    heads: Tuple[int, ...] = (3, 6, 12, 24)
    window: int = 7
    mlp_ratio: int = 4
    drop_path: float = 0.3
    zero_shift_single_window: bool = False           # torchvision behaviour when true
    # neck: finest Swin stage it reads; 1 = stride 8 (two fusion steps), 2 = stride 16 (one step)
    neck: int = 256
    first_stage: int = 1
    # view transform
    dbound: Bound = (1.0, 60.0, 1.0)
    context: int = 64
    xbound: Bound = (-50.0, 50.0, 0.5)
    ybound: Bound = (-50.0, 50.0, 0.5)
    zbound: Bound = (-10.0, 10.0, 20.0)
    rounding: str = "trunc"                          # trunc | floor
    downsample: int = 1                              # 1 | 2 (the tail of 5.5)
    # BEV network: "encode" = BevEncode of 5.9, "fpn" = GeneralizedResNet + LSSFPN + grid resampling + classifier
    bev: str = "encode"
    bev_width: int = 64                              # encode: 64, 128, 256 and 256, 128 after the two ups
    dec: Tuple[Tuple[int, int], ...] = ((160, 2), (320, 2), (640, 1))
    dec_out: int = 256
    out_x: Bound = (-50.0, 50.0, 0.5)                # fpn only: scope of the output map
    out_y: Bound = (-50.0, 50.0, 0.5)
    classes: Tuple[str, ...] = CLASSES
    loss: str = "focal"                              # focal | xent
    # execution choices of the reference, not part of the model
    pool: str = "index_add"                          # index_add | cumsum | sort
    attn: str = "explicit"                           # explicit | sdpa
    vtransform_fp32: bool = False                    # depth net in fp32 under autocast (what BF does)
    channels_last: bool = False

    @property
    def depth_bins(self) -> int:
        return len(np.arange(*self.dbound))

    def cells(self) -> Tuple[int, int, int]:
        return tuple(int(round((hi - lo) / st)) for lo, hi, st in (self.xbound, self.ybound, self.zbound))


def profile(name: str, /, **over) -> Config:
    bf = Config(name="bf", image=(256, 704), dbound=(1.0, 60.0, 0.5), context=80, xbound=(-51.2, 51.2, 0.4),
                ybound=(-51.2, 51.2, 0.4), downsample=2, bev="fpn")
    tiny = dict(embed=8, heads=(1, 2, 2, 4), mlp_ratio=2, drop_path=0.0, neck=12, context=6, cams=2)
    table = {
        "seed": Config(),
        "bf": bf,
        "lss": Config(name="lss", dbound=(4.0, 45.0, 1.0), first_stage=2),
        "tiny_seed": Config(name="tiny_seed", image=(48, 64), depths=(2, 2, 2, 2), dbound=(1.0, 9.0, 1.0), bev_width=4,
                            xbound=(-6.0, 6.0, 0.5), ybound=(-4.0, 4.0, 0.5), classes=CLASSES[:3], **tiny),
        "tiny_bf": replace(bf, name="tiny_bf", image=(48, 64), depths=(1, 1, 2, 1), dbound=(1.0, 9.0, 0.5),
                           xbound=(-6.4, 6.4, 0.4), ybound=(-4.8, 4.8, 0.4), dec=((8, 2), (12, 2), (16, 1)), dec_out=10,
                           out_x=(-5.0, 5.0, 0.5), out_y=(-3.5, 3.5, 0.5), classes=CLASSES[:4], **tiny),
        "tiny_lss": Config(name="tiny_lss", image=(48, 64), depths=(1, 1, 1, 1), dbound=(1.0, 8.0, 1.0), first_stage=2,
                           bev_width=4, xbound=(-6.0, 6.0, 0.5), ybound=(-4.0, 4.0, 0.5), classes=CLASSES[:1], **tiny),
    }
    return replace(table[name], **over)


# ------------------------------------------------------------------------------------------------ Swin backbone (4.1)

def drop_path(x, rate, training, keep=None):
    """Per-image stochastic depth. `keep` (0/1 per image) replaces the random draw in tests."""
    if keep is None:
        if rate == 0.0 or not training:
            return x
        keep = (torch.rand(x.shape[0], device=x.device) >= rate)
    return x * (keep.to(x.dtype) / (1.0 - rate)).view(-1, *[1] * (x.dim() - 1))


def relative_index(w: int) -> torch.Tensor:
    y, x = torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")
    y, x = y.flatten(), x.flatten()
    return (y[:, None] - y[None, :] + w - 1) * (2 * w - 1) + (x[:, None] - x[None, :] + w - 1)


def to_windows(x, w):                                  # [B,H,W,C] -> [B*nW, w*w, C], windows row by row
    b, h, ww, c = x.shape
    return x.view(b, h // w, w, ww // w, w, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, c)


def from_windows(x, w, b, h, ww):
    return x.view(b, h // w, ww // w, w, w, -1).permute(0, 1, 3, 2, 4, 5).reshape(b, h, ww, -1)


class WindowMSA(nn.Module):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.window, self.scale = heads, window, (dim // heads) ** -0.5
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self.register_buffer("index", relative_index(window), persistent=False)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask, sdpa=False):            # x [B*nW, T, C], mask [nW, T, T] or None
        n, t, c = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        bias = self.relative_position_bias_table[self.index.view(-1)].view(t, t, -1).permute(2, 0, 1).unsqueeze(0)
        if sdpa:
            add = bias if mask is None else (bias + mask.unsqueeze(1)).repeat(n // mask.shape[0], 1, 1, 1)
            x = F.scaled_dot_product_attention(q, k, v, attn_mask=add.to(q.dtype).expand(n, -1, -1, -1), scale=self.scale)
        else:
            a = (q * self.scale) @ k.transpose(-2, -1) + bias
            if mask is not None:
                a = (a.view(-1, mask.shape[0], self.heads, t, t) + mask[None, :, None]).view(n, self.heads, t, t)
            x = a.softmax(-1).to(v.dtype) @ v
        return self.proj(x.transpose(1, 2).reshape(n, t, c))


def region_mask(h, w, window, shift, device):
    """Additive mask [nW, T, T] of the padded h x w map for a shift (sy, sx): -100 between different regions."""
    def regions(n, s):
        r = torch.zeros(n, dtype=torch.long)
        if s:
            r[n - window:n - s] = 1
            r[n - s:] = 2
        return r
    label = (regions(h, shift[0])[:, None] * 3 + regions(w, shift[1])[None, :]).view(1, h, w, 1)
    label = to_windows(label, window).squeeze(-1)
    return torch.where(label[:, :, None] == label[:, None, :], 0.0, -100.0).to(device)


class ShiftWindowMSA(nn.Module):
    def __init__(self, dim, heads, window, shift, zero_single):
        super().__init__()
        self.window, self.shift, self.zero_single = window, shift, zero_single
        self.w_msa = WindowMSA(dim, heads, window)
        self.masks: Dict[tuple, torch.Tensor] = {}

    def forward(self, x, sdpa=False):                  # x [B,H,W,C], already normalised by norm1
        b, h, w, c = x.shape
        win = self.window
        x = F.pad(x, (0, 0, 0, -w % win, 0, -h % win))
        hp, wp = x.shape[1:3]
        sy = sx = self.shift
        if self.zero_single:
            sy, sx = (0 if hp <= win else sy), (0 if wp <= win else sx)
        mask = None
        if sy or sx:
            x = torch.roll(x, (-sy, -sx), (1, 2))
            key = (hp, wp, sy, sx, x.device)
            if key not in self.masks:
                self.masks[key] = region_mask(hp, wp, win, (sy, sx), x.device)
            mask = self.masks[key].to(x.dtype if x.dtype == torch.float64 else torch.float32)
        x = from_windows(self.w_msa(to_windows(x, win), mask, sdpa), win, b, hp, wp)
        if sy or sx:
            x = torch.roll(x, (sy, sx), (1, 2))
        return x[:, :h, :w]


class FFN(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.Sequential(nn.Linear(dim, hidden), nn.GELU()), nn.Linear(hidden, dim))

    def forward(self, x):
        return self.layers(x)


class SwinBlock(nn.Module):
    def __init__(self, dim, heads, window, shift, mlp_ratio, rate, zero_single):
        super().__init__()
        self.rate = rate
        self.norm1 = nn.LayerNorm(dim)
        self.attn = ShiftWindowMSA(dim, heads, window, shift, zero_single)
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = FFN(dim, mlp_ratio * dim)

    def forward(self, x, sdpa=False, keep=(None, None)):
        x = x + drop_path(self.attn(self.norm1(x), sdpa), self.rate, self.training, keep[0])
        return x + drop_path(self.ffn(self.norm2(x)), self.rate, self.training, keep[1])


class PatchMerging(nn.Module):
    """2x2 gather in mmdet order: channel = 4*c + 2*row + col."""
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x):
        b, h, w, c = x.shape
        x = F.pad(x, (0, 0, 0, w % 2, 0, h % 2))
        x = x.view(b, (h + 1) // 2, 2, (w + 1) // 2, 2, c).permute(0, 1, 3, 5, 2, 4).reshape(b, (h + 1) // 2, (w + 1) // 2, 4 * c)
        return self.reduction(self.norm(x))


class PatchEmbed(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.projection = nn.Conv2d(3, dim, 4, 4)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):                              # [B,3,H,W] -> [B,h,w,C]
        x = F.pad(x, (0, -x.shape[3] % 4, 0, -x.shape[2] % 4))
        return self.norm(self.projection(x).permute(0, 2, 3, 1))


class Stage(nn.Module):
    def __init__(self, blocks, downsample):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        if downsample is not None:
            self.downsample = downsample


class Swin(nn.Module):
    def __init__(self, c: Config, out_indices=None):
        super().__init__()
        out_indices = tuple(range(c.first_stage, 4)) if out_indices is None else out_indices
        self.out_indices, self.sdpa, self.channels_last = out_indices, c.attn == "sdpa", c.channels_last
        self.patch_embed = PatchEmbed(c.embed)
        rates = torch.linspace(0, c.drop_path, sum(c.depths)).tolist()
        self.stages = nn.ModuleList()
        for s, depth in enumerate(c.depths):
            dim = c.embed << s
            blocks = [SwinBlock(dim, c.heads[s], c.window, (c.window // 2) * (b % 2), c.mlp_ratio, rates.pop(0),
                                c.zero_shift_single_window) for b in range(depth)]
            self.stages.append(Stage(blocks, PatchMerging(dim) if s + 1 < len(c.depths) else None))
        for i in out_indices:
            self.add_module(f"norm{i}", nn.LayerNorm(c.embed << i))

    def forward(self, x, tap=None):
        x = self.patch_embed(x)
        if tap is not None:
            tap("patch_embed", x)
        outs = []
        for s, stage in enumerate(self.stages):
            for b, block in enumerate(stage.blocks):
                x = block(x, self.sdpa)
                if tap is not None:
                    tap(f"swin.{s}.{b}", x)
            if s in self.out_indices:
                y = getattr(self, f"norm{s}")(x).permute(0, 3, 1, 2)
                outs.append(y.contiguous(memory_format=torch.channels_last if self.channels_last else torch.contiguous_format))
                if tap is not None:
                    tap(f"l{len(outs) - 1}", outs[-1])
            if hasattr(stage, "downsample"):
                x = stage.downsample(x)
        return outs


# ------------------------------------------------------------------------------------------------ neck (5.1)

class ConvModule(nn.Module):
    def __init__(self, cin, cout, k):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, k, padding=k // 2, bias=False)
        self.bn = nn.BatchNorm2d(cout)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Neck(nn.Module):
    """GeneralizedLSSFPN over the stages the backbone gives, finest first; only the finest result is used."""
    def __init__(self, c: Config):
        super().__init__()
        dims = [c.embed << i for i in range(c.first_stage, 4)]
        last = len(dims) - 1
        self.lateral_convs = nn.ModuleList(ConvModule(dims[i] + (dims[last] if i == last - 1 else c.neck), c.neck, 1) for i in range(last))
        self.fpn_convs = nn.ModuleList(ConvModule(c.neck, c.neck, 3) for _ in range(last))

    def forward(self, feats, tap=None):
        x = feats[-1]
        for i in range(len(feats) - 2, -1, -1):
            up = F.interpolate(x, size=feats[i].shape[2:], mode="bilinear", align_corners=False)
            x = self.fpn_convs[i](self.lateral_convs[i](torch.cat([feats[i], up], 1)))
            if tap is not None:
                tap(f"neck{i}", x)
        return x


# ------------------------------------------------------------------------------------------------ geometry (5.3)

_CONST: Dict[tuple, torch.Tensor] = {}


def const(values, device, dtype=torch.float32):
    """a small constant on the device, copied there once (no transfer inside a step)"""
    key = (tuple(values), str(device), dtype)
    if key not in _CONST:
        _CONST[key] = torch.tensor(values, dtype=dtype).to(device)
    return _CONST[key]


@functools.lru_cache(maxsize=None)
def frustum_axes(image, feat, dbound, device=None):
    """u[w], v[h], d[k] in float32: linspace from 0 to size-1 over the ACTUAL feature size, and lo + k*step."""
    u = torch.linspace(0, image[1] - 1, feat[1], dtype=torch.float32)
    v = torch.linspace(0, image[0] - 1, feat[0], dtype=torch.float32)
    d = torch.tensor([dbound[0] + k * dbound[2] for k in range(len(np.arange(*dbound)))], dtype=torch.float32)
    return u.to(device), v.to(device), d.to(device)


def inverse(m):
    """2x2 or 3x3 by cofactors: no LU, no host synchronisation"""
    if m.shape[-1] == 2:
        adj = torch.stack((m[..., 1, 1], -m[..., 0, 1], -m[..., 1, 0], m[..., 0, 0]), -1).view(m.shape)
        return adj / (m[..., 0, 0] * m[..., 1, 1] - m[..., 0, 1] * m[..., 1, 0])[..., None, None]
    a, b, c = m.unbind(-1)
    rows = torch.stack((torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)), -2)
    return rows / (a * rows[..., 0, :]).sum(-1)[..., None, None]


def fused_geometry(camera2lidar, intrin, img_aug, bev_aug):
    """Q [B,N,3,3], r [B,N,3] with x' = d * (Q (u,v,1)) + r. Composed in float64, cast once to float32.
    Valid because img_aug only touches rows and columns 0, 1 and 3 (depth is left alone)."""
    c2l, k, m, a = (t.double() for t in (camera2lidar, intrin, img_aug, bev_aug))
    undo = torch.zeros_like(m[..., :3, :3])
    inv2 = inverse(m[..., :2, :2])
    undo[..., :2, :2] = inv2
    undo[..., :2, 2] = -(inv2 @ m[..., :2, 3:4]).squeeze(-1)
    undo[..., 2, 2] = 1.0
    rot = a[:, None, :3, :3]
    q = rot @ c2l[..., :3, :3] @ inverse(k[..., :3, :3]) @ undo
    r = (rot @ c2l[..., :3, 3:4]).squeeze(-1) + a[:, None, :3, 3]
    return q.float(), r.float()


def frustum_points(q, r, u, v, d):
    """[B,N,D,h,w,3] float32. Order of operations: ray = (Q0*u + Q1*v) + Q2; point = d*ray + r. No FMA assumed."""
    ray = (q[..., 0][:, :, None, None] * u.view(1, 1, 1, -1, 1) + q[..., 1][:, :, None, None] * v.view(1, 1, -1, 1, 1)) + q[..., 2][:, :, None, None]
    return d.view(1, 1, -1, 1, 1, 1) * ray[:, :, None] + r[:, :, None, None, None]


def cell_index(points, bounds, n, rounding="trunc"):
    """int64 [B,N,D,h,w]: b*nz*nx*ny + (iz*nx + ix)*ny + iy, or -1 where the point is dropped.
    The test is done in float so that huge or NaN coordinates never reach an integer conversion."""
    lo, size = const([b[0] for b in bounds], points.device), const([b[2] for b in bounds], points.device)
    t = (points - lo) / size
    t = t.trunc() if rounding == "trunc" else t.floor()
    kept = ((t >= 0) & (t < const(n, points.device))).all(-1)              # -0.0 >= 0 holds, so (-1, 0) survives trunc
    i = torch.where(kept[..., None], t, torch.zeros_like(t)).long()
    batch = torch.arange(points.shape[0], device=points.device).view(-1, *[1] * (points.dim() - 2))
    flat = ((batch * n[2] + i[..., 2]) * n[0] + i[..., 0]) * n[1] + i[..., 1]
    return torch.where(kept, flat, torch.full_like(flat, -1))


# ------------------------------------------------------------------------------------------------ pooling (5.4)

class CumsumPool(torch.autograd.Function):
    """Sums rows of x (sorted by rank) per equal rank, by prefix sums; gradient is a gather."""
    @staticmethod
    def forward(ctx, x, rank):
        last = torch.ones_like(rank, dtype=torch.bool)
        last[:-1] = rank[1:] != rank[:-1]
        s = x.cumsum(0)[last]
        ctx.save_for_backward(last)
        return torch.cat((s[:1], s[1:] - s[:-1])), rank[last]

    @staticmethod
    def backward(ctx, g, _):
        last, = ctx.saved_tensors
        group = last.cumsum(0) - last.long()
        return g[group], None


def splat(depth, context, cell, b, n, how="index_add"):
    """depth [BN,D,h,w], context [BN,C,h,w], cell [B,N,D,h,w] -> [B, nz*C, nx, ny]; output channel = z*C + c."""
    c = context.shape[1]
    size = b * n[0] * n[1] * n[2]
    lifted = (depth.unsqueeze(-1) * context.permute(0, 2, 3, 1).unsqueeze(1)).reshape(-1, c)      # [points, C], one copy only
    cell = cell.reshape(-1)
    if how == "index_add":                             # static shapes: dropped points go to one extra row
        out = lifted.new_zeros(size + 1, c).index_add_(0, torch.where(cell < 0, size, cell), lifted)[:size]
    else:
        kept = cell >= 0
        lifted, cell = lifted[kept], cell[kept]
        order = cell.argsort(stable=True)
        lifted, cell = lifted[order], cell[order]
        if how == "cumsum":
            s, where = CumsumPool.apply(lifted, cell)
        else:                                          # "sort": per-interval sums, no prefix cancellation
            where, counts = torch.unique_consecutive(cell, return_counts=True)
            s = torch.segment_reduce(lifted, "sum", lengths=counts, axis=0)
        out = lifted.new_zeros(size, c).index_put((where,), s)
    return out.view(b, n[2], n[0], n[1], c).permute(0, 1, 4, 2, 3).reshape(b, n[2] * c, n[0], n[1])


class VTransform(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c, self.d = c, c.depth_bins
        self.depthnet = nn.Conv2d(c.neck, self.d + c.context, 1)
        ch = c.context * c.cells()[2]
        if c.downsample == 2:
            self.downsample = nn.Sequential(*[m for s in (1, 2, 1) for m in (
                nn.Conv2d(ch, ch, 3, s, 1, bias=False), nn.BatchNorm2d(ch), nn.ReLU())])
        else:
            assert c.downsample == 1
            self.downsample = nn.Identity()

    def cells(self, batch, feat):
        c = self.c
        u, v, d = frustum_axes(c.image, tuple(feat), c.dbound, batch["camera2lidar"].device)
        q, r = fused_geometry(batch["camera2lidar"], batch["intrin"], batch["img_aug"], batch["bev_aug"])
        pts = frustum_points(q, r, u, v, d)
        return pts, cell_index(pts, (c.xbound, c.ybound, c.zbound), c.cells(), c.rounding)

    def forward(self, x, batch, tap=None):
        c, b = self.c, batch["camera2lidar"].shape[0]
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            pts, cell = self.cells(batch, x.shape[2:])
        with torch.autocast(x.device.type, enabled=torch.is_autocast_enabled(x.device.type) and not c.vtransform_fp32):
            y = self.depthnet(x.float() if c.vtransform_fp32 else x)
        logits, context = y[:, :self.d], y[:, self.d:]
        hi = torch.float64 if x.dtype == torch.float64 else torch.float32
        depth, context = logits.to(hi).softmax(1), context.to(hi)
        bev = splat(depth, context, cell, b, c.cells(), c.pool)
        if c.channels_last:
            bev = bev.contiguous(memory_format=torch.channels_last)
        if tap is not None:
            for k, t in dict(depth_logits=logits, context=context, depth=depth, points=pts, cell=cell, pooled=bev).items():
                tap(k, t)
        return self.downsample(bev)


# ------------------------------------------------------------------------------------------------ BEV networks (5.6, 5.7, 5.9)

class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


def layer(cin, cout, stride):
    return nn.Sequential(BasicBlock(cin, cout, stride), BasicBlock(cout, cout, 1))


def conv_bn_relu(cin, cout, k):
    return [nn.Conv2d(cin, cout, k, padding=k // 2, bias=False), nn.BatchNorm2d(cout), nn.ReLU()]


def upsample(x, **kw):
    return F.interpolate(x, mode="bilinear", align_corners=True, **kw)


class Up(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Sequential(*conv_bn_relu(cin, cout, 3), *conv_bn_relu(cout, cout, 3))


class BevEncode(nn.Module):
    def __init__(self, cin, w, k):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, w, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(w)
        self.layer1, self.layer2, self.layer3 = layer(w, w, 1), layer(w, 2 * w, 2), layer(2 * w, 4 * w, 2)
        self.up1 = Up(5 * w, 4 * w)
        self.up2 = nn.Sequential(nn.Identity(), *conv_bn_relu(4 * w, 2 * w, 3), nn.Conv2d(2 * w, k, 1))

    def forward(self, x, tap=None):
        x1 = self.layer1(F.relu(self.bn1(self.conv1(x))))
        x3 = self.layer3(self.layer2(x1))
        y = self.up1.conv(torch.cat([x1, upsample(x3, scale_factor=4)], 1))     # skip first, upsampled second
        z = self.up2(upsample(y, scale_factor=2))
        if tap is not None:
            tap("bev_layer1", x1), tap("bev_layer3", x3), tap("bev_up1", y)
        return z


class LSSFPN(nn.Module):
    def __init__(self, c_hi, c_lo, cout):
        super().__init__()
        self.fuse = nn.Sequential(*conv_bn_relu(c_hi + c_lo, cout, 1), *conv_bn_relu(cout, cout, 3))
        self.upsample = nn.Sequential(nn.Identity(), *conv_bn_relu(cout, cout, 3))

    def forward(self, hi, lo):
        x = self.fuse(torch.cat([upsample(hi, size=lo.shape[2:]), lo], 1))      # upsampled first, skip second
        return self.upsample(upsample(x, scale_factor=2))


def scope_grid(src_x, src_y, out_x, out_y):
    """grid_sample grid [1, nx, ny, 2] (last = (y, x) because y is the fast axis), align_corners=False."""
    def axis(src, out):
        n = int(round((out[1] - out[0]) / out[2]))
        x = out[0] + (np.arange(n, dtype=np.float64) + 0.5) * out[2]
        return torch.from_numpy(((x - src[0]) / (src[1] - src[0]) * 2 - 1).astype(np.float32))
    gx, gy = torch.meshgrid(axis(src_x, out_x), axis(src_y, out_y), indexing="ij")
    return torch.stack((gy, gx), -1)[None]


class SegHead(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        w = c.dec_out
        self.register_buffer("grid", scope_grid(c.xbound, c.ybound, c.out_x, c.out_y), persistent=False)
        self.classifier = nn.Sequential(*conv_bn_relu(w, w, 3), *conv_bn_relu(w, w, 3), nn.Conv2d(w, len(c.classes), 1))

    def forward(self, x, tap=None):
        x = F.grid_sample(x.to(self.grid.dtype), self.grid.expand(x.shape[0], -1, -1, -1), mode="bilinear", padding_mode="zeros", align_corners=False)
        if tap is not None:
            tap("resampled", x)
        return self.classifier(x)


# ------------------------------------------------------------------------------------------------ the model

def normalise(img):
    if img.dtype == torch.uint8:
        m, s = (const(t, img.device).view(3, 1, 1) for t in (MEAN, STD))
        img = (img.float() / 255.0 - m) / s
    return img


class BevModel(nn.Module):
    """Parameter names are BF's; BevEncode of profiles seed and lss is `bevencode.*` with LSS's names."""
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.encoders = nn.ModuleDict({"camera": nn.ModuleDict({"backbone": Swin(c), "neck": Neck(c), "vtransform": VTransform(c)})})
        cin = c.context * c.cells()[2]
        if c.bev == "encode":
            self.bevencode = BevEncode(cin, c.bev_width, len(c.classes))
        else:
            res = nn.ModuleList()
            for w, s in c.dec:
                res.append(layer(cin, w, s))
                cin = w
            self.decoder = nn.ModuleDict({"backbone": res, "neck": LSSFPN(c.dec[-1][0], c.dec[0][0], c.dec_out)})
            self.heads = nn.ModuleDict({"map": SegHead(c)})
        init_weights(self)

    def forward(self, batch, tap=None):
        c, cam = self.c, self.encoders["camera"]
        x = normalise(batch["img"]).flatten(0, 1)
        if c.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        x = cam["neck"](cam["backbone"](x, tap), tap)
        x = cam["vtransform"](x, batch, tap)
        if c.bev == "encode":
            x = self.bevencode(x, tap)
        else:
            if tap is not None:
                tap("tail", x)
            outs = []
            for i, stage in enumerate(self.decoder["backbone"]):
                x = stage(x)
                outs.append(x)
                if tap is not None:
                    tap(f"decoder{i}", x)
            x = self.decoder["neck"](outs[-1], outs[0])
            if tap is not None:
                tap("decoder_neck", x)
            x = self.heads["map"](x, tap)
        if tap is not None:
            tap("logits", x)
        return x


def init_weights(model):
    """Section 4.1 for the backbone; the rest keeps PyTorch's layer defaults, except the neck (fan-out normal, as ConvModule)
    and the last BN scale of every residual block of BevEncode (zero, as LSS)."""
    for name, m in model.named_modules():
        if isinstance(m, nn.Linear):
            nn.init.trunc_normal_(m.weight, std=0.02)
            if m.bias is not None:
                nn.init.zeros_(m.bias)
        elif isinstance(m, WindowMSA):
            nn.init.trunc_normal_(m.relative_position_bias_table, std=0.02)
        elif isinstance(m, ConvModule):
            nn.init.kaiming_normal_(m.conv.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(m, BasicBlock) and name.startswith("bevencode"):
            nn.init.zeros_(m.bn2.weight)


# ------------------------------------------------------------------------------------------------ loss, optimiser, metric

def losses(logits, gt, c: Config, class_weights=None) -> Dict[str, torch.Tensor]:
    """Per-class mean over batch and cells, fp32; total is their plain sum."""
    z = logits if logits.dtype == torch.float64 else logits.float()
    y = gt.to(z.dtype)
    bce = F.binary_cross_entropy_with_logits(z, y, reduction="none")
    if c.loss == "focal":
        p = z.sigmoid()
        bce = bce * (1 - (p * y + (1 - p) * (1 - y))) ** 2
    per = bce.mean((0, 2, 3))
    if class_weights is not None:
        per = per * class_weights
    out = {f"loss/map/{k}/{c.loss}": per[i] for i, k in enumerate(c.classes)}
    out["loss"] = per.sum()
    return out


def vehicle_loss(logits, gt, pos_weight=2.13):
    return F.binary_cross_entropy_with_logits(logits.float(), gt.float(), pos_weight=torch.tensor([pos_weight], device=logits.device))


def param_groups(model, weight_decay=0.01):
    none = lambda n: "relative_position_bias_table" in n or "absolute_pos_embed" in n
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return [{"params": [p for n, p in named if not none(n)], "weight_decay": weight_decay},
            {"params": [p for n, p in named if none(n)], "weight_decay": 0.0}]


THRESHOLDS = (0.35, 0.40, 0.45, 0.50, 0.55, 0.60, 0.65)


class MapIoU:
    """Section 5.11, BF: pred = p >= thr with both in float32; counts in int64 over the whole set."""
    def __init__(self, k, thresholds=THRESHOLDS):
        self.thr = torch.tensor(thresholds, dtype=torch.float32)
        self.count = torch.zeros(3, k, len(thresholds), dtype=torch.int64)

    def update(self, prob, gt):                        # [B,K,*,*]
        k = prob.shape[1]
        p = prob.float().transpose(0, 1).reshape(k, -1, 1) >= self.thr.to(prob.device)
        y = gt.bool().transpose(0, 1).reshape(k, -1, 1)
        self.count += torch.stack(((p & y).sum(1), (p & ~y).sum(1), (~p & y).sum(1))).cpu()

    def compute(self, classes) -> Dict[str, float]:
        tp, fp, fn = self.count.double()
        iou = tp / (tp + fp + fn + 1e-7)
        out = {}
        for i, name in enumerate(classes):
            out[f"map/{name}/iou@max"] = iou[i].max().item()
            out.update({f"map/{name}/iou@{t:.2f}": iou[i, j].item() for j, t in enumerate(self.thr.tolist())})
        out["map/mean/iou@max"] = iou.max(1).values.mean().item()
        return out


# ------------------------------------------------------------------------------------------------ rig and augmentation for synthetic batches

RIG = (  # spec 8.1: name, x, y, z, yaw (deg), focal
    ("CAM_FRONT", 1.70, 0.00, 1.51, 0.0, 1260.0), ("CAM_FRONT_RIGHT", 1.55, -0.50, 1.50, -55.0, 1260.0),
    ("CAM_FRONT_LEFT", 1.52, 0.50, 1.51, 55.0, 1260.0), ("CAM_BACK", 0.03, 0.00, 1.57, 180.0, 810.0),
    ("CAM_BACK_LEFT", 1.04, 0.48, 1.59, 110.0, 1260.0), ("CAM_BACK_RIGHT", 1.01, -0.48, 1.56, -110.0, 1260.0))
LIDAR = (0.94, 0.0, 1.84, -90.0)


def rot_z(a):
    return np.array([[math.cos(a), -math.sin(a), 0], [math.sin(a), math.cos(a), 0], [0, 0, 1.0]])


def rot_x(a):
    return np.array([[1.0, 0, 0], [0, math.cos(a), -math.sin(a)], [0, math.sin(a), math.cos(a)]])


def rot_y(a):
    return np.array([[math.cos(a), 0, math.sin(a)], [0, 1.0, 0], [-math.sin(a), 0, math.cos(a)]])


def pose(rotation, t):
    m = np.eye(4)
    m[:3, :3], m[:3, 3] = rotation, t
    return m


OPTICAL = np.array([[0.0, 0, 1], [-1, 0, 0], [0, -1, 0]])        # optical axes (right, down, forward) in (forward, left, up)


def rig_matrices(rng=None):
    """camera2lidar and intrin, float64 [6,4,4]; rng adds +-1 deg roll/pitch and +-1 % focal length."""
    j = (lambda s: 0.0) if rng is None else (lambda s: rng.uniform(-s, s))
    l2e = pose(rot_z(math.radians(LIDAR[3])), LIDAR[:3])
    c2l, ks = [], []
    for _, x, y, z, yaw, f in RIG:
        r = rot_z(math.radians(yaw)) @ rot_y(math.radians(j(1.0))) @ rot_x(math.radians(j(1.0))) @ OPTICAL
        c2l.append(np.linalg.inv(l2e) @ pose(r, (x, y, z)))
        k = np.eye(4)
        k[0, 0] = k[1, 1] = f * (1 + j(0.01))
        k[0, 2], k[1, 2] = 800.0, 450.0
        ks.append(k)
    return np.stack(c2l), np.stack(ks)


def image_aug(s, crop, flip, degrees, final):
    """Spec 3.1: 4x4 acting on original pixel coordinates."""
    h, w = final
    a = math.radians(degrees)
    rot = np.array([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]])
    f = np.diag([-1.0, 1.0]) if flip else np.eye(2)
    t = rot @ (f @ -np.asarray(crop, float) + np.array([w if flip else 0.0, 0.0])) + (np.eye(2) - rot) @ np.array([w / 2, h / 2])
    m = np.eye(4)
    m[:2, :2], m[:2, 3] = s * (rot @ f), t
    return m


def draw_image_aug(rng, final, resize, bot=(0.0, 0.0), rot=5.4, flip=True, src=(900, 1600)):
    s = rng.uniform(*resize)
    nw, nh = int(src[1] * s), int(src[0] * s)
    crop = (int(rng.uniform(0, max(0, nw - final[1]))), int((1 - rng.uniform(*bot)) * nh) - final[0])
    return image_aug(s, crop, bool(flip and rng.integers(2)), rng.uniform(-rot, rot), final)


def test_image_aug(final, s, bot=0.0, src=(900, 1600)):
    nw, nh = int(src[1] * s), int(src[0] * s)
    return image_aug(s, (int(max(0, nw - final[1]) / 2), int((1 - bot) * nh) - final[0]), False, 0.0, final)


def bev_augmentation(s=1.0, theta=0.0, t=(0.0, 0.0, 0.0), flip_y=False, flip_x=False):
    """Spec 3.2 and 3.3: p' = s (Rz(-theta) p + t), then flips ("horizontal" negates y, "vertical" negates x)."""
    m = np.eye(4)
    m[:3, :3], m[:3, 3] = s * rot_z(-theta), s * np.asarray(t, float)
    m[:3] = np.diag([-1.0 if flip_x else 1.0, -1.0 if flip_y else 1.0, 1.0]) @ m[:3]
    return m


def synthetic_batch(c: Config, b, seed=0, device="cpu", train=True):
    """Random pixels and labels on the rig of 8.1, scaled for tiny grids so that points still fall into the map."""
    rng = np.random.default_rng(seed)
    resize, bot = (((0.38, 0.55), (0.0, 0.0)) if c.image[0] >= 256 else ((0.193, 0.225), (0.0, 0.22)))
    if c.image[0] < 128:
        resize, bot = (0.06, 0.075), (0.0, 0.0)
    c2l, k, m, a = [], [], [], []
    for _ in range(b):
        x, y = rig_matrices(rng)
        pick = [i % 6 for i in range(c.cams)]
        c2l.append(x[pick]), k.append(y[pick])
        m.append(np.stack([draw_image_aug(rng, c.image, resize, bot) if train else test_image_aug(c.image, sum(resize) / 2, sum(bot) / 2)
                           for _ in pick]))
        a.append(bev_augmentation(rng.uniform(0.9, 1.1), rng.uniform(-math.pi / 4, math.pi / 4), rng.normal(0, 0.5, 3),
                                  bool(rng.integers(2)), bool(rng.integers(2))) if train else np.eye(4))
    f = lambda t: torch.from_numpy(np.stack(t)).float().to(device)
    n = [int(round((o[1] - o[0]) / o[2])) for o in ((c.xbound, c.ybound) if c.bev == "encode" else (c.out_x, c.out_y))]
    img = torch.from_numpy(rng.integers(0, 256, (b, c.cams, 3, *c.image), dtype=np.uint8)).to(device)
    gt = torch.from_numpy((rng.random((b, len(c.classes), *n)) < 0.3).astype(np.uint8)).to(device)
    return dict(img=img, camera2lidar=f(c2l), intrin=f(k), img_aug=f(m), bev_aug=f(a), gt=gt)


# ------------------------------------------------------------------------------------------------ reproducible weights

def hash_uniform(name: str, count: int, seed: int) -> np.ndarray:
    """float32 in [-1, 1), bit-exact in any language:
    h = FNV-1a-64(name); z = seed*0xD1342543DE82EF95 + h + (i+1)*0x9E3779B97F4A7C15 (mod 2^64);
    z ^= z>>30; z *= 0xBF58476D1CE4E5B9; z ^= z>>27; z *= 0x94D049BB133111EB; z ^= z>>31; value = (z>>40) * 2^-23 - 1."""
    mask = (1 << 64) - 1
    h = 0xCBF29CE484222325
    for ch in name.encode():
        h = ((h ^ ch) * 0x100000001B3) & mask
    base = (seed * 0xD1342543DE82EF95 + h) & mask
    with np.errstate(over="ignore"):
        z = np.uint64(base) + (np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float32) * np.float32(2.0 ** -23) - np.float32(1.0)


@torch.no_grad()
def fill_weights(model, seed):
    """Every parameter from hash_uniform(name), f = its value:
    name ends with relative_position_bias_table: 0.5 f; 1-d `.weight` (LN, BN): 1 + 0.25 f; 1-d `.bias`: 0.125 f;
    otherwise f * float32(sqrt(3 / fan_in)), fan_in = product of all but the first dimension. BN running mean 0, variance 1."""
    for name, p in model.named_parameters():
        f = hash_uniform(name, p.numel(), seed)
        if name.endswith("relative_position_bias_table"):
            v = np.float32(0.5) * f
        elif p.dim() == 1:
            v = np.float32(1) + np.float32(0.25) * f if name.endswith("weight") else np.float32(0.125) * f
        else:
            v = f * np.float32(math.sqrt(3.0 / (p.numel() // p.shape[0])))
        p.copy_(torch.from_numpy(v.reshape(p.shape)))
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.reset_running_stats()
    return model


if __name__ == "__main__":
    import time
    for name in ("seed", "bf", "lss"):
        m = BevModel(profile(name))
        print(name, sum(p.numel() for p in m.parameters()), {k: sum(p.numel() for p in v.parameters()) for k, v in
              [*m.encoders["camera"].items(), *[(k, v) for k, v in m.named_children() if k != "encoders"]]})
    for name in ("tiny_seed", "tiny_bf", "tiny_lss"):
        c = profile(name)
        m, batch = fill_weights(BevModel(c), 1).train(), synthetic_batch(profile(name), 2)
        t = time.perf_counter()
        out = losses(m(batch), batch["gt"], c)
        out["loss"].backward()
        print(name, sum(p.numel() for p in m.parameters()), f"{out['loss'].item():.6f}", f"{(time.perf_counter() - t) * 1e3:.1f} ms")
