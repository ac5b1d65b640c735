"""The other side of tests/hf.rs: transformers writes and reads the directories.

    hf_oracle.py make DIR      writes DIR/<case>/hf (save_pretrained) and DIR/<case>/canonical.safetensors
    hf_oracle.py check DIR     DIR/<case>/export must load without missing or unexpected keys and hold the weights of
                               DIR/<case>/canonical.safetensors

`canonical` is an independent statement of how Bessemer names and shapes parameters; both directions are held against it.
Output projections, prefixes and shards are whatever transformers makes of them.
"""

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers import MistralConfig, MistralForCausalLM, MixtralConfig, MixtralForCausalLM
from transformers import OlmoeConfig, OlmoeForCausalLM
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

GPT2 = dict(vocab_size=97, n_positions=24, n_embd=32, n_layer=3, n_head=4, bos_token_id=1, eos_token_id=2)
LLAMA = dict(vocab_size=101, hidden_size=32, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=40, rope_theta=50000.0, rms_norm_eps=3e-6,
             bos_token_id=1, eos_token_id=2)

CASES = {
    "gpt2-tied": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
    "gpt2-untied": lambda: GPT2LMHeadModel(GPT2Config(**GPT2, tie_word_embeddings=False)),
    "gpt2-relu-inner": lambda: GPT2LMHeadModel(GPT2Config(**GPT2, activation_function="relu", n_inner=72)),
    "gpt2-bf16": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)).to(torch.bfloat16),
    "llama-gqa-untied": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)),
    "llama-gqa-tied": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, tie_word_embeddings=True)),
    "llama-head-dim": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, head_dim=12)),
    "llama-bias": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, attention_bias=True, mlp_bias=True)),
    "llama-attention-bias": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, attention_bias=True)),
    "llama-f16": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)).to(torch.float16),
    "llama-geglu": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, hidden_act="gelu_pytorch_tanh")),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**LLAMA, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**LLAMA)),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**LLAMA, num_local_experts=3)),
    "qwen2-moe": lambda: Qwen2MoeForCausalLM(Qwen2MoeConfig(**LLAMA, num_experts=5, num_experts_per_tok=2,
                                                            moe_intermediate_size=24, mlp_only_layers=[1],
                                                            shared_expert_intermediate_size=40)),
    "olmoe": lambda: OlmoeForCausalLM(OlmoeConfig(**LLAMA, num_experts=5, num_experts_per_tok=2)),
    "qwen3-moe": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**LLAMA, num_experts=5, num_experts_per_tok=2,
                                                            moe_intermediate_size=24, head_dim=8)),
}


