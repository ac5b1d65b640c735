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
    BloomConfig, BloomForCausalLM, DeepseekV3Config, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
    MistralConfig, MistralForCausalLM, MixtralConfig, MixtralForCausalLM, OPTConfig, OPTForCausalLM, Qwen2Config,
    Qwen2ForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3Config, Qwen3ForCausalLM,
)
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

VOCAB, CONTEXT, BATCH, WIDTH, LAYERS, HEADS, KV_HEADS, FFN = 97, 16, 2, 32, 2, 4, 2, 64
# Experts of a layer, choices, width of an expert, width of the block beside them.
EXPERTS, CHOICES, EXPERT, SHARED = 8, 2, 24, 20
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


# How a parameter lies in a tensor there: (ours from theirs, write ours into theirs).
AS_IS = (lambda t: t, lambda t, x: t.copy_(x))
TRANSPOSED = (lambda t: t.T, lambda t, x: t.copy_(x.T))
# OPT looks position p up in row p + 2.
BEHIND_TWO = (lambda t: t[2:], lambda t, x: (t.zero_(), t[2:].copy_(x)))
# Stacks of experts are matrices one after the other; gates stand before what they gate in both.
STACKED = (lambda t: t.flatten(0, 1), lambda t, x: t.copy_(x.view(t.shape)))
VECTOR = (lambda t: t.reshape(1, -1), lambda t, x: t.copy_(x.view(t.shape)))
# BLOOM has queries, keys and values of each head together; here all queries come first, then all keys, all values.
HEADS_FIRST = (
    lambda t: t.unflatten(0, (HEADS, 3, -1)).transpose(0, 1).flatten(0, 2),
    lambda t, x: t.copy_(x.unflatten(0, (3, HEADS, -1)).transpose(0, 1).flatten(0, 2)),
)


def gpt2(**more):
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, **more,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager", dtype="float32",
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )
    names = [("embed.tokens", ["wte.weight"], AS_IS), ("embed.positions", ["wpe.weight"], AS_IS)]
    for i in range(LAYERS):
        for ours, theirs, lies in (
            ("attention_norm", "ln_1", AS_IS), ("attention.qkv", "attn.c_attn", TRANSPOSED),
            ("attention.out", "attn.c_proj", TRANSPOSED), ("mlp_norm", "ln_2", AS_IS),
            ("mlp.up", "mlp.c_fc", TRANSPOSED), ("mlp.down", "mlp.c_proj", TRANSPOSED),
        ):
            names.append((f"layers.{i}.{ours}.weight", [f"h.{i}.{theirs}.weight"], lies))
            names.append((f"layers.{i}.{ours}.bias", [f"h.{i}.{theirs}.bias"], AS_IS))
    names += [(f"final_norm.{p}", [f"ln_f.{p}"], AS_IS) for p in ("weight", "bias")]
    return GPT2LMHeadModel(config), [(o, ["transformer." + t for t in ts], lies) for o, ts, lies in names]


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}


