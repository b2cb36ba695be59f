"""Masking, quantizer, decoder + loss, and the post_conv flow."""
import contextlib
import copy

import numpy as np
import torch
from omegaconf import OmegaConf

from .common import patched, randn, randomize, rng, tensor_dict, write
from nemo.collections.asr.losses import MultiMLMLoss
from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel
from nemo.collections.asr.modules import MultiSoftmaxDecoder, RandomBlockMasking, RandomProjectionVectorQuantizer


class MaskDraws:
    """Feeds prepared draws to RandomBlockMasking and keeps a record per item. In overlap mode an item consumes
    binomial then randperm, otherwise randint then randperm; short items consume nothing."""

    def __init__(self, plan):
        self.plan, self.k, self.log = list(plan), -1, []

    def _next(self):
        self.k += 1
        self.log.append(dict(self.plan[self.k]))
        return self.log[-1]

    def binomial(self, count, prob):
        d = self._next()
        d["num_starts"] = int(count)
        return torch.tensor(float(len(d["starts"])))

    def randint(self, lo, hi, size, **kw):
        return torch.tensor([self._next()["offset"]])

    def randperm(self, n, **kw):
        d, n = self.log[-1], int(n)
        head = d["starts"] if "starts" in d else d["slots"]
        assert all(0 <= h < n for h in head), (head, n)
        d["num_choices"] = n
        return torch.tensor(list(head) + [i for i in range(n) if i not in head], dtype=torch.int64)

    @contextlib.contextmanager
    def active(self):
        with patched(torch, "binomial", self.binomial), patched(torch, "randint", self.randint), \
                patched(torch, "randperm", self.randperm):
            yield self


