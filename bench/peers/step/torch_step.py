"""One training step of the reference jobs in PyTorch: GPT-2 blocks, tied head, AdamW.

python torch_step.py --job gpt2 --mode eager|compile --dtype f32|bf16 --threads 2 --steps 5
prints one JSON object a run: seconds of each step after warm-up, losses, peak resident memory.
"""
import argparse, json, os, resource, time

parser = argparse.ArgumentParser()
parser.add_argument("--job", choices=["gpt2", "baby"], default="gpt2")
parser.add_argument("--mode", choices=["eager", "compile"], default="eager")
parser.add_argument("--dtype", choices=["f32", "bf16", "f16", "tf32"], default="f32")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--warmup", type=int, default=2)
parser.add_argument("--batch", type=int, default=0)
parser.add_argument("--seq", type=int, default=0)
parser.add_argument("--tokens", help="raw little-endian u32 ids; random where absent")
args = parser.parse_args()
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = str(args.threads)

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(args.threads)
torch.manual_seed(0)
if args.dtype == "tf32":
    # What torch offers below f32 without autocast: products of bf16 inputs where the processor has them.
    torch.set_float32_matmul_precision("medium")

LAYERS, WIDTH, HEADS, VOCAB, POSITIONS, BATCH, SEQ = {
    "gpt2": (12, 768, 12, 50257, 1024, 4, 256),
    "baby": (6, 384, 6, 8192, 256, 16, 256),
}[args.job]
BATCH, SEQ = args.batch or BATCH, args.seq or SEQ
POSITIONS = max(POSITIONS, SEQ)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.blocks, self.ln = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, 0.02 / (2 * LAYERS) ** 0.5 if ".out." in name or ".down." in name else 0.02)
            elif "bias" in name:
                nn.init.zeros_(p)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, VOCAB).float(), targets.view(-1))


model = Gpt()
decayed = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
    lr=3e-4, betas=(0.9, 0.95), fused=True,
)
step_model = torch.compile(model) if args.mode == "compile" else model
if args.tokens:
    import numpy as np
    stream = torch.from_numpy(np.fromfile(args.tokens, dtype="<u4").astype("int64"))[: BATCH * SEQ + 1]
else:
    stream = torch.randint(0, VOCAB, (BATCH * SEQ + 1,))
ids, targets = stream[:-1].view(BATCH, SEQ), stream[1:].view(BATCH, SEQ)
cast = {"bf16": torch.bfloat16, "f16": torch.float16}.get(args.dtype)
seconds, losses = [], []
for step in range(args.warmup + args.steps):
    begun = time.perf_counter()
    if cast is None:
        loss = step_model(ids, targets)
    else:
        with torch.autocast("cpu", dtype=cast):
            loss = step_model(ids, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item())
    if step >= args.warmup:
        seconds.append(time.perf_counter() - begun)
seconds_sorted = sorted(seconds)
print(json.dumps({
    "system": f"torch {torch.__version__} {args.dtype} {args.mode}",
    "tokens_per_s": BATCH * SEQ / seconds_sorted[len(seconds) // 2],
    "tokens_per_s_best": BATCH * SEQ / seconds_sorted[0],
    "seconds": seconds, "losses": losses,
    "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
