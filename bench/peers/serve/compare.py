"""`bessemer serve` beside transformers on the same model, in one run: numbers of the lm-evaluation-harness, throughput, latency.

    python bench/peers/serve/compare.py --bessemer target/release/bessemer --run runs/quickstart --text FILE [--text FILE ...]

Needs lm_eval[api], torch and transformers. The run is exported; the harness scores tasks made from the texts (multiple choice,
rolling perplexity, generation) once through the server (`local-completions`, unchanged) and once through transformers, and every
log-likelihood is compared. The same task files go through `bessemer eval --tasks`. Then the server and transformers
generate the same number of tokens from the same prompts.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

TASKS = {
    "choice": """task: choice
dataset_path: json
dataset_kwargs: {data_files: {test: DATA/choice.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
target_delimiter: ""
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "rolling": """task: rolling
dataset_path: json
dataset_kwargs: {data_files: {test: DATA/rolling.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}, {metric: word_perplexity}]
""",
    "generate": """task: generate
dataset_path: json
dataset_kwargs: {data_files: {test: DATA/generate.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{context}}"
doc_to_target: "{{target}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 24}
metric_list: [{metric: exact_match}]
""",
}


def write_tasks(directory, texts, documents):
    rng = random.Random(5)
    lines = [line for text in texts for line in text.splitlines() if len(line) > 24]
    whole = "\n".join(texts)
    rows = {"choice": [], "rolling": [], "generate": []}
    for _ in range(documents):
        at = rng.randrange(len(whole) - 600)
        passage = whole[at:at + 240]
        choices = [passage[160:200]] + [rng.choice(lines)[:40] for _ in range(3)]
        gold = rng.randrange(4)
        choices[0], choices[gold] = choices[gold], choices[0]
        rows["choice"].append({"context": passage[:160], "choices": choices, "gold": gold})
        rows["rolling"].append({"text": whole[at:at + rng.randrange(50, 600)]})
        rows["generate"].append({"context": passage[:160], "target": passage[160:].split("\n")[0]})
    for name, documents_of in rows.items():
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents_of))
        (directory / f"{name}.yaml").write_text(TASKS[name].replace("DATA", str(directory)))


class Server:
    def __init__(self, args):
        words = [args.bessemer, "serve", args.run, "--listen", "127.0.0.1:0", "--json", "--slots", str(args.slots),
                 "--threads", str(args.threads)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.start = json.loads(self.process.stdout.readline())
        self.url = "http://" + self.start["address"]

    def get(self, path):
        return urllib.request.urlopen(self.url + path).read().decode()

    def stop(self):
        self.process.terminate()
        return self.process.wait()


def samples(result):
    return {name: [s["resps"] for s in sorted(rows, key=lambda s: s["doc_id"])] for name, rows in result["samples"].items()}


def numbers(value):
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in numbers(v)]
    if isinstance(value, bool):
        return [float(value)]
    return [float(value)] if isinstance(value, (int, float)) else []


def harness(args, server, exported, tasks):
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    context = server.start["context"]
    models = {
        "serve": ("local-completions", {
            "base_url": server.url + "/v1/completions", "model": server.start["model"], "tokenizer": str(exported),
            "tokenizer_backend": "huggingface", "num_concurrent": 4, "max_length": context, "max_gen_toks": 24,
        }),
        # The harness cuts rolling windows of an interface two tokens shorter than its context.
        "transformers": ("hf", {"pretrained": str(exported), "device": "cpu", "dtype": "float32", "max_length": context - 2}),
    }
    results = {}
    for name, (kind, model_args) in models.items():
        begun = time.perf_counter()
        results[name] = lm_eval.simple_evaluate(
            model=kind, model_args=model_args, tasks=list(TASKS), task_manager=manager, log_samples=True, batch_size=1,
            bootstrap_iters=0)
        print(f"{name}: {time.perf_counter() - begun:.1f} s")
    ours, theirs = samples(results["serve"]), samples(results["transformers"])
    equal = True
    for task in TASKS:
        metrics = {k: v for k, v in results["serve"]["results"][task].items() if isinstance(v, float)}
        other = {k: results["transformers"]["results"][task][k] for k in metrics}
        a, b = numbers(ours[task]), numbers(theirs[task])
        if a:
            worst = max(abs(x - y) for x, y in zip(a, b, strict=True))
            print(f"{task}: {metrics} | transformers {other} | {len(a)} numbers, largest difference {worst:.2e}")
            equal &= worst < 2e-3
        else:
            same = sum(x == y for x, y in zip(ours[task], theirs[task], strict=True))
            print(f"{task}: {metrics} | transformers {other} | {same} of {len(ours[task])} texts are equal")
            equal &= same >= 0.98 * len(ours[task])
    return results["serve"]["results"], equal