def masking():
    tensors, meta = {}, []
    feats = randn(rng(11), 4, 3, 96)
    tensors["in.input_feats"] = feats
    base = dict(feat_in=3, mask_prob=0.02, block_size=10, allow_overlap=True)
    w = randn(rng(12), 3, scale=0.1)
    tensors["w.mask_embedding"] = w

    def case(name, lengths, plan, error=None, **cfg):
        i, mod = len(meta), RandomBlockMasking(**{**base, **cfg})
        if cfg.get("mask_value") is None:
            mod.mask_embedding.data.copy_(w)
        draws, m = MaskDraws(plan), dict(name=name, config=cfg)
        lens = torch.tensor(lengths)
        tensors[f"case{i}.in.input_lengths"] = lens
        try:
            with draws.active():
                x = feats.clone().requires_grad_(True)
                out, mask = mod(input_feats=x, input_lengths=lens)
        except Exception as e:
            assert type(e).__name__ == error, repr(e)
            m["error"] = error
        else:
            assert error is None and draws.k + 1 == len(plan)
            assert (mask == mask[:, :1]).all()
            tensors[f"case{i}.out.mask"] = mask[:, 0].to(torch.uint8)
            tensors[f"case{i}.out.masked_feats"] = out
        m["draws"], k = [], 0
        for n in lengths:  # one entry per item; a short item draws nothing
            if mod.block_size >= n * mod.max_mask_ratio:
                m["draws"].append(dict(short=True))
            elif k < len(draws.log):
                m["draws"].append(draws.log[k])
                k += 1
        meta.append(m)

    # Overlap mode. Item lengths 12, 13: block 10 >= 0.8 * 12.5, so 12 is short and 13 is not.
    case("overlap", [96, 50, 13, 12], [dict(starts=[0, 85, 40, 45]), dict(starts=[39, 12]), dict(starts=[])])
    case("overlap_ends", [96, 95, 33, 0], [dict(starts=[85]), dict(starts=[84, 0]), dict(starts=list(range(23)))])
    case("overlap_short_items", [1, 5, 8, 12], [])
    case("overlap_prob_1", [96, 40, 20, 13], [dict(starts=list(range(86))), dict(starts=list(range(30))),
                                              dict(starts=list(range(10))), dict(starts=list(range(3)))], mask_prob=1.0)
    case("overlap_prob_0", [96, 40, 20, 13], [dict(starts=[])] * 4, mask_prob=0.0)
    case("overlap_mask_value", [96, 50, 20, 9], [dict(starts=[3]), dict(starts=[7]), dict(starts=[0, 9])], mask_value=-2.5)
    case("overlap_ratio_0.5", [96, 50, 21, 20], [dict(starts=[3]), dict(starts=[7]), dict(starts=[2])], max_mask_ratio=0.5)
    case("overlap_block_0", [96, 50, 20, 9], [dict(starts=[3]), dict(starts=[7]), dict(starts=[2]), dict(starts=[1])], block_size=0)
    # No overlap: k = ceil(L*p/block) slots, the block shrinks when (k+1)*block > L.
    no = dict(allow_overlap=False, mask_prob=0.3)
    case("no_overlap", [96, 60, 40, 12], [dict(offset=3, slots=[7, 0, 4]), dict(offset=0, slots=[1, 3]), dict(offset=9, slots=[2, 0])], **no)
    case("no_overlap_shrunk", [96, 50, 21, 13], [dict(offset=0, slots=[2, 1, 0, 6, 7, 3]), dict(offset=5, slots=[0, 2, 1]),
                                                 dict(offset=9, slots=[1, 0]), dict(offset=2, slots=[0])],
         allow_overlap=False, mask_prob=0.55)
    case("no_overlap_past_length", [40, 30, 21, 14], [dict(offset=9, slots=[2, 0]), dict(offset=9, slots=[0]), dict(offset=9, slots=[0]),
                                                       dict(offset=9, slots=[0])], allow_overlap=False, mask_prob=0.33)
    # 50 * 0.6 / 10 is 3 in float64 but slightly more in float32, where NeMo computes it: four blocks.
    case("no_overlap_f32_count", [50, 96, 12, 12], [dict(offset=1, slots=[3, 0, 1, 2]), dict(offset=2, slots=[0, 7, 2, 6, 4, 5])],
         allow_overlap=False, mask_prob=0.6)
    # Non-overlapping blocks may run past the tensor, and NeMo then fails.
    case("no_overlap_past_tensor", [96, 12, 12, 12], [dict(offset=9, slots=[10, 9, 8, 7, 6, 5, 4, 3, 2, 1])],
         error="IndexError", allow_overlap=False, mask_prob=1.0)
    write("masking_r0", "masking", base, meta, tensors)


