"""The other side of tests/hf_logits.rs: the logits that transformers computes from a directory.

    hf_logits.py opt DIR        writes a random OPT to DIR (save_pretrained)
    hf_logits.py logits DIR     loads DIR and writes DIR/logits.json for the tokens of DIR/ids.json
    hf_logits.py peft DIR       the same with the adapters of DIR/adapters, loaded by PEFT
"""

import json
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoModelForCausalLM, OPTConfig, OPTForCausalLM


def opt(folder):
    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=2, ffn_dim=80, num_attention_heads=4, word_embed_proj_dim=32,
        max_position_embeddings=24, bos_token_id=1, eos_token_id=2, pad_token_id=None,
    )
    model = OPTForCausalLM(config)
    with torch.no_grad():
        for p in model.parameters():  # norms and biases too: ones and zeros would hide a swap
            p.copy_(torch.randn_like(p) * 0.3 + (1.0 if p.dim() == 1 else 0.0))
    model.save_pretrained(folder)


def peft(folder):
    from peft import PeftModel

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    write_logits(folder, PeftModel.from_pretrained(base, os.path.join(folder, "adapters")))


def logits(folder):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, attn_implementation="eager"
    )
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info.get(key), (folder, key, info[key])
    write_logits(folder, model)


def write_logits(folder, model):
    with open(os.path.join(folder, "ids.json")) as f:
        ids = torch.tensor(json.load(f))
    with torch.no_grad():
        found = model.eval()(input_ids=ids, use_cache=False).logits
    with open(os.path.join(folder, "logits.json"), "w") as f:
        json.dump(found.flatten().tolist(), f)
    print(type(model).__name__)


if __name__ == "__main__":
    {"opt": opt, "logits": logits, "peft": peft}[sys.argv[1]](sys.argv[2])
