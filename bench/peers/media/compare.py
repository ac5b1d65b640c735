"""Pictures and sounds a second on one core, beside Pillow and transformers' WhisperFeatureExtractor, on the same files in one run.

    bench/peers/media/compare.sh PYTHON [ROUNDS]     (pillow, numpy; transformers and torch where there are)

Makes 60 pictures (JPEG of 500 x 375 and 1600 x 1200, PNG) and 6 sounds (WAV, 30 s at 16 kHz),
then takes turns: each contestant runs in its own process on one thread, ROUNDS times (default 5); medians are printed with their ratio.
The peers do the same: decode, resize the shorter side to 224 (bicubic), cut, reshape to patches; log-mel of 80 bands.
"""
import json, os, statistics, subprocess, sys, tempfile, time, wave
from pathlib import Path

ONE = {v: "1" for v in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def make(folder):
    import numpy as np
    from PIL import Image
    rng = np.random.default_rng(0)
    for i in range(60):
        w, h = (1600, 1200) if i % 3 == 2 else (500, 375)
        small = rng.integers(0, 256, (h // 25, w // 25, 3), dtype=np.uint8)
        im = Image.fromarray(small).resize((w, h), Image.BICUBIC)
        noise = rng.normal(0, 6, (h, w, 3))
        im = Image.fromarray(np.clip(np.asarray(im) + noise, 0, 255).astype(np.uint8))
        im.save(folder / (f"{i:02}.png" if i % 3 == 1 else f"{i:02}.jpg"), quality=85)
    for i in range(6):
        x = np.clip(np.cumsum(rng.normal(0, 0.02, 480000)) * 0.1 + rng.normal(0, 0.05, 480000), -1, 1)
        with wave.open(str(folder / f"{i}.wav"), "wb") as f:
            f.setnchannels(1), f.setsampwidth(2), f.setframerate(16000)
            f.writeframes((x * 32767).astype("<i2").tobytes())


def peer(folder, kind):
    """One process: reads all files, then times one pass over them after one that warms up."""
    import io
    import numpy as np
    if kind == "pillow":
        from PIL import Image
        data = [p.read_bytes() for p in sorted(folder.iterdir()) if p.suffix in (".jpg", ".png")]

        def work(b):
            im = Image.open(io.BytesIO(b)).convert("RGB")
            w, h = im.size
            im = im.resize((224, 224 * h // w) if w <= h else (224 * w // h, 224), Image.BICUBIC)
            w, h = im.size
            im = im.crop(((w - 224) // 2, (h - 224) // 2, (w - 224) // 2 + 224, (h - 224) // 2 + 224))
            return np.ascontiguousarray(np.asarray(im).reshape(14, 16, 14, 16, 3).transpose(0, 2, 1, 3, 4)).reshape(196, 768)
    else:
        import transformers
        extractor = transformers.WhisperFeatureExtractor(feature_size=80)
        data = [p.read_bytes() for p in sorted(folder.glob("*.wav"))]
        if kind == "transformers-torch":
            import torch
            torch.set_num_threads(1)

        def work(b):
            with wave.open(io.BytesIO(b)) as f:
                x = np.frombuffer(f.readframes(f.getnframes()), "<i2").astype(np.float32) / 32768
            if kind == "transformers-torch":
                return extractor(x, sampling_rate=16000, return_tensors="np")
            return extractor._np_extract_fbank_features(x[None, :], "cpu")
    work(data[0])
    begun = time.perf_counter()
    for b in data:
        work(b)
    print(json.dumps({"seconds": time.perf_counter() - begun, "files": len(data)}))


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        env = {**os.environ, **ONE}
        has = lambda module: subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode == 0
        peers = ["pillow"]
        if has("transformers"):
            peers.append("transformers-numpy")
            if has("torch"):
                peers.append("transformers-torch")
        size = lambda *endings: sum(p.stat().st_size for p in folder.iterdir() if p.suffix in endings) / 1e6
        megabytes = {"images": size(".jpg", ".png") / 60, "sounds": size(".wav") / 6}
        ours, theirs, sizes = {"images": [], "sounds": []}, {p: [] for p in peers}, {}
        for _ in range(rounds):
            r = json.loads(subprocess.run([program, name, "3"], env=env, check=True, capture_output=True).stdout)
            ours["images"].append(r["images"] / r["image_seconds"])
            ours["sounds"].append(r["sounds"] / r["audio_seconds"])
            for p in peers:
                out = subprocess.run([sys.executable, __file__, "--peer", name, p], env=env, check=True, capture_output=True)
                r = json.loads(out.stdout.splitlines()[-1])
                theirs[p].append(r["files"] / r["seconds"])
        for p in peers:
            what = "images" if p == "pillow" else "sounds"
            a, b = statistics.median(ours[what]), statistics.median(theirs[p])
            mb = megabytes[what]
            print(f"{what:<8} bessemer {a:8.1f}/s {a * mb:8.2f} MB/s   {p:<20} {b:8.1f}/s {b * mb:8.2f} MB/s   ratio {a / b:.2f}")


if len(sys.argv) > 1 and sys.argv[1] == "--peer":
    peer(Path(sys.argv[2]), sys.argv[3])
else:
    main()
