"""Golden values of crates/media: small encoded files, and what Pillow, imagehash and transformers make of them.

    python3 golden/media/make.py        (pillow, imagehash, numpy, transformers without torch's extractor, ffmpeg for the MP3)

Writes crates/media/tests/golden/. The pictures are computed, so nothing is downloaded.
"""
import io, json, pathlib, subprocess, sys
import numpy as np
from PIL import Image

OUT = pathlib.Path(__file__).resolve().parents[2] / "crates/media/tests/golden"
OUT.mkdir(parents=True, exist_ok=True)


def picture(w, h, seed):
    """Smooth shapes with edges and a little noise: what codecs and hashes are made for."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:h, 0:w].astype(np.float64)
    x, y = x / w, y / h
    out = np.zeros((h, w, 3))
    for c in range(3):
        for _ in range(5):
            a, b, p, q = rng.uniform(-6, 6, 4)
            out[..., c] += rng.uniform(20, 45) * np.sin(a * x * 3 + b * y * 3 + p) * np.cos(q * x)
    for _ in range(6):
        cx, cy, r = rng.uniform(0, 1), rng.uniform(0, 1), rng.uniform(0.05, 0.25)
        out[(x - cx) ** 2 + (y - cy) ** 2 < r * r] += rng.uniform(-80, 80, 3)
    out += rng.normal(0, 2, out.shape)
    return Image.fromarray(np.clip(out + 128, 0, 255).astype(np.uint8), "RGB")


def save(name, image, **options):
    image.save(OUT / name, **options)


def raw(name, array):
    (OUT / name).write_bytes(np.ascontiguousarray(array).tobytes())


def images():
    a = picture(61, 47, 1)
    save("baseline.jpg", a, quality=90, subsampling=0)
    save("subsampled.jpg", a, quality=85, subsampling=2)
    save("progressive.jpg", a, quality=85, subsampling=2, progressive=True)
    save("gray.jpg", a.convert("L"), quality=90)
    save("cmyk.jpg", a.convert("CMYK"), quality=95)
    exif = Image.Exif()
    exif[0x0112] = 6
    save("rotated.jpg", a, quality=90, subsampling=0, exif=exif)
    save("rgb8.png", a)
    save("palette.png", a.quantize(13))
    save("gray1.png", a.convert("1"))
    save("gray8.png", a.convert("L"))
    rgba = a.convert("RGBA")
    rgba.putalpha(Image.fromarray(np.tile(np.linspace(0, 255, 61).astype(np.uint8), (47, 1))))
    save("rgba.png", rgba)
    save("la.png", rgba.convert("LA"))
    pal = a.quantize(4)
    pal.info["transparency"] = 2
    save("palette-alpha.png", pal, transparency=2)
    save("lossless.webp", a, lossless=True)
    save("alpha.webp", rgba, lossless=True, exact=True)
    save("lossy.webp", a, quality=80)
    # 16 bits a sample: the upper byte is what Pillow's RGB has; written by hand because Pillow writes no RGB;16.
    import struct, zlib
    chunk = lambda t, d: struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d))
    deep = np.asarray(a).astype(">u2") * 256 + 77
    rows = b"".join(b"\0" + r.astype(">u2").tobytes() for r in deep)
    (OUT / "rgb16.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 61, 47, 16, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))
    from PIL import ImageOps
    for path in sorted(OUT.glob("*.[jpw]*[gp]")):
        if path.suffix not in (".jpg", ".png", ".webp"):
            continue
        im = ImageOps.exif_transpose(Image.open(path))
        if "A" in im.mode or "transparency" in im.info:
            back = Image.new("RGBA", im.size, (255, 255, 255, 255))
            im = Image.alpha_composite(back, im.convert("RGBA"))
        raw(path.name + ".rgb", np.asarray(im.convert("RGB")))


def resizes():
    filters = {"box": Image.BOX, "bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS}
    source = Image.open(OUT / "rgb8.png").convert("RGB")
    cases = []
    for name, f in filters.items():
        for w, h in [(16, 16), (61, 20), (20, 47), (96, 80), (224, 7)]:
            file = f"resize-{name}-{w}x{h}.rgb"
            raw(file, np.asarray(source.resize((w, h), f)))
            cases.append({"filter": name, "width": w, "height": h, "file": file})
    return cases


def hashes():
    import imagehash
    out = []
    for name in ["rgb8.png", "gray8.png", "palette.png", "lossless.webp"]:
        im = Image.open(OUT / name)
        out.append({"file": name, "dhash": str(imagehash.dhash(im)), "phash": str(imagehash.phash(im))})
    families = []
    for seed in range(6):
        im = picture(160, 120, 100 + seed)
        base = {"dhash": str(imagehash.dhash(im)), "phash": str(imagehash.phash(im))}
        name = f"family-{seed:02}.webp"
        small = im.resize((80, 60), Image.BICUBIC)
        small.save(OUT / name, lossless=True)
        copies = {
            "resized": small.resize((57, 43), Image.BILINEAR),
            "cropped": small.crop((2, 1, 79, 59)),
        }
        b = io.BytesIO()
        small.save(b, "JPEG", quality=50)
        copies["re-encoded"] = b.getvalue()
        entry = {"file": name, "dhash": str(imagehash.dhash(small)), "phash": str(imagehash.phash(small)), "copies": {}}
        for what, copy in copies.items():
            file = f"family-{seed:02}-{what}." + ("jpg" if isinstance(copy, bytes) else "webp")
            if isinstance(copy, bytes):
                (OUT / file).write_bytes(copy)
                decoded = Image.open(io.BytesIO(copy))
            else:
                copy.save(OUT / file, lossless=True)
                decoded = copy
            entry["copies"][what] = {"file": file, "phash": str(imagehash.phash(decoded)), "dhash": str(imagehash.dhash(decoded))}
        families.append(entry)
    return out, families


def signal(rate, seconds):
    t = np.arange(int(rate * seconds)) / rate
    rng = np.random.default_rng(5)
    sweep = 0.4 * np.sin(2 * np.pi * (200 * t + 1500 * t * t))
    return (sweep * (1 + 0.5 * np.sin(2 * np.pi * 3 * t)) + 0.01 * rng.normal(size=t.size)).astype(np.float32)


def wav(path, samples, rate, channels=1):
    import wave
    with wave.open(str(path), "wb") as f:
        f.setnchannels(channels), f.setsampwidth(2), f.setframerate(rate)
        f.writeframes(np.round(np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def audio():
    import transformers.models.whisper.feature_extraction_whisper as w
    x = signal(16000, 0.8)
    wav(OUT / "tone.wav", x, 16000)
    stereo = np.stack([signal(44100, 0.5), -0.5 * signal(44100, 0.5)], axis=1)
    wav(OUT / "stereo.wav", stereo.reshape(-1), 44100, 2)
    quiet = ["ffmpeg", "-v", "error", "-y", "-bitexact", "-i", str(OUT / "tone.wav")]
    subprocess.run(quiet + ["-c:a", "flac", str(OUT / "tone.flac")], check=True)
    subprocess.run(quiet + ["-c:a", "libmp3lame", "-b:a", "64k", str(OUT / "tone.mp3")], check=True)
    subprocess.run(quiet + ["-c:a", "libvorbis", "-q:a", "5", str(OUT / "tone.ogg")], check=True)
    x = (np.round(np.clip(x, -1, 1) * 32767) / 32768).astype(np.float32)
    out = []
    for mels in (80, 128):
        extractor = w.WhisperFeatureExtractor(feature_size=mels)
        filters = extractor.mel_filters.T.astype(np.float64)
        if mels == 80:
            raw(f"mel-filters-{mels}.f64", filters)
        y = extractor._np_extract_fbank_features(x[None, :], "cpu")[0].astype("<f4")
        raw(f"log-mel-{mels}.f32", y)
        if mels == 80:
            padded = np.zeros(20000, np.float32)
            padded[: x.size] = x
            y = extractor._np_extract_fbank_features(padded[None, :], "cpu")[0].astype("<f4")
            raw(f"log-mel-{mels}-padded.f32", y)
        torch_y = extractor._torch_extract_fbank_features(x[None, :])[0]
        ours = extractor._np_extract_fbank_features(x[None, :], "cpu")[0]
        out.append({"mels": mels, "torch_differs_from_numpy_by": float(np.abs(torch_y - ours).max())})
    return out


def video():
    """Ten seconds at 10 frames a second: frame k has gray level 2 k, so that a frame tells its time."""
    frames = np.concatenate([np.full((48, 64, 3), 2 * k, np.uint8)[None] for k in range(100)])
    subprocess.run(["ffmpeg", "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "64x48", "-r", "10", "-i", "-",
                    "-bitexact", "-c:v", "mpeg4", "-q:v", "2", "-g", "20", "-sc_threshold", "1000000000", str(OUT / "levels.mp4")], input=frames.tobytes(), check=True)


images()
golden = {"resizes": resizes()}
golden["hashes"], golden["families"] = hashes()
if "--no-audio" not in sys.argv:
    golden["audio"] = audio()
    video()
(OUT / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
