"""PyTorch's matrix products at the shapes of a training step: f32 (MKL), f32 with "medium" precision, bf16 (oneDNN).

python torch_gemm.py --threads 2     prints a Markdown table of GFLOP/s, medians. The last row is the geometric mean.
"""
import argparse
import math
import os
import statistics
import time

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--seconds", type=float, default=0.4, help="for each figure")
args = parser.parse_args()
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = str(args.threads)

import torch

torch.set_num_threads(args.threads)
# Rows, inputs, outputs, as `bessemer bench op linear`.
SHAPES = [
    (1024, 768, 768), (1024, 768, 2304), (1024, 768, 3072), (1024, 3072, 768),
    (4096, 384, 384), (4096, 384, 1152), (4096, 384, 1536), (4096, 1536, 384),
]


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


MODES = [("f32", torch.float32, "highest"), ("f32 medium", torch.float32, "medium"), ("bf16", torch.bfloat16, "highest")]
print("| shape | " + " | ".join(f"{m[0]}: forward | input gradient | weight gradient" for m in MODES) + " |")
print("|---" * (1 + 3 * len(MODES)) + "|")
columns = []
for shape in SHAPES:
    row = []
    for _, dtype, precision in MODES:
        torch.set_float32_matmul_precision(precision)
        row += products(*shape, dtype)
    columns.append(row)
    print(f"| {shape[0]} x {shape[1]} -> {shape[2]} | " + " | ".join(f"{v:.0f}" for v in row) + " |", flush=True)
means = [math.exp(statistics.mean(math.log(r[k]) for r in columns)) for k in range(3 * len(MODES))]
print("| geometric mean | " + " | ".join(f"{v:.0f}" for v in means) + " |")
