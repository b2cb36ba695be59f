#!/usr/bin/env python3
"""Write tests/data/bev/pictures: small JPEG files and, in cases.txt, what Pillow makes of them. Recorded with Pillow 13.0.0
(libjpeg-turbo 3.2.0), numpy 1.26; resample.h says where earlier versions differ.

    python3 -m venv pillow && pillow/bin/pip install 'pillow==13.0.0' 'numpy<2'
    pillow/bin/python tests/golden/make_image_fixtures.py

A line of cases.txt: file, denominator of the decoder, resize, new width, new height, crop x, crop y, final width, final height,
mirrored, degrees, then the first 16 digits of the SHA-256 of the result (rows from the top, RGB).
"""
import hashlib
import io
import os

import numpy as np
import PIL
from PIL import Image, features

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "bev", "pictures")


def street(rng, width, height, noise):
    """Smooth texture, hard edges and a little noise, so that every step of the way has something to get wrong."""
    y, x = np.mgrid[0:height, 0:width] / height
    a = np.zeros((height, width, 3))
    for c in range(3):
        for _ in range(6):
            fx, fy, phase = rng.uniform(-25, 25), rng.uniform(-25, 25), rng.uniform(0, 7)
            a[..., c] += 14 * np.sin(fx * x + fy * y + phase)
        a[..., c] += 120
    for _ in range(14):
        x0, y0 = rng.integers(0, width), rng.integers(0, height)
        a[y0:y0 + rng.integers(2, height // 3 + 3), x0:x0 + rng.integers(2, width // 4 + 3)] = rng.integers(0, 256, 3)
    return np.clip(a + rng.normal(0, noise, a.shape), 0, 255).astype(np.uint8)


def write_files(rng):
    def save(name, picture, **options):
        picture.save(os.path.join(OUT, name), "JPEG", **options)

    def picture(width, height, noise=2.0):
        return Image.fromarray(street(rng, width, height, noise))

    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by whoever heeds it; Pillow's open() does not
    save("camera.jpg", picture(1600, 900, 0.0), quality=90, subsampling="4:2:0", optimize=True)
    save("s420.jpg", picture(321, 181), quality=90, subsampling="4:2:0", exif=exif)
    save("s422.jpg", picture(200, 113), quality=80, subsampling="4:2:2", restart_marker_rows=2)
    save("s444.jpg", picture(173, 97), quality=95, subsampling="4:4:4", restart_marker_blocks=3)
    save("grey.jpg", picture(160, 90).convert("L"), quality=85)
    save("progressive.jpg", picture(250, 141), quality=75, subsampling="4:2:0", progressive=True)
    save("cmyk.jpg", picture(120, 70).convert("CMYK"), quality=85)
    save("tiny.jpg", picture(5, 3), quality=90, subsampling="4:2:0")


def pillow(name, case):
    denominator, _, new_w, new_h, x, y, w, h, flip, degrees = case
    with open(os.path.join(OUT, name), "rb") as f:
        picture = Image.open(io.BytesIO(f.read()))
    if denominator > 1:
        width, height = picture.size
        picture.draft(picture.mode, (width // denominator, height // denominator))
        assert picture.size == (-(-width // denominator), -(-height // denominator))
    picture = picture.convert("RGB").resize((new_w, new_h)).crop((x, y, x + w, y + h))
    if flip:
        picture = picture.transpose(Image.FLIP_LEFT_RIGHT)
    return np.asarray(picture.rotate(degrees))


def cases(rng):
    for k in range(8):  # BEVFusion's training, then Lift-Splat-Shoot's, exact and by 1/2 and 1/4
        bf = k % 2 == 0
        final_h, final_w = (256, 704) if bf else (128, 352)
        s = rng.uniform(*((0.38, 0.55) if bf else (0.193, 0.225)))
        if k == 6:
            s = 0.4871
        new_w, new_h = int(1600 * s), int(900 * s)
        crop_y = int((1 - (0 if bf else rng.uniform(0, 0.22))) * new_h) - final_h
        crop_x = int(rng.uniform(0, max(0, new_w - final_w)))
        denominator = 1 if k < 5 else 4 if s <= 0.25 else 2 if s <= 0.5 else 1
        yield "camera.jpg", (denominator, s, new_w, new_h, crop_x, crop_y, final_w, final_h, int(rng.integers(2)), rng.uniform(-5.4, 5.4))
    yield "camera.jpg", (1, 0.465, 744, 418, 20, 162, 704, 256, 0, 0.0)
    names = sorted(n for n in os.listdir(OUT) if n.endswith(".jpg") and n != "camera.jpg")
    for k in range(35):
        name = names[k % len(names)]
        width, height = Image.open(os.path.join(OUT, name)).size
        s = rng.uniform(0.2, 1.7)
        new_w, new_h = max(1, int(width * s)), max(1, int(height * s))
        final_w, final_h = (int(v) for v in rng.integers(1, 120, 2))
        x, y = int(rng.integers(-20, new_w)), int(rng.integers(-20, new_h))
        degrees = [rng.uniform(-5.4, 5.4), 0.0, rng.uniform(-180, 180), 90.0, 180.0, 270.0][k % 6]
        if k % 12 == 3:
            final_h = final_w
        yield name, (1, s, new_w, new_h, x, y, final_w, final_h, int(rng.integers(2)), degrees)


def main():
    os.makedirs(OUT, exist_ok=True)
    rng = np.random.default_rng(20)
    write_files(rng)
    with open(os.path.join(OUT, "cases.txt"), "w") as f:
        f.write(f"# Pillow {PIL.__version__}, libjpeg-turbo {features.version('libjpeg_turbo')}; see tests/golden/make_image_fixtures.py\n")
        for name, case in cases(rng):
            digest = hashlib.sha256(pillow(name, case).tobytes()).hexdigest()[:16]
            f.write(" ".join([name] + [repr(v) for v in case] + [digest]) + "\n")


if __name__ == "__main__":
    main()
