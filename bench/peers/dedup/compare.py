"""MinHash deduplication beside rensa and text-dedup: the same JSONL, the same cores, in turn, in one run.

Needs `pip install rensa==0.5.0 text-dedup==0.4.0` in the Python that runs this.

    python make_corpus.py corpus.jsonl 20000
    cargo build --release -p bessemer-dedup --example dedup_jsonl
    python compare.py corpus.jsonl path/to/dedup_jsonl [CORES] [ROUNDS] [BANDS] [ROWS] [SIMILARITY]

Each contestant is a process of its own from the file to the list of dropped rows, start of the program included,
pinned to CORES (for example 0 or 0,1); medians of ROUNDS. A pair is a copy and the row it was made from. Recall: of the
pairs of similarity SIMILARITY or more, those of which a row is dropped (which of the two is kept differs). Precision: of
the dropped rows, those that are in a pair of similarity 0.9 SIMILARITY or more (a copy of a copy may be closer to another
row of its family than to the one it was made from). text-dedup and rensa's rho do not verify.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

corpus, program = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
argument = lambda i, default: sys.argv[i] if len(sys.argv) > i else default
cores, rounds = argument(3, "0"), int(argument(4, 3))
bands, rows, similarity = int(argument(5, 20)), int(argument(6, 7)), float(argument(7, 0.8))
count = len(cores.split(","))
here = Path(__file__).parent
truth = [json.loads(line) for line in corpus.open()]
megabytes = corpus.stat().st_size / 1e6
work = Path(tempfile.mkdtemp())


def bessemer(config):
    def start(out):
        return [program, corpus, out, str(count), "4096", json.dumps({"methods": ["minhash"], "minhash": config})]

    return start


def rensa(mode):
    def start(out):
        return [sys.executable, here / "run_rensa.py", corpus, out, mode, str(bands), str(rows), str(similarity)]

    return start


def text_dedup(out):
    cache = work / "cache"
    return [
        sys.executable, "-m", "text_dedup.minhash", "--path", "json", "--data_files", corpus, "--split", "train",
        "--cache_dir", cache, "--output", f"{out}.set", "--column", "text", "--ngram", "5", "--min_length", "1",
        "--num_perm", str(bands * rows), "--b", str(bands), "--r", str(rows), "--threshold", str(similarity),
        "--hash_func", "xxh3", "--num_proc", str(count), "--batch_size", "10000", "--no-local", "--no-debug",
    ]  # fmt: skip


shape = {"bands": bands, "rows": rows, "similarity": similarity}
contestants = {
    "bessemer, verified": bessemer(shape),
    "bessemer, components": bessemer({**shape, "verify": "none"}),
    "bessemer, fineweb": bessemer({"profile": "fineweb", "verify": "none"}),
    "rensa, words": rensa("words"),
    "rensa, word 5-grams": rensa("grams"),
    "rensa, rho": rensa("rho"),
    "text-dedup": text_dedup,
}


def dropped(name, out):
    if name == "text-dedup":
        import datasets

        kept = set(datasets.load_from_disk(f"{out}.set")["id"])
        return [row for row in range(len(truth)) if row not in kept]
    return [int(line.split("\t")[0]) for line in open(out)]


environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(work / "cache"), "OMP_NUM_THREADS": str(count),
               "RAYON_NUM_THREADS": str(count)}  # fmt: skip
seconds = {name: [] for name in contestants}
found = {}
for turn in range(rounds):
    for name, start in contestants.items():
        out = work / f"{name.replace(' ', '-').replace(',', '')}-{turn}"
        shutil.rmtree(work / "cache", ignore_errors=True)
        command = ["taskset", "-c", cores, *map(str, start(out))]
        begin = time.perf_counter()
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        seconds[name].append(time.perf_counter() - begin)
        if result.returncode:
            print(f"{name} failed:\n{result.stderr[-2000:]}", file=sys.stderr)
            seconds[name][-1] = float("nan")
            continue
        rows_dropped = dropped(name, out)
        if found.setdefault(name, rows_dropped) != rows_dropped:
            print(f"{name}: another result than in the round before", file=sys.stderr)

wanted = [(row, d["of"]) for row, d in enumerate(truth) if d["of"] >= 0 and d["jaccard"] >= similarity]
related = {r for row, d in enumerate(truth) if d["of"] >= 0 and d["jaccard"] >= 0.9 * similarity for r in (row, d["of"])}
print(f"{len(truth)} documents, {megabytes:.1f} MB, cores {cores}, {bands} bands x {rows}, similarity {similarity}")
print(f"{'':22} {'seconds':>9} {'MB/s':>8} {'dropped':>8} {'recall':>7} {'precision':>9}")
for name in contestants:
    if name not in found:
        continue
    median, rows_dropped = statistics.median(seconds[name]), set(found[name])
    recall = sum(a in rows_dropped or b in rows_dropped for a, b in wanted) / max(1, len(wanted))
    precision = len(rows_dropped & related) / max(1, len(rows_dropped))
    print(f"{name:22} {median:9.3f} {megabytes / median:8.1f} {len(rows_dropped):8} {recall:7.4f} {precision:9.4f}")
shutil.rmtree(work, ignore_errors=True)