def quantizer():
    def one(name, cfg, shape, seed):
        q = RandomProjectionVectorQuantizer(**cfg)
        r = rng(seed)
        q.proj.weight.data.copy_(randn(r, *q.proj.weight.shape, scale=0.3))
        q.codebooks.data.copy_(torch.nn.functional.normalize(torch.from_numpy(r.standard_normal(tuple(q.codebooks.shape))), dim=-1))
        x = randn(r, *shape)
        tensors = {"w." + k: v for k, v in tensor_dict(q).items()}
        tensors["case0.in.input_signal"] = x
        m = dict(name="tokens", training=False)
        if cfg["dist_fn"] == "cosine":
            # NeMo's own cosine branch cannot run (float32 x float64): the reference is the same module in float64.
            try:
                q(input_signal=x)
                raise AssertionError("cosine ran")
            except RuntimeError:
                m["nemo_error"] = "RuntimeError"
            _, xid = copy.deepcopy(q).double()(input_signal=x.double())
        else:
            _, xid = q(input_signal=x)
        q64 = copy.deepcopy(q).double()
        B, T = xid.shape[:2]
        xt = x if cfg.get("time_ahead") else x.transpose(1, 2)
        y = torch.nn.functional.normalize(q64.proj(xt.double().reshape(B, T, -1)).view(B, T, q.num_books, q.code_dim), dim=-1)
        top = torch.einsum("bthc,hkc->bthk", y, q64.codebooks).topk(2, dim=-1).values
        m["min_gap"] = float((top[..., 0] - top[..., 1]).min())
        assert m["min_gap"] > 1e-5, (name, m["min_gap"])
        tensors["case0.out.tokens"] = xid
        write("quant_" + name, "quantizer", cfg, [m], tensors)

    one("h1_l2", dict(feat_in=10, code_dim=8, num_classes=64, num_books=1, dist_fn="l2", combine_time_steps=8), (3, 10, 48), 21)
    one("h4_l2", dict(feat_in=6, code_dim=5, num_classes=40, num_books=4, dist_fn="l2", combine_time_steps=4), (3, 6, 40), 22)
    one("h2_combine1", dict(feat_in=12, code_dim=16, num_classes=32, num_books=2, dist_fn="l2"), (2, 12, 11), 23)
    one("h1_squeezed", dict(feat_in=6, code_dim=4, num_classes=32, num_books=1, dist_fn="l2", squeeze_single=True, combine_time_steps=2), (2, 6, 12), 24)
    one("h2_time_ahead", dict(feat_in=6, code_dim=8, num_classes=32, num_books=2, dist_fn="l2", time_ahead=True, combine_time_steps=2), (2, 12, 6), 25)
    one("h1_cosine", dict(feat_in=10, code_dim=8, num_classes=64, num_books=1, dist_fn="cosine", combine_time_steps=4), (3, 10, 32), 26)
    one("h4_cosine", dict(feat_in=6, code_dim=5, num_classes=40, num_books=4, dist_fn="cosine", combine_time_steps=2), (3, 6, 24), 27)


def block_mask(B, D, T, spans):
    m = torch.zeros(B, D, T)
    for b, lo, hi in spans:
        m[b, :, lo:hi] = 1.0
    return m


