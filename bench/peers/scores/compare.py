"""fastText and KenLM against Bessemer: compare.py BESSEMER THROUGHPUT TEXT [ROUNDS] [LMPLZ]

A line of TEXT is a document. One fastText model (trained here by the original, labels by the number of words) and one language model (estimated by
Bessemer, a KenLM binary) serve both. MB/s of one core: of Bessemer by the example `throughput` (median of five passes), of the originals called
from Python line by line, as pipelines in Python do (median of ROUNDS). Then the time of training a model, each program once.
Agreement is checked on the first lines.
"""
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import fasttext
import kenlm

bessemer, throughput, path = sys.argv[1:4]
rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
lmplz = sys.argv[5] if len(sys.argv) > 5 else None
lines = [line for line in open(path, encoding="utf-8", errors="replace").read().split("\n") if line.strip()]
size = sum(len(line.encode()) for line in lines) / 1e6


def timed(work):
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def speed(each):
    def work():
        for line in lines:
            each(line)
    return size / statistics.median(timed(work) for _ in range(rounds))


def row(name, ours, theirs, peer, unit="MB/s"):
    better = ours / theirs if unit == "MB/s" else theirs / ours
    print(f"{name:30} bessemer {ours:9.2f} {unit}   {peer:16} {theirs:9.2f} {unit}   ratio {better:.2f}")


with tempfile.TemporaryDirectory() as folder:
    name = lambda file: os.path.join(folder, file)
    with open(name("labelled.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"__label__{len(line.split(' ')) % 20} {line}\n" for line in lines)
    settings = dict(dim=16, minn=2, maxn=4, wordNgrams=2, bucket=100_000, loss="hs", epoch=1, thread=1, verbose=0)
    model = fasttext.train_supervised(name("labelled.txt"), **settings)
    model.save_model(name("ft.bin"))
    subprocess.run([bessemer, "corpus", "train-lm", path, "--order", "5", "--out", name("lm.bin"), "--quiet"], check=True,
                   capture_output=True)
    lm = kenlm.Model(name("lm.bin"))

    def predict(line, k=1):
        """What model.predict does, without its last line, which NumPy 2 refuses."""
        return model.f.predict(line + "\n", k, 0.0, "strict")

    out = subprocess.run([throughput, path, "--fasttext", name("ft.bin"), "--kenlm", name("lm.bin")], check=True,
                         capture_output=True, text=True).stdout
    ours = {m[1].strip(): float(m[2]) for m in re.finditer(r"^(.+?)\s+([\d.]+) MB/s per core", out, re.M)}
    print(f"{len(lines)} documents, {size:.2f} MB")
    row("fastText, best label", ours["fastText, best label"], speed(predict), "fasttext-wheel")
    row("KenLM, words as they are", ours["KenLM, words as they are"], speed(lambda line: lm.score(line)), "kenlm")

    def scores(kind, *more):
        with open(name("head.txt"), "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines[:200])
        done = subprocess.run([bessemer, "corpus", "score", name("head.txt"), "--kind", kind, *more, "--json"], check=True,
                              capture_output=True, text=True)
        return [json.loads(line)["score"] for line in done.stdout.splitlines()]

    label = model.labels[0]
    theirs = []
    for line in lines[:200]:
        theirs.append({name: p for p, name in predict(line, -1)}.get(label, 0.0))
    # The original reports p + 0.00001.
    far = max(abs(a - b) for a, b in zip(scores("fasttext", "--model", name("ft.bin"), "--label", label), theirs))
    print(f"probabilities of {label} (mean {statistics.mean(theirs):.3f}) differ by at most {far:.1e}")
    words = lambda line: len(line.split()) + 1
    far = max(abs(a - lm.score(line) / words(line)) for a, line in zip(scores("log-probability", "--model", name("lm.bin")), lines))
    print(f"log10 a word differs by at most {far:.1e}")

    # Training: two labels, the same settings, one thread.
    half = len(lines) // 2
    for pile, part in (("good.txt", lines[:half]), ("bad.txt", lines[half:])):
        with open(name(pile), "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in part)
    with open(name("two.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"__label__good {line}\n" for line in lines[:half])
        file.writelines(f"__label__bad {line}\n" for line in lines[half:])
    own = timed(lambda: subprocess.run(
        [bessemer, "corpus", "train-classifier", "--positive", name("good.txt"), "--negative", name("bad.txt"), "--out", name("q.bin"),
         "--dim", "64", "--word-ngrams", "2", "--bucket", "200000", "--epoch", "5", "--threads", "1"], check=True, capture_output=True))
    peer = timed(lambda: fasttext.train_supervised(name("two.txt"), dim=64, wordNgrams=2, bucket=200_000, epoch=5, thread=1, verbose=0))
    row("train a classifier", own, peer, "fasttext-wheel", "s")
    if lmplz:
        own = timed(lambda: subprocess.run([bessemer, "corpus", "train-lm", path, "--order", "5", "--out", name("a.arpa")], check=True,
                                           capture_output=True))
        with open(path, "rb") as text, open(name("b.arpa"), "wb") as arpa:
            peer = timed(lambda: subprocess.run([lmplz, "-o", "5", "--discount_fallback", "-S", "1G", "-T", folder + "/t"], stdin=text, stdout=arpa,
                                                stderr=subprocess.DEVNULL, check=True))
        row("estimate a language model", own, peer, "lmplz", "s")
