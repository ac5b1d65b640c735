"""Random weights in Hugging Face's layout with a tokenizer of one token a byte, and rows whose halves are prompt and completion."""
import json
import pathlib
import random
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

folder, rows, table, length = pathlib.Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
torch.manual_seed(1)
if table["architecture"] == "gpt2":
    config = GPT2Config(vocab_size=table["vocab_size"], bos_token_id=0, eos_token_id=0, n_positions=table["context"], n_embd=table["width"], n_layer=table["layers"],
                        n_head=table["heads"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = GPT2LMHeadModel(config)
else:
    config = LlamaConfig(vocab_size=table["vocab_size"], hidden_size=table["width"], intermediate_size=table["ffn_width"],
                         num_hidden_layers=table["layers"], num_attention_heads=table["heads"], num_key_value_heads=table["kv_heads"],
                         max_position_embeddings=table["context"], tie_word_embeddings=table["tied_embeddings"])
    model = LlamaForCausalLM(config)
model.save_pretrained(folder)
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {"<|endoftext|>": 0, **{character: number + 1 for number, character in enumerate(alphabet)}}
tokenizer = Tokenizer(models.BPE(vocabulary, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
fast.chat_template = "{{ messages[0].content }}{% generation %}{{ messages[1].content }}{% endgeneration %}"
fast.save_pretrained(folder)
draw = random.Random(1)
letters = "abcdefghijklmnopqrstuvwxyz"
with open(rows, "w") as out:
    for _ in range(256):
        prompt, completion = ("".join(draw.choices(letters, k=length // 2)) for _ in range(2))
        out.write(json.dumps({"prompt": prompt, "completion": completion}) + "\n")
