"""The other side of hf_oracle.rs: transformers reads what Bessemer exported, and writes what Bessemer imports.

    hf_oracle.py read DIR < REQUEST    DIR is a model directory; the answer is JSON on standard output
    hf_oracle.py make DIR STYLE SIZE < REQUEST
                                       puts a model with random weights (gpt2 or llama) for a vocabulary of that size
                                       beside the tokenizer in DIR, then does the same

A request is {"texts": [...], "prompts": [...], "new": tokens to generate, "shard": path or null, "seq": window}.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)


def shard_tokens(path):
    """Tokens of a shard file, after the table in the README of the shards crate."""
    data = open(path, "rb").read()
    width = int.from_bytes(data[16:20], "little")
    tokens = int.from_bytes(data[32:40], "little")
    return np.frombuffer(data, dtype=f"<u{width}", count=tokens, offset=128).astype(np.int64)


def loss(model, tokens, first, seq):
    """Mean loss of all tokens in windows of `seq` inputs that do not overlap; `first` is before the first token."""
    tokens = torch.from_numpy(np.concatenate([[first], tokens]))
    nats, scored = 0.0, 0
    for start in range(0, len(tokens) - 1, seq):
        window = tokens[start : start + seq + 1]
        logits = model(window[None, :-1]).logits[0].double()
        nats += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
        scored += len(window) - 1
    return {"loss": nats / scored, "tokens": scored}


def read(directory):
    request = json.load(sys.stdin)
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True, dtype=torch.float32)
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    end = tokenizer.eos_token_id
    answer = {
        "class": type(model).__name__,
        "tokenizer": type(tokenizer).__name__,
        "vocabulary": len(tokenizer),
        "problems": {k: sorted(map(str, v)) for k, v in info.items() if v},
        "end": [end, model.config.eos_token_id, model.config.bos_token_id],
        "ids": [tokenizer(text, add_special_tokens=False)["input_ids"] for text in request["texts"]],
        "begins": tokenizer("the")["input_ids"],
        "greedy": [],
    }
    with torch.no_grad():
        for prompt in request["prompts"]:
            # As a user calls it: the export itself puts the end of text before the prompt.
            ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                                 max_new_tokens=request["new"], pad_token_id=end)
            new = out[0, ids.shape[1] :].tolist()
            answer["greedy"].append(new[: new.index(end)] if end in new else new)
        if request["shard"]:
            answer["loss"] = loss(model, shard_tokens(request["shard"]), end, request["seq"])
    json.dump(answer, sys.stdout)


def make(directory, style, size):
    torch.manual_seed(11)
    # A wide initialisation keeps logits apart, so that rounding cannot change which is the largest.
    if style == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(vocab_size=size, n_positions=40, n_embd=48, n_layer=3, n_head=3,
                                           initializer_range=0.3, bos_token_id=0, eos_token_id=0))
    else:
        model = LlamaForCausalLM(LlamaConfig(vocab_size=size, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
                                             num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=40,
                                             rope_theta=30000.0, rms_norm_eps=2e-6, initializer_range=0.3,
                                             bos_token_id=0, eos_token_id=0))
    model.save_pretrained(directory)


if sys.argv[1] == "make":
    make(sys.argv[2], sys.argv[3], int(sys.argv[4]))
read(sys.argv[2])