def canonical(model):
    """Parameters of a transformers model under Bessemer's names and in its shapes."""
    s, c = model.state_dict(), model.config
    out = {}
    if c.model_type == "gpt2":
        t = "transformer."
        out["embed.tokens"], out["embed.positions"] = s[t + "wte.weight"], s[t + "wpe.weight"]
        for i in range(c.n_layer):
            a, b = f"layers.{i}.", f"{t}h.{i}."
            for ours, theirs in [("attention_norm", "ln_1"), ("mlp_norm", "ln_2")]:
                for k in ("weight", "bias"):
                    out[f"{a}{ours}.{k}"] = s[f"{b}{theirs}.{k}"]
            for ours, theirs in [("attention.qkv", "attn.c_attn"), ("attention.out", "attn.c_proj"),
                                 ("mlp.up", "mlp.c_fc"), ("mlp.down", "mlp.c_proj")]:
                out[f"{a}{ours}.weight"] = s[f"{b}{theirs}.weight"].t()
                out[f"{a}{ours}.bias"] = s[f"{b}{theirs}.bias"]
        for k in ("weight", "bias"):
            out[f"final_norm.{k}"] = s[f"{t}ln_f.{k}"]
    else:
        out["embed.tokens"] = s["model.embed_tokens.weight"]
        kinds = ["weight", "bias"]
        for i in range(c.num_hidden_layers):
            a, b = f"layers.{i}.", f"model.layers.{i}."
            out[a + "attention_norm.weight"] = s[b + "input_layernorm.weight"]
            out[a + "mlp_norm.weight"] = s[b + "post_attention_layernorm.weight"]
            if b + "self_attn.q_norm.weight" in s:
                for k in ("q_norm", "k_norm"):
                    out[f"{a}attention.{k}.weight"] = s[f"{b}self_attn.{k}.weight"]
            if b + "mlp.gate.weight" in s:  # in memory: experts x outputs x inputs, gate before up
                out[a + "mlp.router.weight"] = s[b + "mlp.gate.weight"]
                for ours, theirs in [("gate_up", "gate_up_proj"), ("down", "down_proj")]:
                    out[f"{a}mlp.experts.{ours}.weight"] = s[f"{b}mlp.experts.{theirs}"].flatten(0, 1)
            if b + "mlp.shared_expert_gate.weight" in s:
                of = {k: s[f"{b}mlp.shared_expert.{k}_proj.weight"] for k in ("gate", "up", "down")}
                out[a + "mlp.shared.gate_up.weight"] = torch.cat([of["gate"], of["up"]])
                out[a + "mlp.shared.down.weight"] = of["down"]
                out[a + "mlp.shared.gate.weight"] = s[b + "mlp.shared_expert_gate.weight"]
            for ours, theirs in [("attention.qkv", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
                                 ("attention.out", ["self_attn.o_proj"]),
                                 ("mlp.gate_up", ["mlp.gate_proj", "mlp.up_proj"]), ("mlp.down", ["mlp.down_proj"])]:
                for k in kinds:
                    found = [s[f"{b}{n}.{k}"] for n in theirs if f"{b}{n}.{k}" in s]
                    if found:
                        out[f"{a}{ours}.{k}"] = torch.cat(found)
        out["final_norm.weight"] = s["model.norm.weight"]
    if not c.tie_word_embeddings:
        out["head.weight"] = s["lm_head.weight"]
    return {k: v.clone().contiguous() for k, v in out.items()}


def make(root):
    for number, (name, build) in enumerate(CASES.items()):
        torch.manual_seed(number)
        model = build()
        with torch.no_grad():
            for p in model.parameters():  # norms and biases too: ones and zeros would hide a swap
                p.copy_(torch.randn_like(p.float()).to(p.dtype))
        folder = os.path.join(root, name)
        # A small limit makes several files and an index for every other case.
        model.save_pretrained(os.path.join(folder, "hf"), max_shard_size="20KB" if number % 2 else "1GB")
        save_file(canonical(model), os.path.join(folder, "canonical.safetensors"))


def check(root):
    for name in sorted(os.listdir(root)):
        export, want = os.path.join(root, name, "export"), os.path.join(root, name, "canonical.safetensors")
        if not os.path.isdir(export):
            continue
        model, info = AutoModelForCausalLM.from_pretrained(export, output_loading_info=True, dtype="auto")
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
            assert not info.get(key), (name, key, info[key])
        c, got, wanted = model.config, canonical(model), load_file(want)
        for key in sorted(set(got) | set(wanted)):
            if key not in wanted:  # a bias that Bessemer's model does not have
                assert key.endswith(".bias") and not got[key].any(), (name, key)
                continue
            w, g = wanted[key], got[key]
            assert w.dtype == g.dtype, (name, key, w.dtype, g.dtype)
            assert torch.equal(w[: g.shape[0]] if key in ("embed.tokens", "head.weight") else w, g), (name, key)
        if c.model_type == "llama":
            assert c.rope_parameters["rope_theta"] == 50000.0 and c.rope_parameters["rope_type"] == "default", name
            assert abs(c.rms_norm_eps - 3e-6) < 1e-12, name
        assert c.eos_token_id == 2 and model.generation_config.eos_token_id == 2, name
        model(torch.tensor([[1, 5, 9, 3]]))
        print("ok", name, c.architectures[0], len(got))


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](sys.argv[2])
