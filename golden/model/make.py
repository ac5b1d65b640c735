"""Golden numbers of tiny decoders, computed by Hugging Face transformers and PyTorch (fp32, eager attention).

For each model: logits and gradients at the first batch, and the losses and gradient norms of ten AdamW steps with
weight decay on matrices only and clipping at 1.0. Weights and tokens come from an integer formula that the Rust test
repeats, so only results are stored, under Bessemer's parameter names and layouts.

Needs torch, transformers, safetensors, numpy. Writes next to itself:

    python golden/model/make.py
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from transformers import (
    GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB, CONTEXT, BATCH, WIDTH, LAYERS, HEADS, KV_HEADS, FFN = 97, 16, 2, 32, 2, 4, 2, 64
STEPS = 10
OPTIM = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}


def mix(stream, count):
    """MurmurHash3's 32-bit finaliser over a counter: `count` words of stream number `stream`."""
    x = (np.arange(count, dtype=np.uint64) + 0x9E3779B9 * (stream + 1)) & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x ^= x >> np.uint64(shift)
        x = (x * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return x ^ (x >> np.uint64(16))


def values(index, name, shape):
    """Uniform in [-1/4, 1/4) on a grid of 2^-25 (exact in fp32); norm weights around 1."""
    u = (mix(index, int(np.prod(shape))) >> np.uint64(8)).astype(np.float64) / 2**24 - 0.5
    u = u / 2 + (1.0 if "norm.weight" in name else 0.0)
    return torch.tensor(u.reshape(shape), dtype=torch.float32)


def batch(step):
    """Two batches take turns; every seventh target is not scored."""
    ids = torch.tensor((mix(1000 + step % 2, BATCH * (CONTEXT + 1)) % np.uint64(VOCAB)).astype(np.int64))
    ids = ids.view(BATCH, CONTEXT + 1)
    targets = ids[:, 1:].clone().reshape(-1)
    targets[3::7] = -100
    return ids[:, :-1], targets


def gpt2():
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager", dtype="float32",
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )
    names = [("embed.tokens", ["wte.weight"], False), ("embed.positions", ["wpe.weight"], False)]
    for i in range(LAYERS):
        for ours, theirs, transposed in (
            ("attention_norm", "ln_1", False), ("attention.qkv", "attn.c_attn", True),
            ("attention.out", "attn.c_proj", True), ("mlp_norm", "ln_2", False),
            ("mlp.up", "mlp.c_fc", True), ("mlp.down", "mlp.c_proj", True),
        ):
            for part in ("weight", "bias"):
                names.append((f"layers.{i}.{ours}.{part}", [f"h.{i}.{theirs}.{part}"], transposed and part == "weight"))
    names += [(f"final_norm.{p}", [f"ln_f.{p}"], False) for p in ("weight", "bias")]
    return GPT2LMHeadModel(config), [(o, ["transformer." + t for t in ts], tr) for o, ts, tr in names]


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}


def llama(tied, classes=(LlamaConfig, LlamaForCausalLM), qk_norm=False, rope=None, **more):
    config = classes[0](
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=FFN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5, rope_parameters=rope or {"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=tied, attn_implementation="eager", dtype="float32",
        bos_token_id=None, eos_token_id=None, pad_token_id=None, **more,
    )
    names = [("embed.tokens", ["embed_tokens"])]
    norms = [("attention.q_norm", ["self_attn.q_norm"]), ("attention.k_norm", ["self_attn.k_norm"])]
    for i in range(LAYERS):
        for ours, theirs in (
            ("attention_norm", ["input_layernorm"]),
            ("attention.qkv", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
            *(norms if qk_norm else []),
            ("attention.out", ["self_attn.o_proj"]), ("mlp_norm", ["post_attention_layernorm"]),
            ("mlp.gate_up", ["mlp.gate_proj", "mlp.up_proj"]), ("mlp.down", ["mlp.down_proj"]),
        ):
            names.append((f"layers.{i}.{ours}.weight", [f"layers.{i}.{t}" for t in theirs]))
    names.append(("final_norm.weight", ["norm"]))
    names = [(ours, [f"model.{t}.weight" for t in theirs], False) for ours, theirs in names]
    if not tied:
        names.append(("head.weight", ["lm_head.weight"], False))
    return classes[1](config), names


def loss_of(model, step):
    ids, targets = batch(step)
    logits = model(input_ids=ids).logits
    assert logits.dtype == torch.float32
    return logits, torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets, ignore_index=-100)


def make(label, model, names):
    model.eval()
    theirs = dict(model.named_parameters())
    assert {t for _, ts, _ in names for t in ts} == set(theirs), "every parameter has a name here"
    with torch.no_grad():
        for index, (ours, parts, transposed) in enumerate(names):
            shapes = [theirs[t].T.shape if transposed else theirs[t].shape for t in parts]
            rows = [s[0] for s in shapes]
            whole = values(index, ours, (sum(rows), *shapes[0][1:]))
            for t, piece in zip(parts, torch.split(whole, rows)):
                theirs[t].copy_(piece.T if transposed else piece)

    logits, loss = loss_of(model, 0)
    loss.backward()
    stored = {"logits": logits.detach().reshape(-1, VOCAB).numpy()}
    for ours, parts, transposed in names:
        grads = [theirs[t].grad.T if transposed else theirs[t].grad for t in parts]
        stored[f"grad.{ours}"] = np.ascontiguousarray(torch.cat(grads).numpy())
    first_loss = loss.item()

    matrices = [p for p in theirs.values() if p.dim() >= 2]
    vectors = [p for p in theirs.values() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": OPTIM["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}],
        lr=OPTIM["lr"], betas=(OPTIM["beta1"], OPTIM["beta2"]), eps=OPTIM["eps"],
    )
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        _, loss = loss_of(model, step)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(theirs.values(), OPTIM["clip"]).item())
        losses.append(loss.item())
        optimizer.step()
    here = Path(__file__).parent
    save_file(stored, here / f"{label}.safetensors", metadata={"format": "pt"})
    return {"loss": first_loss, "losses": losses, "grad_norms": norms}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    record = {
        "made_by": f"golden/model/make.py, torch {torch.__version__}, transformers {transformers.__version__}",
        "optim": OPTIM,
        "gpt2": make("gpt2", *gpt2()),
        "llama": make("llama", *llama(tied=False)),
        "llama-tied": make("llama-tied", *llama(tied=True)),
        "llama3-scaling": make("llama3-scaling", *llama(tied=True, rope=LLAMA3)),
        "mistral-window": make(
            "mistral-window", *llama(True, (MistralConfig, MistralForCausalLM), sliding_window=5, head_dim=8)
        ),
        "qwen3": make("qwen3", *llama(True, (Qwen3Config, Qwen3ForCausalLM), qk_norm=True, head_dim=8)),
    }
    (Path(__file__).parent / "losses.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
