"""Attention with masks by PyTorch's scaled_dot_product_attention in f64, gradients by autograd.

Masks come from outside: the sliding window from transformers' masking_utils, ALiBi's slopes from its Bloom. Inputs are an
integer formula that crates/operator-suite/src/attention_golden.rs writes down too. Run: python golden/attention/make.py
"""
import pathlib
import torch
from transformers.masking_utils import sliding_window_causal_mask_function
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes

B, T, H, G, E, SCALE = 2, 7, 6, 2, 4, 0.5
STARTS = [[0, 0, 0, 3, 3, 5, 5], [0, 1, 1, 1, 1, 1, 6]]


def value(number, count):
    i = torch.arange(count, dtype=torch.int64)
    return ((i * 7919 + number * 104729) % 2003).double() / 1001.5 - 1.0


def matrix(number, heads):
    # Rows b*T + t, columns h*E + i; as [b, h, t, i] for PyTorch.
    x = value(number, B * T * heads * E).reshape(B, T, heads, E).transpose(1, 2).contiguous()
    return x.requires_grad_()


def flat(x):
    return x.transpose(1, 2).reshape(-1).tolist()


def mask(window, alibi, documents):
    bias = torch.zeros(B, H, T, T, dtype=torch.float64)
    sliding = sliding_window_causal_mask_function(window) if window else None
    slopes = _get_alibi_slopes(H, torch.device("cpu")).double()
    for b in range(B):
        for i in range(T):
            for j in range(T):
                seen = j <= i and (not documents or j >= STARTS[b][i])
                if sliding is not None:
                    seen = seen and bool(sliding(b, 0, torch.tensor(i), torch.tensor(j)))
                for h in range(H):
                    bias[b, h, i, j] = (-slopes[h] * (i - j) if alibi else 0.0) if seen else float("-inf")
    return bias


lines = []
for name, window, alibi, documents in [
    ("causal", None, False, False),
    ("window", 3, False, False),
    ("alibi", None, True, False),
    ("documents", None, False, True),
    ("all", 2, True, True),
]:
    q, k, v, w = matrix(1, H), matrix(2, G), matrix(3, G), matrix(4, H)
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask(window, alibi, documents), scale=SCALE, enable_gqa=True
    )
    dq, dk, dv = torch.autograd.grad(out, [q, k, v], w.detach())
    for what, x in [("out", out), ("dq", dq), ("dk", dk), ("dv", dv)]:
        lines.append(f"{name} {what} " + " ".join(f"{y:.8g}" for y in flat(x)))
pathlib.Path(__file__).with_name("sdpa.txt").write_text("\n".join(lines) + "\n")
