"""ConformerEncoder fixtures: every variant of the config keys, forward, all gradients, buffers after a training step."""
import copy
import random

import torch
import torch.nn.functional as F

from .common import patched, randn, randomize, rel_dev, rng, tensor_dict, write
from nemo.collections.asr.modules import ConformerEncoder

BASE = dict(feat_in=8, n_layers=1, d_model=8, feat_out=-1, subsampling="dw_striding", subsampling_factor=8,
            subsampling_conv_channels=4, ff_expansion_factor=2, self_attention_model="rel_pos", n_heads=2,
            att_context_size=[-1, -1], conv_kernel_size=5, dropout=0.0, dropout_pre_encoder=0.0, dropout_emb=0.0,
            dropout_att=0.0)
RAGGED = (2, 45, [45, 18])        # B, T, lengths; T is not a multiple of the factor
EDGE = (4, 25, [25, 17, 1, 0])       # a one-frame item and a fully padded row


def case(name, shape=RAGGED, training=False, grads=True, context=None, drop=None, dropout_seed=None, lengths=None):
    return dict(name=name, shape=shape, training=training, grads=grads, context=context, drop=drop,
                dropout_seed=dropout_seed)


def fwd_bwd(enc, c, x, lengths, cot_fn):
    """Run one case on `enc` (modified in place). Returns outputs, gradients, buffers, recorded draws."""
    enc.train(c["training"])
    taps, handles, draws = {}, [], {}
    pre = enc.pre_encode
    handles.append(pre.register_forward_hook(
        lambda m, i, o: taps.__setitem__("pre_encode", o[0] if isinstance(o, tuple) else o)))
    handles.append(enc.pos_enc.register_forward_hook(lambda m, i, o: taps.__setitem__("pos_emb", o[1])))
    for i, layer in enumerate(enc.layers):
        handles.append(layer.register_forward_hook(
            lambda m, a, o, i=i: taps.__setitem__(f"layer{i}", o)))
    rand_list = [0.0 if d else 1.0 - 1e-7 for d in (c["drop"] or []) if d is not None]
    mask_rng = rng(c["dropout_seed"]) if c["dropout_seed"] is not None else None

    def fake_choices(population, weights=None, **kw):
        return [list(c["context"])]

    def fake_rand(*size, **kw):
        return torch.tensor([rand_list.pop(0)])

    def fake_dropout(inp, p=0.5, training=True, inplace=False):
        if not training or p == 0.0:
            return inp
        keep = torch.from_numpy((mask_rng.random(tuple(inp.shape)) >= p).astype("uint8"))
        draws[f"dropout{len(draws):02d}"] = keep
        return inp * (keep.to(inp.dtype) / (1.0 - p))

    import contextlib
    with contextlib.ExitStack() as stack:
        if c["context"] is not None:
            stack.enter_context(patched(random, "choices", fake_choices))
        if c["drop"] is not None:
            stack.enter_context(patched(torch, "rand", fake_rand))
        if mask_rng is not None:
            stack.enter_context(patched(F, "dropout", fake_dropout))
        x = x.clone().requires_grad_(True)
        out, out_len = enc(audio_signal=x, length=lengths)
        cot = cot_fn(out)
        grads, none = {}, []
        if c["grads"]:
            for p in enc.parameters():
                p.grad = None
            (out * cot).sum().backward()
            for n, p in enc.named_parameters():
                if p.grad is None:
                    none.append(n)
                else:
                    grads[n] = p.grad.clone()
            grads["in.audio_signal"] = x.grad.clone()
    assert not rand_list
    for h in handles:
        h.remove()
    outs = {"encoded": out, "encoded_len": out_len, **taps}
    if c["training"]:
        outs.pop("pos_emb")
    after = {}
    if c["training"]:
        params = {n for n, _ in enc.named_parameters(remove_duplicate=False)}
        after = {k: v for k, v in enc.state_dict().items() if k not in params}
    return {k: v.detach() for k, v in outs.items()}, grads, after, draws, none, cot