def decoder_loss():
    """Each file holds one decoder; each case a mask and loss settings over it."""
    def one(name, dec_cfg, loss_base, steps, seed, cases, target_steps=None):
        H = dec_cfg.get("num_decoders", 1)
        dec = randomize(MultiSoftmaxDecoder(**dec_cfg), seed)
        r = rng(seed + 1)
        B, Tp = 3, 6
        enc = randn(r, B, dec_cfg["feat_in"], Tp)
        Tt = target_steps or Tp
        squeezed = dec_cfg.get("squeeze_single") and H == 1
        targets = torch.from_numpy(r.integers(0, dec_cfg["num_classes"], (B, Tt) if squeezed else (B, Tt, H)))
        tensors = {"w." + k: v for k, v in tensor_dict(dec).items()}
        tensors["in.encoder_output"], tensors["in.targets"] = enc, targets
        meta = []
        for i, (cname, mask, cfg) in enumerate(cases):
            loss_mod = MultiMLMLoss(**{**loss_base, **cfg})
            d = copy.deepcopy(dec)
            x = enc.clone().requires_grad_(True)
            lp = d(encoder_output=x)
            loss = loss_mod(masks=mask, decoder_outputs=lp, targets=targets)
            loss.backward()
            full = {**dict(combine_time_steps=1, mask_threshold=0.8), **loss_base, **cfg}
            sel = mask.transpose(1, 2).reshape(B, -1, full["combine_time_steps"] * mask.shape[1]).mean(-1) > full["mask_threshold"]
            p = f"case{i}."
            tensors[p + "in.masks"] = mask
            if i == 0:
                tensors["case0.out.logprobs"] = lp
            tensors[p + "out.loss"] = loss.reshape(())
            tensors[p + "out.selected"] = sel.to(torch.uint8)
            for n, q in d.named_parameters():
                tensors[p + "grad." + n] = q.grad
            tensors[p + "grad.in.encoder_output"] = x.grad
            meta.append(dict(name=cname, config=dict(loss=cfg), num_selected=int(sel.sum()),
                             loss=None if torch.isnan(loss) else float(loss)))
        write("loss_" + name, "decoder_loss", dict(decoder=dec_cfg, loss=loss_base), meta, tensors)

    spans8 = [(0, 3, 25), (1, 8, 16), (1, 24, 31), (2, 0, 7), (2, 17, 47)]   # partial groups of 7 and fewer frames
    m8 = block_mask(3, 4, 48, spans8)
    ragged = (torch.from_numpy(rng(41).random((3, 4, 48))) < 0.55).float()  # bins differ: the mean is over frames x bins
    one("h1", dict(feat_in=10, num_classes=24, num_decoders=1, use_bias=True), dict(combine_time_steps=8, mask_threshold=0.8, num_decoders=1), 8, 31,
        [("seven_of_eight", m8, {}), ("threshold_0.5", ragged, dict(mask_threshold=0.5)), ("threshold_0", m8, dict(mask_threshold=0.0)),
         ("threshold_-1_all", torch.zeros(3, 4, 48), dict(mask_threshold=-1.0)), ("threshold_1_empty", torch.ones(3, 4, 48), dict(mask_threshold=1.0)),
         ("nothing_masked", torch.zeros(3, 4, 48), {})])
    one("h2", dict(feat_in=10, num_classes=12, num_decoders=2, use_bias=True), dict(combine_time_steps=8, mask_threshold=0.8, num_decoders=2), 8, 33,
        [("seven_of_eight", m8, {}), ("one_frame", block_mask(3, 4, 48, [(1, 40, 48)]), {})])
    one("h4_no_bias", dict(feat_in=6, num_classes=9, num_decoders=4), dict(combine_time_steps=4, mask_threshold=0.7, num_decoders=4), 4, 35,
        [("three_of_four", block_mask(3, 2, 24, [(0, 0, 7), (1, 9, 12), (1, 16, 24), (2, 5, 24)]), {})])
    one("h1_squeezed", dict(feat_in=6, num_classes=9, squeeze_single=True), dict(combine_time_steps=2, mask_threshold=0.5, num_decoders=1, squeeze_single=True), 2, 37,
        [("half_is_not_enough", block_mask(3, 2, 12, [(0, 1, 6), (2, 3, 12)]), {})])
    # 4 of 5 frames at threshold 0.8: the float32 mean is compared with 0.8 rounded to float32, so equality is "not above".
    one("combine5", dict(feat_in=6, num_classes=9, use_bias=True), dict(combine_time_steps=5, mask_threshold=0.8), 5, 39,
        [("four_of_five", block_mask(3, 3, 30, [(0, 0, 9), (1, 10, 15), (2, 5, 29)]), {})])
    # Fewer target frames than mask groups: NeMo pads the targets with class 0.
    one("short_targets", dict(feat_in=6, num_classes=9, num_decoders=2), dict(combine_time_steps=4, num_decoders=2), 4, 47,
        [("padded_with_class_0", block_mask(3, 2, 24, [(0, 8, 24), (2, 20, 24)]), {})], target_steps=4)
    one("combine1", dict(feat_in=6, num_classes=9, num_decoders=2, use_bias=True), dict(combine_time_steps=1, num_decoders=2), 1, 43,
        [("post_conv_shape", block_mask(3, 6, 6, [(0, 0, 3), (1, 2, 6), (2, 5, 6)]), {})])


