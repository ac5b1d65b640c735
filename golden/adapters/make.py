"""Six steps of small models by transformers and PEFT, for crates/parallel/tests/integration/adapters.rs: prints trained elements, the norm of the
first gradient, the losses before each step and after them.

    python golden/adapters/make.py      (torch, transformers, peft)

Matrix k in the order of transformers' parameters without norms and biases, element j: .3 sin(1.3 j + .7 k). A of adapters: .2 cos(.9 j + .5 k), k
counts A and B of all modules in order; B is zero.
"""

import math

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

IDS = torch.tensor([[1, 5, 9, 3, 7, 2, 11, 4], [6, 6, 0, 14, 13, 8, 10, 12]])
LABELS = IDS.clone()
LABELS[0, :3] = -100
LABELS[1, :5] = -100
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def filled(model):
    number = 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif "norm" in name or "ln_" in name:
                parameter.fill_(1.0)
            else:
                values = [0.3 * math.sin(1.3 * j + 0.7 * number) for j in range(parameter.numel())]
                parameter.copy_(torch.tensor(values).view_as(parameter))
                number += 1
    return model


def llama():
    return filled(LlamaForCausalLM(LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=4, rms_norm_eps=1e-5, rope_theta=1e4, tie_word_embeddings=False,
        max_position_embeddings=16,
    )).float())


def gpt2():
    return filled(GPT2LMHeadModel(GPT2Config(
        vocab_size=16, n_positions=16, n_embd=8, n_inner=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=1, eos_token_id=2,
    )).float())


def six_steps(label, model, **adapters):
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **adapters))
    number = 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_A." in name:
                values = [0.2 * math.cos(0.9 * j + 0.5 * number) for j in range(parameter.numel())]
                parameter.copy_(torch.tensor(values).view_as(parameter))
            elif ".lora_B." in name:
                parameter.zero_()
            number += ".lora_A." in name or ".lora_B." in name
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
    losses, norms = [], []
    for _ in range(7):
        optimizer.zero_grad()
        loss = model(input_ids=IDS, labels=LABELS).loss
        loss.backward()
        losses.append(f"{loss.item():.6f}")
        norms.append(math.sqrt(sum((parameter.grad**2).sum().item() for parameter in trained)))
        optimizer.step()
    print(f"{label}: {sum(p.numel() for p in trained)}, {norms[0]:.6f}, [{', '.join(losses)}]")


if __name__ == "__main__":
    torch.set_num_threads(1)
    two = {"r": 2, "lora_alpha": 4}
    six_steps("LoRA of query and value", llama(), target_modules=["q_proj", "v_proj"], **two)
    six_steps("LoRA of all maps", llama(), target_modules=ALL, **two)
    six_steps("rsLoRA of all maps", llama(), target_modules=ALL, r=4, lora_alpha=4, use_rslora=True)
    six_steps("DoRA of query and value", llama(), target_modules=["q_proj", "v_proj"], use_dora=True, **two)
    six_steps("DoRA of all maps", llama(), target_modules=ALL, use_dora=True, **two)
    six_steps("ranks and alphas by target", llama(), target_modules=["q_proj", "v_proj", "down_proj"],
              rank_pattern={"v_proj": 1, "down_proj": 3}, alpha_pattern={"down_proj": 6}, **two)
    fused = {"target_modules": ["c_attn"], "fan_in_fan_out": True, **two}
    six_steps("DoRA of GPT-2's fused map", gpt2(), use_dora=True, **fused)
    six_steps("LoRA of GPT-2's fused map", gpt2(), **fused)