def fixture(name, overrides, cases, seed, taps=True, f64=True):
    config = {**BASE, **overrides}
    enc = randomize(ConformerEncoder(**copy.deepcopy(config)), seed)
    if not config.get("untie_biases", True):
        for layer in enc.layers[1:]:
            assert layer.self_attn.pos_bias_u is enc.layers[0].self_attn.pos_bias_u
    tensors = {"w." + k: v for k, v in tensor_dict(enc).items()}
    meta = []
    for i, c in enumerate(cases):
        r = rng(1000 * seed + i)
        B, T, lengths = c["shape"]
        x = randn(r, B, config["feat_in"], T)
        length = torch.tensor(lengths, dtype=torch.int64)
        cot = []

        def cot_fn(out):
            if not cot:
                cot.append(randn(rng(1000 * seed + 500 + i), *out.shape, scale=0.3))
            return cot[0].to(out.dtype)

        outs, grads, after, draws, none, _ = fwd_bwd(copy.deepcopy(enc), c, x, length, cot_fn)
        m = dict(name=c["name"], training=c["training"], grads=c["grads"])
        if c["context"] is not None:
            m["att_context"] = c["context"]
        if c["drop"] is not None:
            m["drop_layers"] = [bool(d) for d in c["drop"]]
        if draws:
            m["dropout_draws"] = list(draws)
        if none:
            m["grad_none"] = none
        if f64:
            o64, g64, _, _, _, _ = fwd_bwd(copy.deepcopy(enc).double(), c, x.double(), length, cot_fn)
            m["f32_dev_out"] = float("%.2g" % rel_dev(outs["encoded"], o64["encoded"]))
            total = max(float(v.abs().max()) for v in g64.values()) if g64 else 1.0
            m["f32_dev_grad"] = float("%.2g" % max([float((grads[k].double() - g64[k]).abs().max()) / total
                                                     for k in g64] or [0.0]))
        p = f"case{i}."
        tensors[p + "in.audio_signal"] = x
        tensors[p + "in.length"] = length
        if c["grads"]:
            tensors[p + "in.cotangent"] = cot[0]
        for k, v in outs.items():
            if taps or k.startswith("encoded"):
                tensors[p + "out." + k] = v
        for k, v in grads.items():
            tensors[p + "grad." + k] = v
        for k, v in after.items():
            tensors[p + "after." + k] = v
        for k, v in draws.items():
            tensors[p + "draw." + k] = v
        meta.append(m)
    write("enc_" + name, "encoder", config, meta, tensors)


