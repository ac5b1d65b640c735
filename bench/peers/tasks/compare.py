"""`bessemer eval --tasks` beside the lm-evaluation-harness on the same task files with the same model, in one run.

    python bench/peers/tasks/compare.py --bessemer target/release/bessemer [--model gpt2|llama] [--limit N] [--batch-tokens 4096]

Needs lm_eval, torch and transformers; nothing is downloaded. The model is a random one of transformers with wide weights, so that it has opinions, and a
byte-level BPE tokenizer that is trained on the task texts; it is written as a Hugging Face directory and imported. Task files are made here: multiple
choice with few-shot examples and all accuracies, log-likelihoods, rolling perplexity, generated answers with filters.

Held against each other: every request's context and continuation, letter by letter; its log-likelihood (largest difference, relative to its size); whether
it is greedy; generated texts; every score and standard error. Exit code 1 if a text, a decision or an accuracy differs, or a number by more than float accuracy.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

WORDS = "the a cat dog bird farmer teacher sees finds likes small old green house river tree slowly often never two three naïve café".split()


def documents(rng, n):
    phrase = lambda k: " ".join(rng.choice(WORDS) for _ in range(k))
    rows = []
    for i in range(n):
        choices = []
        while len(choices) < 4:
            choice = phrase(rng.randrange(1, 5))
            if choice not in choices:
                choices.append(choice)
        rows.append({"id": i, "question": phrase(rng.randrange(3, 12)), "choices": choices, "label": rng.randrange(4), "text": phrase(rng.randrange(6, 20)),
                     "page": "\n\n".join(phrase(rng.randrange(10, 60)) for _ in range(rng.randrange(1, 5))) + "\n", "number": rng.randrange(100)})
    return rows


TASKS = {
    "choice": """
output_type: multiple_choice
description: "Complete the sentence.\\n\\n"
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: label
doc_to_choice: choices
num_fewshot: 2
metric_list:
  - metric: acc
  - metric: acc_norm
  - metric: acc_bytes
  - metric: acc_mutual_info
  - metric: exact_match
  - metric: brier_score
""",
    "pairs": """
output_type: multiple_choice
doc_to_text: ""
doc_to_target: 0
doc_to_choice: "{{[text, question]}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
""",
    "inputs": """
output_type: multiple_choice
doc_to_text: label
doc_to_target: "{{text}} "
doc_to_choice: "{{choices}}"
metric_list:
  - metric: acc
  - metric: mcc
""",
    "last_word": """
output_type: loglikelihood
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{' '+text.split(' ')[-1]}}"
""",
    "pages": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: page
""",
    "write": """
output_type: generate_until
doc_to_text: "{{question}} is"
doc_to_target: "{{number}}"
num_fewshot: 3
fewshot_config: {sampler: first_n}
generation_kwargs:
  until: ["\\n\\n", "cat"]
  max_gen_toks: 12
  do_sample: false
  temperature: 0.0
filter_list:
  - name: whole
    filter:
      - function: take_first
  - name: word
    filter:
      - function: regex
        regex_pattern: "([a-z]+)"
        group_select: -1
      - function: take_first
metric_list:
  - metric: exact_match
    ignore_case: true
    ignore_punctuation: true
  - metric: chrf
""",
}


def make(folder, rows):
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in TASKS.items():
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\ntest_split: test\nfewshot_split: test\nmetadata: {{version: 1.0}}\n"
        (folder / f"{name}.yaml").write_text(head + text)


def make_model(folder, kind, rows):
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((text for row in rows for text in (row["question"], row["page"])), trainer)
    end = "<|endoftext|>"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end).save_pretrained(folder)
    torch.manual_seed(1)
    size, end = tokenizer.get_vocab_size(), tokenizer.token_to_id(end)
    shape = dict(vocab_size=size, bos_token_id=end, eos_token_id=end, initializer_range=0.2)
    if kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(n_positions=128, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **shape))
    else:
        model = LlamaForCausalLM(LlamaConfig(hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                             max_position_embeddings=128, tie_word_embeddings=False, **shape))
    model.save_pretrained(folder, safe_serialization=True)


