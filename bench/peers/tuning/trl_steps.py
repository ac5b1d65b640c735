"""Steps of TRL's SFTTrainer on rows of tokens, f32; seconds and losses as JSON in the last line."""
import json
import sys
import tempfile
import time

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer

folder, rows, mode, threads, steps, length = *sys.argv[1:4], *map(int, sys.argv[4:])
torch.set_num_threads(threads)
tokenizer = AutoTokenizer.from_pretrained(folder)
tokenizer.pad_token = tokenizer.eos_token
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
data = []
for line in open(rows):
    row = json.loads(line)
    prompt, completion = (tokenizer(row[part])["input_ids"] for part in ("prompt", "completion"))
    data.append({"input_ids": prompt + completion, "labels": [-100] * len(prompt) + completion})
seconds, losses = [], []


class Clock(TrainerCallback):
    def on_step_begin(self, *args, **kwargs):
        self.begun = time.perf_counter()

    def on_step_end(self, *args, **kwargs):
        seconds.append(time.perf_counter() - self.begun)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            losses.append(float(logs["loss"]))


lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
with tempfile.TemporaryDirectory() as out:
    config = SFTConfig(
        output_dir=out, per_device_train_batch_size=4, max_steps=steps, logging_steps=1, learning_rate=1e-4, lr_scheduler_type="constant",
        weight_decay=0.0, max_grad_norm=1.0, report_to=[], use_cpu=True, bf16=False, save_strategy="no", gradient_checkpointing=False,
        max_length=length, packing=False, completion_only_loss=True, disable_tqdm=True, dataset_kwargs={"skip_prepare_dataset": True},
    )
    trainer = SFTTrainer(
        model=model, args=config, train_dataset=Dataset.from_list(data), processing_class=tokenizer,
        peft_config=lora if mode == "lora" else None, callbacks=[Clock()],
    )
    trainer.train()
print(json.dumps({"seconds": seconds, "losses": losses}))
