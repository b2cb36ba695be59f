"""What the two interop scripts share: NeMo made quiet, model building, eval-mode features, comparison."""
import json
import logging
import os
import warnings

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
warnings.filterwarnings("ignore")
import numpy
import soundfile
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
import nemo
from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel
from nemo.utils import logging as nemo_logging

nemo_logging.setLevel(logging.ERROR)


def save(path, tensors):
    save_file(tensors, path)


def load(path):
    return load_file(path)


def restore(path):
    """Strict restore, after checking that torch's weights-only loader (what newer NeMo uses) takes the file too."""
    import tarfile
    import tempfile
    with tempfile.TemporaryDirectory() as tmp, tarfile.open(path, "r:*") as tar:
        tar.extractall(tmp, filter="data")
        weights = torch.load(os.path.join(tmp, "model_weights.ckpt"), map_location="cpu", weights_only=True)
    model = EncDecDenoiseMaskedTokenPredModel.restore_from(path, map_location="cpu", strict=True).eval()
    want = model.state_dict()
    assert list(weights) == list(want), "order or names differ from NeMo's state dict"
    assert all(weights[k].dtype == want[k].dtype for k in want), "dtypes differ"
    params = sum(p.numel() for p in model.parameters())
    return model, f"restored {os.path.basename(path)} in NeMo {nemo.__version__}: {len(want)} tensors, {params} parameters, weights_only load ok"


def build(config, overrides=(), seed=0):
    torch.manual_seed(seed)
    cfg = OmegaConf.merge(OmegaConf.load(config), OmegaConf.from_dotlist(list(overrides)))
    full = OmegaConf.to_container(cfg.model, resolve=True)
    # Data loaders would open the manifests; the archive carries their nodes, but no data is needed to build.
    nodes = {ds: full.pop(ds) for ds in ("train_ds", "validation_ds") if ds in full}
    model = EncDecDenoiseMaskedTokenPredModel(OmegaConf.create(full), trainer=None)
    with torch.no_grad():
        for name, t in model.state_dict().items():
            leaf = name.rsplit(".", 1)[-1]
            if name.startswith(("preprocessor.", "quantizer.", "mask_processor.")) or not t.is_floating_point():
                continue
            if leaf == "running_var":
                t.mul_(1 + 0.3 * torch.rand_like(t))
            elif t.dim() == 1 or leaf.startswith("pos_bias"):
                t.add_(0.1 * torch.randn_like(t))
    full = OmegaConf.to_container(model.cfg, resolve=True)
    model.cfg = OmegaConf.create({**nodes, **full})
    return model


def features(model, manifest, limit=0):
    base, out = os.path.dirname(os.path.abspath(manifest)), {}
    rate = int(model.cfg.sample_rate)
    with open(manifest) as f:
        lines = [json.loads(x) for x in f if x.strip()]
    for i, item in enumerate(lines[: limit or None]):
        path = item["audio_filepath"]
        path = path if os.path.isabs(path) else os.path.join(base, path)
        x, sr = soundfile.read(path, dtype="float32")
        assert sr == rate and x.ndim == 1, f"{path}: {sr} Hz, {x.ndim} dimensions; these scripts do not resample"
        with torch.no_grad():
            mel, n = model.preprocessor(input_signal=torch.from_numpy(x)[None], length=torch.tensor([len(x)]))
            enc, m = model.encoder(audio_signal=mel, length=n)
            _, tok = model.quantizer(input_signal=mel)
        out[f"{i}.mel"] = mel[0, :, : int(n)].contiguous()
        out[f"{i}.encoded"] = enc[0, :, : int(m)].t().contiguous()
        out[f"{i}.tokens"] = tok[0, : int(m)].contiguous()
    return out


def compare(got, want, tolerance):
    """Prints one line per kind of tensor; returns the exit status."""
    bad = sorted(set(want) ^ set(got))
    if bad:
        print("only on one side:", bad[:6])
    status = 1 if bad else 0
    for kind in ("mel", "encoded", "tokens"):
        worst, differ, total = 0.0, 0, 0
        for k in sorted(set(got) & set(want)):
            if k.endswith("." + kind):
                if got[k].shape != want[k].shape:
                    print(f"{k}: shape {tuple(got[k].shape)} here, {tuple(want[k].shape)} expected")
                    status = 1
                    continue
                d = got[k].double() - want[k].double()
                worst = max(worst, float(d.abs().max()))
                differ, total = differ + int((d != 0).sum()), total + d.numel()
        ok = differ == 0 if kind == "tokens" else worst <= tolerance
        print(f"{kind:8s} {'ok ' if ok else 'BAD'} largest difference {worst:.3g}, {differ} of {total} values differ")
        status |= 0 if ok else 1
    return status


def compare_features(got, listing, tolerance):
    base, worst, count, status = os.path.dirname(os.path.abspath(listing)), 0.0, 0, 0
    with open(listing) as f:
        items = [json.loads(x) for x in f if x.strip()]
    for i, item in enumerate(items):
        if f"{i}.encoded" not in got:
            break
        path = item["feature_path"]
        x = numpy.load(path if os.path.isabs(path) else os.path.join(base, path), allow_pickle=False)
        want = got[f"{i}.encoded"].t().numpy()
        if x[-1].shape != want.shape:
            print(f"{path}: shape {x[-1].shape}, NeMo gives {want.shape}")
            status = 1
            continue
        worst, count = max(worst, float(abs(x[-1] - want).max())), count + 1
    ok = count > 0 and worst <= tolerance
    print(f"features {'ok ' if ok else 'BAD'} largest difference {worst:.3g} over {count} files")
    return status if ok else 1