def llama(tied, classes=(LlamaConfig, LlamaForCausalLM), qk_norm=False, qkv_bias=False, rope=None, width=FFN, **more):
    config = classes[0](
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=width, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5, rope_parameters=rope or {"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=tied, attn_implementation="eager", dtype="float32",
        bos_token_id=None, eos_token_id=None, pad_token_id=None, **more,
    )
    names = [("embed.tokens", ["embed_tokens.weight"])]
    norms = [("attention.q_norm", ["self_attn.q_norm"]), ("attention.k_norm", ["self_attn.k_norm"])]
    for i in range(LAYERS):
        for ours, theirs in (
            ("attention_norm", ["input_layernorm"]),
            ("attention.qkv", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
            *(norms if qk_norm else []),
            ("attention.out", ["self_attn.o_proj"]), ("mlp_norm", ["post_attention_layernorm"]),
            ("mlp.gate_up", ["mlp.gate_proj", "mlp.up_proj"]), ("mlp.down", ["mlp.down_proj"]),
        ):
            names.append((f"layers.{i}.{ours}.weight", [f"layers.{i}.{t}.weight" for t in theirs]))
            if qkv_bias and ours == "attention.qkv":
                names.append((f"layers.{i}.{ours}.bias", [f"layers.{i}.{t}.bias" for t in theirs]))
    names.append(("final_norm.weight", ["norm.weight"]))
    names = [(ours, [f"model.{t}" for t in theirs], AS_IS) for ours, theirs in names]
    if not tied:
        names.append(("head.weight", ["lm_head.weight"], AS_IS))
    return classes[1](config), names


def with_experts(model, names, shared):
    """The names of a Llama model whose feed-forward blocks have become mixtures of experts."""
    of_mixture = [("router.weight", ["gate.weight"], AS_IS)]
    of_mixture += [("router.correction", ["gate.e_score_correction_bias"], VECTOR)] if shared == "shared_experts" else []
    of_mixture += [
        ("experts.gate_up.weight", ["experts.gate_up_proj"], STACKED),
        ("experts.down.weight", ["experts.down_proj"], STACKED),
    ]
    if shared:
        of_mixture += [
            ("shared.gate_up.weight", [f"{shared}.gate_proj.weight", f"{shared}.up_proj.weight"], AS_IS),
            ("shared.down.weight", [f"{shared}.down_proj.weight"], AS_IS),
        ]
    of_mixture += [("shared.gate.weight", ["shared_expert_gate.weight"], AS_IS)] if shared == "shared_expert" else []
    mixtures = []
    for ours, theirs, lies in names:
        if ours.endswith("mlp.gate_up.weight"):
            layer = ours.removesuffix("mlp.gate_up.weight")
            mixtures += [
                (f"{layer}mlp.{o}", [f"model.{layer}mlp.{t}" for t in ts], read) for o, ts, read in of_mixture
            ]
        elif not ours.endswith("mlp.down.weight"):
            mixtures.append((ours, theirs, lies))
    return model, mixtures


def mixtral():
    experts = {"num_local_experts": EXPERTS, "num_experts_per_tok": CHOICES, "experts_implementation": "eager"}
    model, names = llama(True, (MixtralConfig, MixtralForCausalLM), **experts, head_dim=8, width=EXPERT)
    return with_experts(model, names, None)


def qwen2_moe():
    experts = {
        "num_experts": EXPERTS, "num_experts_per_tok": CHOICES, "moe_intermediate_size": EXPERT, "norm_topk_prob": False,
        "shared_expert_intermediate_size": SHARED, "experts_implementation": "eager",
    }
    return with_experts(*llama(True, (Qwen2MoeConfig, Qwen2MoeForCausalLM), qkv_bias=True, **experts), "shared_expert")


def deepseek_v3():
    """A Llama model with DeepSeek-V3's mixtures; its attention is none that Bessemer has."""
    model, names = llama(True)
    config = DeepseekV3Config(
        hidden_size=WIDTH, moe_intermediate_size=EXPERT, n_routed_experts=EXPERTS, num_experts_per_tok=CHOICES,
        n_group=4, topk_group=2, n_shared_experts=1, norm_topk_prob=True, routed_scaling_factor=2.5, dtype="float32",
        experts_implementation="eager",
    )
    for layer in model.model.layers:
        layer.mlp = DeepseekV3MoE(config)
    return with_experts(model, names, "shared_experts")


def opt():
    config = OPTConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=LAYERS, ffn_dim=4 * WIDTH, num_attention_heads=HEADS,
        max_position_embeddings=CONTEXT, dropout=0.0, attn_implementation="eager", dtype="float32",
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )
    d = "model.decoder."
    names = [("embed.tokens", [d + "embed_tokens.weight"], AS_IS)]
    names.append(("embed.positions", [d + "embed_positions.weight"], BEHIND_TWO))
    for i in range(LAYERS):
        for ours, theirs in (
            ("attention_norm", ["self_attn_layer_norm"]),
            ("attention.qkv", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
            ("attention.out", ["self_attn.out_proj"]), ("mlp_norm", ["final_layer_norm"]),
            ("mlp.up", ["fc1"]), ("mlp.down", ["fc2"]),
        ):
            for part in ("weight", "bias"):
                names.append((f"layers.{i}.{ours}.{part}", [f"{d}layers.{i}.{t}.{part}" for t in theirs], AS_IS))
    names += [(f"final_norm.{p}", [f"{d}final_layer_norm.{p}"], AS_IS) for p in ("weight", "bias")]
    return OPTForCausalLM(config), names


def bloom():
    """BLOOM without the normalisation of its embedding, which Bessemer does not have."""
    config = BloomConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS, hidden_dropout=0.0, attention_dropout=0.0,
        attn_implementation="eager", dtype="float32", bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )
    model = BloomForCausalLM(config)
    t = "transformer."
    model.transformer.word_embeddings_layernorm = torch.nn.Identity()
    names = [("embed.tokens", [t + "word_embeddings.weight"], AS_IS)]
    for i in range(LAYERS):
        for ours, theirs, lies in (
            ("attention_norm", "input_layernorm", AS_IS),
            ("attention.qkv", "self_attention.query_key_value", HEADS_FIRST),
            ("attention.out", "self_attention.dense", AS_IS), ("mlp_norm", "post_attention_layernorm", AS_IS),
            ("mlp.up", "mlp.dense_h_to_4h", AS_IS), ("mlp.down", "mlp.dense_4h_to_h", AS_IS),
        ):
            for part in ("weight", "bias"):
                names.append((f"layers.{i}.{ours}.{part}", [f"{t}h.{i}.{theirs}.{part}"], lies))
    names += [(f"final_norm.{p}", [f"{t}ln_f.{p}"], AS_IS) for p in ("weight", "bias")]
    return model, names


def loss_of(model, step):
    ids, targets = batch(step)
    logits = model(input_ids=ids).logits
    assert logits.dtype == torch.float32
    return logits, torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets, ignore_index=-100)