def harness(folder, model, limit):
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    begun = time.time()
    found = lm_eval.simple_evaluate(model="hf", model_args=f"pretrained={model},dtype=float32,device=cpu", tasks=list(TASKS), task_manager=manager,
                                    limit=limit, batch_size=8, log_samples=True, bootstrap_iters=1000)
    return found, time.time() - begun


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bessemer", required=True)
    parser.add_argument("--model", choices=["gpt2", "llama"], default="gpt2")
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        os.environ["HF_HOME"] = str(folder / "cache")
        rows = documents(random.Random(5), 60)
        make(folder, rows)
        make_model(folder / "model", args.model, rows)
        run = [args.bessemer, "--quiet"]
        subprocess.run(run + ["checkpoint", "import", str(folder / "model"), "--out", str(folder / "run")], check=True, stdout=subprocess.DEVNULL)
        begun = time.time()
        out = subprocess.run(run + ["eval", str(folder / "run"), "--json", "--tasks", ",".join(TASKS), "--task-dir", str(folder), "--limit", str(args.limit),
                                    "--samples", str(folder / "samples.jsonl"), "--bootstrap", "1000", "--batch-tokens", str(args.batch_tokens)],
                             check=True, stdout=subprocess.PIPE, text=True)
        seconds = time.time() - begun
        ours = json.loads(out.stdout)
        samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
        theirs, their_seconds = harness(folder, folder / "model", args.limit)
    sys.exit(compare(ours, samples, theirs, args, seconds, their_seconds))


def compare(ours, samples, theirs, args, seconds, their_seconds):
    failed = 0
    by_place = {(s["task"], s["filter"], s["document"]): s for s in samples}
    for task in TASKS:
        requests = texts = decisions = 0
        largest = 0.0
        for sample in theirs["samples"][task]:
            own = by_place[task, sample["filter"], sample["doc_id"]]
            arguments = list(sample["arguments"].values()) if isinstance(sample["arguments"], dict) else sample["arguments"]
            for asked, answer, own_request in zip(arguments, sample["resps"], own["requests"], strict=True):
                asked = list(asked.values()) if isinstance(asked, dict) else list(asked)
                requests += 1
                answered = own_request["answer"]
                answer = answer[0]
                if task == "write":
                    texts += asked[:1] != own_request["arguments"] or answered["texts"][0] != answer
                    continue
                texts += asked != own_request["arguments"]
                value = float(answer if task == "pages" else answer[0])
                largest = max(largest, abs(value - answered["log_likelihood"]) / max(1.0, abs(value)))
                if task in ("choice", "last_word"):
                    decisions += str(answer[1]) != str(answered["greedy"])
        print(f"{task:10} {requests:4} requests: {texts} texts differ, {decisions} greedy flags, log-likelihoods by at most {largest:.1e}")
        failed += texts + decisions + (largest > 1e-5)
    for task in ours["tasks"]:
        for score in task["scores"]:
            name, filter_, value, error = score["metric"], score["filter"], score["value"], score["stderr"]
            other = theirs["results"][task["task"]][f"{name},{filter_}"]
            other_error = theirs["results"][task["task"]][f"{name}_stderr,{filter_}"]
            exact = name.startswith("acc") or name in ("exact_match", "mcc")
            close = lambda a, b: abs(a - b) <= (1e-12 if exact else 2e-5) * max(1.0, abs(b))
            same = close(value, other) and (other_error == "N/A" or close(error, other_error))
            failed += not same
            print(f"{task['task']:10} {filter_:6} {name:16} {value:.10f} {other:.10f}   error {error} {other_error}   {'equal' if same else 'DIFFERENT'}")
    print(f"{args.model}: bessemer {seconds:.1f} s, a process; harness {their_seconds:.1f} s, without its imports; the same is asked and answered: {failed == 0}")
    return int(failed > 0)


if __name__ == "__main__":
    main()
