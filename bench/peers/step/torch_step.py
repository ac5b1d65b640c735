"""The training step of `bessemer-bench step --dump DIR` in PyTorch: GPT-2 blocks, tied head, AdamW.

python torch_step.py --dump DIR --mode eager|compile --dtype f32|bf16|f16 --matmul highest|high|medium --threads 2
prints one JSON object: tokens a second (median and best), losses of every step, peak resident memory. Weights, token
ids, learning rate and clipping are those of the dump, so that the losses are those of Bessemer.
"""
import argparse
import json
import os
import pathlib
import resource
import time

parser = argparse.ArgumentParser()
parser.add_argument("--dump", type=pathlib.Path, required=True)
parser.add_argument("--mode", choices=["eager", "compile"], default="eager")
parser.add_argument("--dtype", choices=["f32", "bf16", "f16"], default="f32", help="bf16, f16: autocast")
parser.add_argument("--matmul", choices=["highest", "high", "medium"], default="highest")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--warmup", type=int, default=2)
args = parser.parse_args()
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = str(args.threads)

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors import safe_open

torch.set_num_threads(args.threads)
torch.set_float32_matmul_precision(args.matmul)
job = json.loads((args.dump / "job.json").read_text())
LAYERS, WIDTH, HEADS, VOCAB, CONTEXT = (job[k] for k in ("layers", "width", "heads", "vocab", "context"))
BATCH, SEQ = job["batch"], job["seq"]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h, self.ln_f = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, VOCAB).float(), targets.view(-1))


# The names of Hugging Face's GPT-2, whose linear layers hold [inputs, outputs].
LINEAR = {"qkv": "attn.c_attn", "out": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}


def load(model):
    with torch.no_grad(), safe_open(args.dump / "model.safetensors", "pt") as file:
        for name, parameter in model.named_parameters():
            parts = name.split(".")
            linear = LINEAR.get(parts[2]) if parts[0] == "h" else None
            if linear:
                parts[2] = linear
            value = file.get_tensor("transformer." + ".".join(parts))
            parameter.copy_(value.T if linear and value.dim() == 2 else value)


model = Gpt()
load(model)
decayed = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
    lr=job["lr"], betas=(0.9, 0.95), eps=1e-8, fused=True,
)
step_model = torch.compile(model) if args.mode == "compile" else model
stream = torch.from_numpy(np.fromfile(args.dump / "tokens.u32", dtype="<u4").astype("int64"))
ids, targets = stream[:-1].view(BATCH, SEQ), stream[1:].view(BATCH, SEQ)
cast = {"bf16": torch.bfloat16, "f16": torch.float16}.get(args.dtype)
seconds, losses = [], []
for step in range(args.warmup + args.steps):
    begun = time.perf_counter()
    with torch.autocast("cpu", dtype=cast or torch.bfloat16, enabled=cast is not None):
        loss = step_model(ids, targets)
    loss.backward()
    if job["clip"] > 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), job["clip"])
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item())
    if step >= args.warmup:
        seconds.append(time.perf_counter() - begun)
seconds.sort()
print(json.dumps({
    "system": f"torch {torch.__version__}",
    "tokens_per_s": BATCH * SEQ / seconds[len(seconds) // 2],
    "tokens_per_s_best": BATCH * SEQ / seconds[0],
    "losses": losses,
    "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