def post_conv():
    """NeMo's denoising model cannot run post_conv as written (its clean branch hands (B, D, T) to a module that wants
    (B, T, D)), so the flow here calls the modules of a real model instance in the intended order and layout."""
    cfg = dict(
        sample_rate=16000, num_classes=24, num_books=2, code_dim=8, squeeze_single=False, mask_position="post_conv",
        preprocessor=dict(_target_="nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor", features=16, n_fft=512),
        spec_augment=dict(_target_="nemo.collections.asr.modules.SpectrogramAugmentation", freq_masks=0, time_masks=0),
        masking=dict(_target_="nemo.collections.asr.modules.RandomBlockMasking", feat_in=16, mask_prob=0.1, block_size=17, allow_overlap=True, freeze=True),
        quantizer=dict(_target_="nemo.collections.asr.modules.RandomProjectionVectorQuantizer", feat_in=16, code_dim=8, num_books=2, num_classes=24,
                       dist_fn="l2", freeze=True, squeeze_single=False, combine_time_steps=1),
        encoder=dict(_target_="nemo.collections.asr.modules.ConformerEncoder", feat_in=16, n_layers=1, d_model=8, subsampling="dw_striding", subsampling_factor=8,
                     subsampling_conv_channels=4, ff_expansion_factor=2, n_heads=2, conv_kernel_size=5, dropout=0.0, dropout_pre_encoder=0.0, dropout_emb=0.0, dropout_att=0.0),
        decoder=dict(_target_="nemo.collections.asr.modules.MultiSoftmaxDecoder", feat_in=8, num_classes=24, num_decoders=2, use_bias=True, squeeze_single=False),
        loss=dict(_target_="nemo.collections.asr.losses.MultiMLMLoss", combine_time_steps=8, mask_threshold=0.8, num_decoders=2, squeeze_single=False))
    model = EncDecDenoiseMaskedTokenPredModel(OmegaConf.create(copy.deepcopy(cfg)), trainer=None)
    randomize(model, 45)
    model.quantizer.codebooks.data.copy_(torch.nn.functional.normalize(model.quantizer.codebooks.data, dim=-1))
    state = tensor_dict(model)
    effective = OmegaConf.to_container(model.cfg)
    tensors = {"w." + k: v for k, v in tensor_dict(model).items() if not k.startswith("preprocessor.")}
    r = rng(46)
    clean, lens = randn(r, 3, 16, 112), torch.tensor([112, 75, 16])
    noisy = clean + randn(r, 3, 16, 112, scale=0.3)
    plan = [dict(starts=[0, 7, 11]), dict(starts=[5])]   # third item: 2 frames, short
    meta = []
    for i, (name, training, apply_mask) in enumerate([("train", True, True), ("eval", False, True), ("eval_unmasked", False, False)]):
        m = model
        m.load_state_dict(state)
        m.zero_grad(set_to_none=True)
        m.train(training)
        m.quantizer.eval(), m.mask_processor.eval()
        draws = MaskDraws(plan)
        feats, feats_len = m.pre_encoder.pre_encode(x=clean.transpose(1, 2), lengths=lens)
        _, tokens = m.quantizer(input_signal=feats.transpose(1, 2))
        m.pre_encoder.set_masking_enabled(apply_mask=apply_mask)
        with draws.active():
            encoded, enc_len = m.encoder(audio_signal=noisy, length=lens)
        masks = m.pre_encoder.get_current_mask()
        p = f"case{i}."
        info = dict(name=name, training=training, apply_mask=apply_mask)
        tensors.update({p + "out.tokens": tokens, p + "out.encoded": encoded, p + "out.encoded_len": enc_len, p + "out.clean_feats": feats})
        if apply_mask:
            tensors[p + "out.mask"] = masks[:, 0].to(torch.uint8)
            info["draws"] = draws.log + [dict(short=True)]
            loss = m.loss(masks=masks, decoder_outputs=m.decoder(encoder_output=encoded), targets=tokens, decoder_lengths=enc_len)
            tensors[p + "out.loss"] = loss.reshape(())
            info["loss"] = float(loss)
            if training:
                loss.backward()
                none = []
                for n, q in m.named_parameters():
                    if q.grad is None:
                        none.append(n)
                    else:
                        tensors[p + "grad." + n] = q.grad
                info["grad_none"] = none
        meta.append(info)
    tensors.update({"in.clean": clean, "in.noisy": noisy, "in.length": lens})
    write("post_conv", "post_conv", dict(model=cfg, effective_block_size=effective["masking"]["block_size"]), meta, tensors)


def all_fixtures():
    masking()
    quantizer()
    decoder_loss()
    post_conv()
