"""Fine-tuning on answers in Bessemer and in TRL's SFTTrainer (transformers, PEFT), in turn: tokens a second and peak memory.

python compare.py --bessemer target/release/bessemer --python VENV/bin/python [--models gpt2-124m,llama-0.5b] [--modes full,lora]

VENV has torch, transformers, datasets, peft and trl. Both tune the same random weights in f32 on the same rows: as many tokens a
sequence as the model reads at once, half of them scored, four sequences a step, AdamW. Rates are medians of steps after the second.
Memory is the largest resident set of the process. Rounds go through both contestants before one comes again.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
MODELS = ["gpt2-124m", "llama-0.5b", "tiny"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bessemer", required=True)
    parser.add_argument("--python", required=True, help="a Python with torch, transformers, datasets, peft and trl")
    parser.add_argument("--models", default="gpt2-124m")
    parser.add_argument("--modes", default="full,lora")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--length", type=int, default=256)
    return parser.parse_args()


def measured(command, cwd, environment):
    """Runs a command; its output and its largest resident set in bytes."""
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(command, cwd=cwd, env={**os.environ, **environment}, stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(child.pid, 0)
        out.seek(0)
        text = out.read()
    if status:
        sys.exit(f"{' '.join(map(str, command))}: status {status}\n{text[-4000:]}")
    return text, usage.ru_maxrss * 1024


def bessemer(args, folder, model, mode, number):
    """Seconds of steps after the second, and memory."""
    name = f"{model}-{mode}-{number}"
    run = ["run", HERE / "tune.toml", "--set", f"run.name={name}", "--set", f"run.threads={args.threads}"]
    targets = '["qkv","out","up","down"]' if model != "llama-0.5b" else '["query","key","value","out","gate","up","down"]'
    sets = [f"train.steps={args.steps}", f"train.seq_len={args.length}", f"train.batch_tokens={4 * args.length}", f"train.init.from=runs/{model}",
            f"tokenizer.file=runs/{model}/tokenizer.json"]
    sets += [f"model.adapters.targets={targets}", "model.adapters.rank=16", "model.adapters.alpha=32"] if mode == "lora" else []
    sets += [f"model.{key}={json.dumps(value)}" for key, value in MODEL_TABLE[model].items()]
    command = [args.bessemer, *run, *[word for one in sets for word in ("--set", one)]]
    _, memory = measured(command, folder, {})
    log = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    steps = [record for record in map(json.loads, log) if record["kind"] == "step"]
    return [step["seconds"] for step in steps[2:]], memory, [step["loss"] for step in steps]


MODEL_TABLE = {
    "gpt2-124m": {"architecture": "gpt2", "layers": 12, "width": 768, "heads": 12, "context": 1024, "vocab_size": 50257},
    "tiny": {"architecture": "gpt2", "layers": 2, "width": 64, "heads": 2, "context": 1024, "vocab_size": 1000},
    "llama-0.5b": {"architecture": "llama", "layers": 24, "width": 1024, "heads": 16, "kv_heads": 16, "ffn_width": 4096, "context": 1024,
                   "vocab_size": 32000, "norm_eps": 1e-6, "tied_embeddings": True},
}


def trl(args, folder, model, mode, number):
    command = [args.python, HERE / "trl_steps.py", folder / model, folder / "rows.jsonl", mode, str(args.threads), str(args.steps), str(args.length)]
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(args.threads), "TOKENIZERS_PARALLELISM": "false"}
    text, memory = measured(command, folder, environment)
    found = json.loads(text.strip().splitlines()[-1])
    return found["seconds"][2:], memory, found["losses"]


def main():
    args = parse()
    args.bessemer, args.python = str(pathlib.Path(args.bessemer).resolve()), str(pathlib.Path(args.python).absolute())
    with tempfile.TemporaryDirectory(prefix="bessemer-tuning-") as made:
        folder = pathlib.Path(made)
        for model in args.models.split(","):
            table = json.dumps(MODEL_TABLE[model])
            measured([args.python, HERE / "make_model.py", folder / model, folder / "rows.jsonl", table, str(args.length)], folder, {})
            measured([args.bessemer, "checkpoint", "import", folder / model, "--out", f"runs/{model}"], folder, {})
            for mode in args.modes.split(","):
                found = {"bessemer": [], "trl": []}
                for number in range(args.rounds):
                    for name, contestant in (("bessemer", bessemer), ("trl", trl)):
                        found[name].append(contestant(args, folder, model, mode, number))
                seconds = {name: statistics.median(s for run in runs for s in run[0]) for name, runs in found.items()}
                memory = {name: max(run[1] for run in runs) for name, runs in found.items()}
                losses = {name: runs[0][2] for name, runs in found.items()}
                tokens = 4 * args.length
                print(f"{model} {mode}: bessemer {tokens / seconds['bessemer']:.0f} tok/s, trl {tokens / seconds['trl']:.0f} tok/s, "
                      f"ratio {seconds['trl'] / seconds['bessemer']:.2f}; memory {memory['bessemer'] / 2**20:.0f} and {memory['trl'] / 2**20:.0f} MiB, "
                      f"ratio {memory['bessemer'] / memory['trl']:.2f}; losses {losses['bessemer'][0]:.4f} to {losses['bessemer'][-1]:.4f} and "
                      f"{losses['trl'][0]:.4f} to {losses['trl'][-1]:.4f}", flush=True)


if __name__ == "__main__":
    main()
