"""Layers of experts in PyTorch, for `bessemer-bench experts --python`: one line of JSON in, one line of JSON out.

{"experts", "choices", "tokens", "width", "hidden", "dtype"} makes the layers and gives the names of the forms; {"form": name}
gives the seconds of a forward and a backward pass, or null if the form does not work. argv[1]: threads.
"""
import json
import os
import sys
import time

threads = int(sys.argv[1])
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = str(threads)

import torch
from torch.nn import functional as F
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

torch.set_num_threads(threads)
torch.manual_seed(1)


def normal(*shape, dtype):
    return torch.nn.Parameter((0.05 * torch.randn(*shape)).to(dtype))


class Dense(torch.nn.Module):
    """Gated MLP on `rows` rows."""

    def __init__(self, rows, width, hidden, dtype):
        super().__init__()
        self.rows = rows
        self.gate_up, self.down = normal(2 * hidden, width, dtype=dtype), normal(width, hidden, dtype=dtype)

    def forward(self, x):
        gate, up = F.linear(x, self.gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.down)


class Capacity(torch.nn.Module):
    """Batched products over padded groups: choices past the capacity are dropped, in the order of tokens."""

    def __init__(self, experts, choices, tokens, width, hidden, dtype, factor=1.25):
        super().__init__()
        self.choices, self.capacity = choices, -int(-choices * tokens * factor // experts)
        self.router = normal(experts, width, dtype=dtype)
        self.gate_up = normal(experts, width, 2 * hidden, dtype=dtype)
        self.down = normal(experts, hidden, width, dtype=dtype)

    def forward(self, x):
        experts, capacity = len(self.router), self.capacity
        p = torch.softmax(F.linear(x, self.router).float(), dim=-1)
        weights, chosen = torch.topk(p, self.choices, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        flat = chosen.reshape(-1)
        order = torch.argsort(flat, stable=True)
        begins = torch.searchsorted(flat[order], torch.arange(experts))
        position = torch.empty_like(flat)
        position[order] = torch.arange(len(flat)) - begins[flat[order]]
        kept = position < capacity
        slot = torch.where(kept, flat * capacity + position, experts * capacity)
        token = torch.full((experts * capacity + 1,), len(x))
        token[slot] = torch.arange(len(flat)) // self.choices
        padded = torch.cat([x, x.new_zeros(1, x.shape[1])])
        gate, up = torch.bmm(padded[token[:-1]].view(experts, capacity, -1), self.gate_up).chunk(2, dim=-1)
        out = torch.bmm(F.silu(gate) * up, self.down).view(experts * capacity, -1)
        out = torch.cat([out, out.new_zeros(1, x.shape[1])])[slot].view(len(x), self.choices, -1)
        return (out * weights.to(x.dtype)[..., None]).sum(dim=1)


def block(shape, dtype, implementation):
    config = MixtralConfig(
        hidden_size=shape["width"],
        intermediate_size=shape["hidden"],
        num_local_experts=shape["experts"],
        num_experts_per_tok=shape["choices"],
    )
    config._experts_implementation = implementation
    made = MixtralSparseMoeBlock(config).to(dtype)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    return made


def forms(shape):
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[shape["dtype"]]
    e, k, n, d, f = (shape[key] for key in ("experts", "choices", "tokens", "width", "hidden"))
    return {
        "dense": Dense(k * n, d, f, dtype),
        "loop": block(shape, dtype, "eager"),
        "grouped": block(shape, dtype, "grouped_mm"),
        "capacity": Capacity(e, k, n, d, f, dtype),
    }, dtype


def seconds(layer, x, dy):
    layer.zero_grad(set_to_none=True)
    x.grad = None
    begun = time.perf_counter()
    y = layer(x)
    (y[0] if isinstance(y, tuple) else y).backward(dy)
    return time.perf_counter() - begun


made, inputs = {}, {}
for line in sys.stdin:
    wanted = json.loads(line)
    if "form" in wanted:
        try:
            answer = seconds(made[wanted["form"]], *inputs[wanted["form"]])
        except (RuntimeError, NotImplementedError) as e:
            print(f"{wanted['form']}: {e}", file=sys.stderr)
            answer = None
    else:
        made, inputs = {}, {}
        made, dtype = forms(wanted)
        for name in made:
            lead = (wanted["choices"] * wanted["tokens"],) if name == "dense" else (1, wanted["tokens"])
            lead = (wanted["tokens"],) if name == "capacity" else lead
            x = torch.randn(*lead, wanted["width"]).to(dtype).requires_grad_()
            inputs[name] = (x, torch.randn(*lead, wanted["width"]).to(dtype))
        answer = list(made)
    print(json.dumps(answer), flush=True)