def own_count(args, tasks, results):
    """Scores of the same task files by `bessemer eval`, which computes log-likelihoods in whole passes and without a server."""
    words = [args.bessemer, "eval", args.run, "--json", "--tasks", ",".join(str(tasks / f"{t}.yaml") for t in TASKS)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        print("bessemer eval --tasks:", *done.stderr.strip().splitlines()[-1:])
        return False
    equal = True
    for task in json.loads(done.stdout)["tasks"]:
        for score in task["scores"]:
            served = results[task["task"]].get(f"{score['metric']},{score['filter']}")
            print(f"{task['task']} {score['metric']}: {score['value']} by bessemer eval, {served} by the harness from the server")
            if score["metric"] in ("acc", "acc_norm", "exact_match"):
                equal &= served is not None and abs(served - score["value"]) < 1e-9
    return equal


def stream(url, prompt, tokens, times):
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    begun, chunks = time.perf_counter(), []
    with urllib.request.urlopen(request) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                chunks.append(time.perf_counter() - begun)
    times.append((chunks[0], chunks[-1]))


def speed(args, server, exported, texts):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if args.threads:
        torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(exported)
    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()
    ids = tokenizer("\n".join(texts), return_tensors="pt").input_ids[0][:100_000]
    prompts = [ids[i * 64:(i + 1) * 64].tolist() for i in range(args.requests)]
    model.generation_config.eos_token_id = None
    rates = {}
    for clients in (1, args.slots):
        for round_ in range(args.rounds):
            times, before = [], metric(server, "tokens_total")
            turns = [prompts[i::clients] for i in range(clients)]
            threads = [threading.Thread(target=lambda mine=mine: [stream(server.url, p, args.tokens, times) for p in mine]) for mine in turns]
            begun = time.perf_counter()
            [t.start() for t in threads]
            [t.join() for t in threads]
            seconds = time.perf_counter() - begun
            made = metric(server, "tokens_total") - before
            first = statistics.median(t[0] for t in times)
            rates.setdefault(f"serve, {clients} clients", []).append((made / seconds, first))
            begun = time.perf_counter()
            made, first = 0, []
            with torch.inference_mode():
                for i in range(0, len(prompts), clients):
                    batch = torch.tensor(prompts[i:i + clients])
                    one = time.perf_counter()
                    model.generate(batch, attention_mask=torch.ones_like(batch), max_new_tokens=1, do_sample=False)
                    first.append(time.perf_counter() - one)
                begun = time.perf_counter()
                for i in range(0, len(prompts), clients):
                    batch = torch.tensor(prompts[i:i + clients])
                    out = model.generate(batch, attention_mask=torch.ones_like(batch), max_new_tokens=args.tokens, do_sample=False)
                    made += out.numel() - batch.numel()
            rates.setdefault(f"transformers, batch {clients}", []).append((made / (time.perf_counter() - begun), statistics.median(first)))
    for name, rounds in rates.items():
        rate, first = (statistics.median(r[i] for r in rounds) for i in (0, 1))
        print(f"{name}: {rate:.0f} tokens/s, first token after {1000 * first:.1f} ms (medians of {len(rounds)})")


def metric(server, name):
    lines = server.get("/metrics").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"bessemer_serve_{name} "))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bessemer", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--text", required=True, action="append", help="a text file; of another text than the training's, best")
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="of both; 0: what each takes by itself")
    parser.add_argument("--only", choices=["harness", "speed"])
    args = parser.parse_args()
    texts = [pathlib.Path(name).read_text(errors="replace") for name in args.text]
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        exported, tasks = directory / "hf", directory / "tasks"
        tasks.mkdir()
        subprocess.run([args.bessemer, "checkpoint", "export", args.run, "--out", exported], check=True, stdout=subprocess.DEVNULL)
        write_tasks(tasks, texts, args.documents)
        server = Server(args)
        try:
            equal = True
            if args.only != "speed":
                results, equal = harness(args, server, exported, tasks)
                equal &= own_count(args, tasks, results)
            if args.only != "harness":
                speed(args, server, exported, texts)
        finally:
            code = server.stop()
        print(f"the server ended with code {code}")
        sys.exit(0 if equal and code == 0 else 1)


if __name__ == "__main__":
    main()