def make(label, model, names):
    model.eval()
    trained = dict(model.named_parameters())
    # Corrections of a router's choices are state that is not trained.
    theirs = trained | {name: b for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")}
    assert {t for _, ts, _ in names for t in ts} == set(theirs), "every parameter has a name here"
    with torch.no_grad():
        for index, (ours, parts, (read, write)) in enumerate(names):
            shapes = [read(theirs[t]).shape for t in parts]
            rows = [s[0] for s in shapes]
            whole = values(index, ours, (sum(rows), *shapes[0][1:]))
            for t, piece in zip(parts, torch.split(whole, rows)):
                write(theirs[t], piece)

    logits, loss = loss_of(model, 0)
    loss.backward()
    stored = {"logits": logits.detach().reshape(-1, VOCAB).numpy()}
    for ours, parts, (read, _) in names:
        if any(t not in trained for t in parts):
            continue
        grads = [read(theirs[t].grad) for t in parts]
        stored[f"grad.{ours}"] = np.ascontiguousarray(torch.cat(grads).numpy())
    first_loss = loss.item()

    matrices = [p for p in trained.values() if p.dim() >= 2]
    vectors = [p for p in trained.values() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": OPTIM["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}],
        lr=OPTIM["lr"], betas=(OPTIM["beta1"], OPTIM["beta2"]), eps=OPTIM["eps"],
    )
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        _, loss = loss_of(model, step)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(trained.values(), OPTIM["clip"]).item())
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
        "gpt2-relu2": make("gpt2-relu2", *gpt2(activation_function="relu2")),
        "opt": make("opt", *opt()),
        "bloom-alibi": make("bloom-alibi", *bloom()),
        "llama": make("llama", *llama(tied=False)),
        "llama-tied": make("llama-tied", *llama(tied=True)),
        "llama3-scaling": make("llama3-scaling", *llama(tied=True, rope=LLAMA3)),
        "mistral-window": make(
            "mistral-window", *llama(True, (MistralConfig, MistralForCausalLM), sliding_window=5, head_dim=8)
        ),
        "qwen2": make("qwen2", *llama(True, (Qwen2Config, Qwen2ForCausalLM), qkv_bias=True)),
        "qwen3": make("qwen3", *llama(True, (Qwen3Config, Qwen3ForCausalLM), qk_norm=True, head_dim=8)),
        "mixtral": make("mixtral", *mixtral()),
        "qwen2-moe": make("qwen2-moe", *qwen2_moe()),
        "deepseek-v3-experts": make("deepseek-v3-experts", *deepseek_v3()),
    }
    (Path(__file__).parent / "losses.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
