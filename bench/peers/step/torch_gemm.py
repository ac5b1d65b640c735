"""PyTorch's matrix products at the shapes of a training step, and Bessemer's beside them.

python torch_gemm.py --threads 2 --bessemer target/release/bessemer-bench

Prints a Markdown table of GFLOP/s, medians: forward / gradient of the input / gradient of the weight. The last row holds
geometric means. PyTorch: f32 (MKL), f32 with "medium" precision, bf16 (oneDNN). Bessemer: `bessemer-bench op linear` with
every engine that the processor has; bf16 there is the type of activations and their gradients, weights stay f32. Each
contestant stands between two probes of f32 multiply-adds, which stand below the table. Half of the shapes and the columns
that compare like with like take a minute if nothing else runs; `--all` takes all of them.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--seconds", type=float, default=0.3, help="for each figure of PyTorch")
parser.add_argument("--patience", type=float, default=8, help="seconds to wait for a quiet machine before a column")
parser.add_argument("--all", action="store_true", help="all shapes, and less exact products of f32 and bf16 activations")
parser.add_argument("--bessemer", help="the program; only PyTorch is measured without it")
args = parser.parse_args()
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = str(args.threads)

import torch

torch.set_num_threads(args.threads)
# Rows, inputs, outputs, as `bessemer-bench op linear`.
SHAPES = [(1024, 768, 2304), (1024, 3072, 768), (4096, 384, 1152), (4096, 1536, 384)]
if args.all:
    SHAPES += [(1024, 768, 768), (1024, 768, 3072), (4096, 384, 384), (4096, 384, 1536)]
OPERATORS = ["linear", "linear input gradient", "linear weight gradient"]


def rate(flops, work):
    work()
    seconds, begun = [], time.perf_counter()
    while len(seconds) < 5 or time.perf_counter() - begun < args.seconds:
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return flops / statistics.median(seconds) / 1e9


def products(n, i, o, dtype):
    """Forward, gradient of the input, gradient of the weight."""
    x, w, y = torch.randn(n, i).to(dtype), torch.randn(o, i).to(dtype), torch.randn(n, o).to(dtype)
    out, dx, dw = torch.empty_like(y), torch.empty_like(x), torch.empty_like(w)
    flops = 2.0 * n * i * o
    return [
        rate(flops, lambda: torch.mm(x, w.T, out=out)),
        rate(flops, lambda: torch.mm(y, w, out=dx)),
        rate(flops, lambda: torch.mm(y.T, x, out=dw)),
    ]


def by_torch(dtype, precision):
    torch.set_float32_matmul_precision(precision)
    return [products(*shape, dtype) for shape in SHAPES]


def by_bessemer(*more):
    """Rates of all shapes, or None if this processor does not have the engine."""
    shapes = [word for shape in SHAPES for word in ("--shape", "x".join(map(str, shape)))]
    command = [args.bessemer, "op", "linear", "--threads", str(args.threads), *shapes, *more, "--quiet", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{' '.join(more)}: {done.stderr.strip()}", file=sys.stderr)
        return None
    found = {(r["op"], r["shape"]): r["gflops"] for r in json.loads(done.stdout)["operators"]}
    return [[found[op, "x".join(map(str, shape))] for op in OPERATORS] for shape in SHAPES]


def probe(threads=args.threads, seconds="0.2"):
    command = [args.bessemer, "peak", "--threads", str(threads), "--seconds", seconds, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["gflops"]


def settle(best):
    """A probe from before a contestant: waits a while for other programs to leave the cores."""
    until = time.monotonic() + args.patience
    while True:
        gflops = probe()
        if gflops >= 0.96 * best or time.monotonic() > until:
            return gflops


contestants = [("torch f32", lambda: by_torch(torch.float32, "highest"))]
if args.bessemer:
    contestants += [(e, lambda e=e: by_bessemer("--engine", e)) for e in ("fma", "amx6", "amx3", "amx")]
contestants += [("torch bf16", lambda: by_torch(torch.bfloat16, "highest"))]
if args.all:
    contestants += [("torch f32, medium", lambda: by_torch(torch.float32, "medium"))]
if args.all and args.bessemer:
    contestants += [("amx, bf16", lambda: by_bessemer("--engine", "amx", "--dtype", "bf16"))]

names, columns, probes = [], [], []
# Cores are taken to scale: where one is busy all the time, probes of all of them would set too low a bar.
best = 0.98 * args.threads * max(probe(1) for _ in range(3)) if args.bessemer else 0
for name, measure in contestants:
    before = settle(best) if args.bessemer else 0
    rates = measure()
    if rates is not None:
        names.append(name)
        columns.append(rates)
        probes.append((before, probe() if args.bessemer else 0))
        print(name, [[round(v) for v in row] for row in rates], file=sys.stderr, flush=True)

print(f"| {args.threads} threads | " + " | ".join(names) + " |")
print("|---" * (1 + len(names)) + "|")
for k, (n, i, o) in enumerate(SHAPES):
    cells = [" / ".join(f"{v:.0f}" for v in column[k]) for column in columns]
    print(f"| {n} x {i} -> {o} | " + " | ".join(cells) + " |")
means = [[math.exp(statistics.mean(math.log(row[k]) for row in column)) for k in range(3)] for column in columns]
print("| geometric mean | " + " | ".join(" / ".join(f"{v:.0f}" for v in mean) for mean in means) + " |")
if args.bessemer:
    print("\nprobes: " + ", ".join(f"{name} {a:.0f} {b:.0f}" for name, (a, b) in zip(names, probes)))
