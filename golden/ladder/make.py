#!/usr/bin/env python3
"""Validation losses of the trainer ladder in PyTorch: python make.py path/to/tinyshakespeare.txt > ladder.json

The models of Karpathy's "Let's build GPT" (ng-video-lecture), rung by rung, and nanoGPT's CPU configuration, with
several seeds: what `crates/model/tests/ladder.rs` compares its own losses with. Loss of the rungs r1 to r5 is taken
over the whole validation part in windows of 8 that do not overlap; r6 over 20 random batches (as published) and over
the whole part.
"""
import json
import math
import sys
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
text = open(sys.argv[1], encoding="utf-8").read()
chars = sorted(set(text))
ids = torch.tensor([chars.index(c) for c in text])
cut = int(0.9 * len(ids))
train, val = ids[:cut], ids[cut:]
V = len(chars)


def batch(data, b, t):
    at = torch.randint(len(data) - t, (b,))
    return torch.stack([data[i:i + t] for i in at]), torch.stack([data[i + 1:i + t + 1] for i in at])


@torch.no_grad()
def whole(model, t, rows):
    n = (len(val) - 1) // t
    x, y = val[:n * t].view(n, t), val[1:n * t + 1].view(n, t)
    nats = sum(loss_of(model, x[i:i + rows], y[i:i + rows]).item() * y[i:i + rows].numel() for i in range(0, n, rows))
    return nats / (n * t)


def loss_of(model, x, y):
    return F.cross_entropy(model(x).view(-1, V), y.reshape(-1))


class Heads(nn.Module):
    """Causal attention without output projection; scores times width^-1/2, as in that lecture."""

    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.scale = heads, d ** -0.5
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.heads, d // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        w = (q @ k.transpose(-2, -1) * self.scale).masked_fill(torch.ones(t, t).tril() == 0, float("-inf"))
        return (w.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d)


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.attention, self.proj = Heads(d, heads), nn.Linear(d, d)
        self.ffn = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x):
        x = x + self.proj(self.attention(self.ln1(x)))
        return x + self.ffn(self.ln2(x))


class Lecture(nn.Module):
    def __init__(self, middle, d=32, t=8):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, d), nn.Embedding(t, d)
        self.middle, self.head = middle, nn.Linear(d, V)

    def forward(self, x):
        return self.head(self.middle(self.tok(x) + self.pos(torch.arange(x.shape[1]))))


LECTURE = {
    "r1": (lambda: nn.Embedding(V, V), 1e-2, 3000),
    "r2": (lambda: Lecture(Heads(32, 1)), 1e-3, 5000),
    "r3": (lambda: Lecture(Heads(32, 4)), 1e-3, 5000),
    "r4": (lambda: Lecture(nn.Sequential(Heads(32, 4), nn.Linear(32, 32), nn.ReLU())), 1e-3, 5000),
    "r5": (lambda: Lecture(nn.Sequential(*[Block(32, 4) for _ in range(3)], nn.LayerNorm(32))), 1e-3, 5000),
}


def lecture(make, lr, steps, seed):
    torch.manual_seed(seed)
    model = make()
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(steps):
        loss = loss_of(model, *batch(train, 32, 8))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    return whole(model, 8, 512)


class Nano(nn.Module):
    """nanoGPT, config/train_shakespeare_char.py as its README changes it for a CPU."""

    def __init__(self, layers=4, heads=4, d=128, t=64):
        super().__init__()
        self.heads = heads
        self.tok, self.pos = nn.Embedding(V, d), nn.Embedding(t, d)
        self.blocks = nn.ModuleList(nn.ModuleDict({
            "ln1": nn.LayerNorm(d, bias=False), "qkv": nn.Linear(d, 3 * d, bias=False),
            "proj": nn.Linear(d, d, bias=False), "ln2": nn.LayerNorm(d, bias=False),
            "up": nn.Linear(d, 4 * d, bias=False), "down": nn.Linear(4 * d, d, bias=False)}) for _ in range(layers))
        self.last = nn.LayerNorm(d, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                out = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(p, 0, 0.02 / math.sqrt(2 * layers) if out else 0.02)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        b, t, d = x.shape
        for m in self.blocks:
            q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in m["qkv"](m["ln1"](x)).split(d, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + m["proj"](y.transpose(1, 2).reshape(b, t, d))
            x = x + m["down"](F.gelu(m["up"](m["ln2"](x))))
        return self.last(x) @ self.tok.weight.T


def nano(seed):
    torch.manual_seed(seed)
    model = Nano()
    two = [p for p in model.parameters() if p.dim() >= 2]
    one = [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([{"params": two, "weight_decay": 0.1}, {"params": one, "weight_decay": 0.0}],
                            lr=1e-3, betas=(0.9, 0.99))
    for it in range(2000):
        ratio = (it - 100) / 1900
        lr = 1e-3 * (it + 1) / 101 if it < 100 else 1e-4 + 0.5 * (1 + math.cos(math.pi * ratio)) * 9e-4
        for g in opt.param_groups:
            g["lr"] = lr
        loss = loss_of(model, *batch(train, 12, 64))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    with torch.no_grad():
        few = sum(loss_of(model, *batch(val, 12, 64)).item() for _ in range(20)) / 20
    return few, whole(model, 64, 64)


result = {"torch": torch.__version__, "windows": "whole validation part, t = 8 (r6: 64)"}
for name, (make, lr, steps) in LECTURE.items():
    result[name] = [round(lecture(make, lr, steps, seed), 4) for seed in (1337, 1, 2)]
    print(name, result[name], file=sys.stderr, flush=True)
runs = [nano(seed) for seed in (1337, 1, 2)]
result["r6_random_batches"], result["r6"] = ([round(r[i], 4) for r in runs] for i in (0, 1))
print(json.dumps(result, indent=1))
