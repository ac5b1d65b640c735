"""Losses of 20 steps of TRL's DPOTrainer, and the norm of the first gradient, for crates/train/src/preferences_tests.rs.

Model and pairs are the formulas of that test. Needs torch, transformers, datasets and trl (1.16.0 made the numbers).
"""

import math
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

PAIRS = [
    ([1, 5, 9, 3, 7, 2, 11, 4], [1, 5, 9, 6, 14, 8], 3),
    ([6, 6, 0, 14, 13, 8], [6, 6, 0, 14, 3, 12, 10], 4),
    ([12, 10, 2], [12, 10, 15, 9, 9, 1, 4, 4], 2),
]


def model():
    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=4, rms_norm_eps=1e-5, rope_theta=1e4, max_position_embeddings=16, tie_word_embeddings=False, attn_implementation="eager",
    )
    made = LlamaForCausalLM(config)
    names = ["model.embed_tokens"]
    for layer in range(2):
        names += [f"model.layers.{layer}.self_attn.{part}_proj" for part in "qkvo"]
        names += [f"model.layers.{layer}.mlp.{part}_proj" for part in ("gate", "up", "down")]
    names.append("lm_head")
    params = dict(made.named_parameters())
    with torch.no_grad():
        for k, name in enumerate(names):
            weight = params[f"{name}.weight"]
            values = [0.3 * math.sin(1.3 * j + 0.7 * k) for j in range(weight.numel())]
            weight.copy_(torch.tensor(values, dtype=torch.float32).reshape(weight.shape))
    return made


class Tokens(DPOTrainer):
    """Pairs are tokens already."""

    def _prepare_dataset(self, dataset, *args, **kwargs):
        return dataset


def tuned():
    rows = [{"prompt_ids": c[:n], "chosen_ids": c[n:], "rejected_ids": r[n:]} for c, r, n in PAIRS]
    vocabulary = {f"t{i}": i for i in range(16)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t0")), unk_token="t0", eos_token="t15", pad_token="t0"
    )
    with tempfile.TemporaryDirectory() as folder:
        config = DPOConfig(
            output_dir=folder, beta=0.5, learning_rate=1e-2, lr_scheduler_type="constant",
            per_device_train_batch_size=3, max_steps=20, logging_steps=1, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8,
            weight_decay=0.0, max_grad_norm=1e9, report_to=[], use_cpu=True, bf16=False, save_strategy="no", gradient_checkpointing=False,
            disable_tqdm=True,
        )
        trainer = Tokens(model=model(), ref_model=model(), args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
        losses = []
        compute = trainer.compute_loss

        def noted(*args, **kwargs):
            loss = compute(*args, **kwargs)
            losses.append(float(loss[0] if isinstance(loss, tuple) else loss))
            return loss

        trainer.compute_loss = noted
        trainer.train()
        log = trainer.state.log_history
    return losses, log[0]["grad_norm"], log[19]


losses, norm, last = tuned()
print(", ".join(f"{loss:.7f}" for loss in losses))
print("norm", norm, {name: value for name, value in last.items() if "rewards" in name})