def all_fixtures():
    ev, tr = case("eval", grads=False), case("train", training=True)
    edge = case("edge_rows", EDGE, training=True)
    edge_ev = case("edge_rows_eval", EDGE, grads=False)
    seq = (17, 17, list(range(1, 18)))
    t1 = case("t1", (2, 1, [1, 1]), grads=False)
    t5 = case("t5", (2, 5, [5, 2]), grads=False)

    # The stock shape of a NEST config, small.
    fixture("stock", dict(feat_in=24, n_layers=2, d_model=16, n_heads=4, subsampling_conv_channels=8,
                          ff_expansion_factor=4, conv_kernel_size=9), [tr, ev, edge_ev], 1)
    # Subsampling kinds. `lengths` sweeps 1..17 in one batch.
    lens = case("lengths_1_to_17", seq, grads=False)
    fixture("dw8_lengths", dict(feat_in=10), [edge, lens, t1, t5], 2)
    fixture("dw4", dict(subsampling_factor=4, feat_in=13), [tr, lens, t1, t5], 3)
    fixture("dw2", dict(subsampling_factor=2, feat_in=9), [tr], 4)
    fixture("dw16", dict(subsampling_factor=16, feat_in=20), [tr, t5], 5)
    fixture("striding4", dict(subsampling="striding", subsampling_factor=4, feat_in=11), [edge, lens, t1], 6)
    fixture("striding8", dict(subsampling="striding", feat_in=16), [tr, lens], 7)
    fixture("striding_default_channels", dict(subsampling="striding", subsampling_factor=4, d_model=6,
                                              subsampling_conv_channels=-1), [tr], 8)
    fixture("stacking8", dict(subsampling="stacking", feat_in=5), [edge, lens, t1], 9)
    fixture("stacking4", dict(subsampling="stacking", subsampling_factor=4, feat_in=5), [tr, lens], 10)
    fixture("stacking_norm8", dict(subsampling="stacking_norm", feat_in=5), [tr, lens], 11)
    fixture("stacking_norm4", dict(subsampling="stacking_norm", subsampling_factor=4, feat_in=5), [edge], 12)
    fixture("no_subsampling", dict(subsampling=None, subsampling_factor=1, feat_in=6),
            [case("train", (3, 12, [12, 7, 1]), training=True)], 13)
    fixture("causal_dw8", dict(causal_downsampling=True, feat_in=12), [tr, lens, t1], 14)
    fixture("causal_striding4", dict(subsampling="striding", subsampling_factor=4, causal_downsampling=True,
                                     feat_in=9), [edge], 15)
    # A forced chunking factor splits by batch (same numbers); with one item it splits by channel, without masking.
    fixture("chunked_conv2", dict(subsampling_conv_chunking_factor=2, feat_in=10),
            [ev, case("one_item", (1, 40, [29]), training=True)], 16)

    # Positions and attention.
    two = dict(n_layers=2)
    fixture("abs_pos", dict(self_attention_model="abs_pos"), [tr, edge_ev], 20)
    fixture("abs_pos_no_xscale", dict(self_attention_model="abs_pos", xscaling=False), [tr], 21)
    fixture("no_xscaling", dict(xscaling=False), [tr, ev], 22)
    fixture("tied_biases", dict(untie_biases=False, **two), [tr, ev], 23)
    fixture("no_bias", dict(use_bias=False, **two), [tr, ev], 24)
    fixture("heads4", dict(n_heads=4, d_model=12, ff_expansion_factor=3), [tr], 25)
    # Twice as many encoder frames as usual, so that contexts matter.
    s4 = dict(subsampling="stacking", subsampling_factor=2, feat_in=4)
    long = (3, 46, [46, 31, 3])
    L = [case("train", long, training=True), case("eval", long, grads=False)]
    fixture("ctx_regular", dict(att_context_size=[5, 3], **s4), L, 26)
    fixture("ctx_left_only", dict(att_context_size=[4, -1], **s4), L[:1], 27)
    fixture("ctx_right_zero", dict(att_context_size=[-1, 0], **s4), L[:1], 28)
    fixture("ctx_chunked", dict(att_context_size=[6, 2], att_context_style="chunked_limited", **s4), L, 29)
    fixture("ctx_chunked_unlimited_left", dict(att_context_size=[-1, 3], att_context_style="chunked_limited", **s4), L[:1], 30)
    fixture("ctx_two_regular", dict(att_context_size=[[6, 2], [-1, -1]], att_context_probs=[0.25, 0.75], **s4),
            [L[1], case("train_drew_0", long, training=True, context=[6, 2]),
             case("train_drew_1", long, training=True, context=[-1, -1], grads=False)], 31)
    # A pair [left > 0, -1] is a division by zero in NeMo's own check; [0, -1] passes it.
    fixture("ctx_three_chunked", dict(att_context_size=[[4, 1], [9, 2], [0, -1]], att_context_style="chunked_limited", **s4),
            [L[1], case("train_drew_1", long, training=True, context=[9, 2], grads=False),
             case("train_drew_2", long, training=True, context=[0, -1])], 32)
    # In training NeMo takes a float32 softmax for the global rows, so a float64 twin does not exist there.
    loc = dict(self_attention_model="rel_pos_local_attn", **s4)
    E = case("edge_rows", (4, 23, [23, 9, 1, 0]), training=True)
    fixture("local_sym", dict(att_context_size=[3, 3], **loc), [L[1], E], 33)
    fixture("local_left_wide", dict(att_context_size=[4, 2], **loc), [L[0]], 34)
    fixture("local_right_wide", dict(att_context_size=[2, 5], n_layers=2, **loc), [L[0]], 35)
    fixture("local_short_input", dict(att_context_size=[8, 8], **loc), [case("train", (2, 9, [9, 4]), training=True)], 36)
    fixture("local_global1", dict(att_context_size=[3, 3], global_tokens=1, **loc), [L[0], L[1]], 37, f64=False)
    fixture("local_global3_spaced", dict(att_context_size=[3, 2], global_tokens=3, global_tokens_spacing=2, **loc),
            [L[1], E], 38, f64=False)
    fixture("local_global_separate", dict(att_context_size=[2, 2], global_tokens=2, global_attn_separate=True,
                                          **loc), [L[0], L[1]], 39, f64=False)
    fixture("sdpa_rel_pos", dict(use_pytorch_sdpa=True), [tr, edge_ev], 40)
    fixture("sdpa_abs_pos", dict(use_pytorch_sdpa=True, self_attention_model="abs_pos"), [tr], 41)

    # Convolution module.
    fixture("bn_two_layers", two, [tr, ev, case("edge_rows", EDGE, training=True, grads=False)], 50)
    fixture("conv_layer_norm", dict(conv_norm_type="layer_norm"), [tr, edge_ev], 51)
    fixture("conv_group_norm4", dict(conv_norm_type="group_norm4"), [edge], 52)
    fixture("conv_group_norm2", dict(conv_norm_type="group_norm2"), [tr], 53)
    fixture("conv_instance_norm", dict(conv_norm_type="instance_norm"), [edge, ev], 54)
    fixture("conv_fused_batch_norm", dict(conv_norm_type="fused_batch_norm"), [tr], 55)
    fixture("conv_causal", dict(conv_context_size="causal", conv_kernel_size=7), [tr], 56)
    fixture("conv_context_4_2", dict(conv_context_size=[4, 2], conv_kernel_size=7), [tr], 57)
    fixture("conv_kernel31", dict(conv_kernel_size=31), [tr], 58)
    # feat_out, stochastic depth, dropout.
    fixture("feat_out", dict(feat_out=12), [tr, ev], 60)
    sd = dict(stochastic_depth_drop_prob=0.6, n_layers=3)
    # Draws exist only for layers whose probability is above 0 (None: no draw); True drops the layer.
    fixture("stochastic_depth_linear", dict(stochastic_depth_mode="linear", stochastic_depth_start_layer=1, **sd),
            [case("drop_last", training=True, drop=[None, False, True]),
             case("keep_all", training=True, drop=[None, False, False], grads=False)], 61)
    fixture("stochastic_depth_uniform", dict(stochastic_depth_mode="uniform", stochastic_depth_start_layer=1, **sd),
            [case("drop_second", training=True, drop=[None, True, False], grads=False), ev], 62)
    fixture("dropout_all", dict(dropout=0.2, dropout_pre_encoder=0.15, dropout_emb=0.1, dropout_att=0.25),
            [case("train", training=True, dropout_seed=7), ev], 63)
    fixture("dropout_local", dict(dropout=0.2, dropout_pre_encoder=0.15, dropout_att=0.25, att_context_size=[3, 3], **loc),
            [case("train", long, training=True, dropout_seed=8)], 64)
