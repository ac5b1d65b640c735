#!/usr/bin/env python3
"""Exact substring deduplication: ours, our suffix-array form, and libdivsufsort through pydivsufsort, one core each.

    cargo build --release -p bessemer-dedup --example substrings
    pip install pydivsufsort numpy          # optional: without it only our own forms are timed
    python3 bench/peers/substring/compare.py --mebibytes 64 --length 100 [--rounds 3] [--memory 1024]

The same text for all: words from a seed, passages planted in a tenth of the documents. The peer builds the suffix array and the LCP array
(Kasai) and marks positions whose neighbour shares LENGTH bytes: the work of `make_suffix_array` and `self-similar` of
deduplicate-text-datasets, whose published rates are 0.10 (C4, 350 GB) and 0.53 MB/s a core (Wiki-40B, 4 GB); those include disks.
Medians of ROUNDS runs, in turns.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
PUBLISHED = {"deduplicate-text-datasets, C4": 0.097, "deduplicate-text-datasets, Wiki-40B": 0.53}


def ours(binary, args, text=None, form=None):
    command = [binary, args.mebibytes, args.length, 1, args.memory, args.share] + ([text] if text else []) + ([form] if form else [])
    out = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    return json.loads(out.stdout)


def peer(text, length):
    import numpy
    import pydivsufsort

    data = numpy.fromfile(text, dtype=numpy.uint8)
    begun = time.perf_counter()
    array = pydivsufsort.divsufsort(data)
    lcp = pydivsufsort.kasai(data, array)
    repeated = int(numpy.count_nonzero(lcp >= length))
    seconds = time.perf_counter() - begun
    return {"form": "libdivsufsort + Kasai", "bytes": len(data), "seconds": seconds, "mb_per_s_per_core": len(data) / 1e6 / seconds, "repeated": repeated}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=ROOT / "target/release/examples/substrings")
    parser.add_argument("--mebibytes", type=int, default=64)
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--memory", type=int, default=1024, help="MiB that our search may hold")
    parser.add_argument("--share", type=float, default=0.1, help="share of documents with a planted passage")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text"
        ours(args.binary, args, text=text)
        runs = {"winnowing": lambda: ours(args.binary, args), "suffix array": lambda: ours(args.binary, args, form="suffix")}
        try:
            import pydivsufsort  # noqa: F401

            runs["libdivsufsort + Kasai"] = lambda: peer(text, args.length)
        except ImportError:
            print("pydivsufsort is not installed: only our own forms")
        rates, removed = {name: [] for name in runs}, {}
        for _ in range(args.rounds):
            for name, run in runs.items():
                result = run()
                rates[name].append(result["mb_per_s_per_core"])
                removed[name] = result.get("removed_bytes")
    assert removed["winnowing"] == removed["suffix array"], f"the two forms must agree: {removed}"
    median = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in {**median, **PUBLISHED}.items():
        print(f"{name:<40} {rate:9.2f} MB/s a core   ours is {median['winnowing'] / rate:7.1f} x")


if __name__ == "__main__":
    main()
