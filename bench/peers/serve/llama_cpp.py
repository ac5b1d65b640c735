"""`bessemer serve` beside llama.cpp's `llama-server` on the same model, in one run: token ids, texts, log-probabilities, throughput, latency.

    python bench/peers/serve/llama_cpp.py --bessemer target/release/bessemer --run runs/quickstart --text FILE [--text FILE ...]

Needs `llama-server` (on PATH, or --llama-server) and no package. Where there is none, all is left out with a word. One way to build it from
a registry: `pip download --no-binary :all: --no-deps llama-cpp-python`, unpack, and in its vendor/llama.cpp
`cmake -B build -DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF && cmake --build build --target llama-server`.

The run is exported with `checkpoint export --to gguf`. For the numbers llama-server keeps its cache in f32 and computes attention without
flash attention, so that it computes what Bessemer computes; for the speed it has its defaults, a cache in f16 among them.
"""
import argparse
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

EXACT = ["--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off"]


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.loads(urllib.request.urlopen(request).read())


class Ours:
    name = "serve"

    def __init__(self, args, slots, threads):
        words = [args.bessemer, "serve", args.run, "--listen", "127.0.0.1:0", "--json", "--slots", str(slots), "--threads", str(threads)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.start = json.loads(self.process.stdout.readline())
        self.url = "http://" + self.start["address"]

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Theirs:
    name = "llama-server"

    def __init__(self, args, model, context, slots, threads, more):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        words = [args.llama_server, "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-np", str(slots), "-c", str(context * slots),
                 "-t", str(threads), "-tb", str(threads), "--cache-ram", "0", *more]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(words, stdout=self.log, stderr=subprocess.STDOUT)
        for _ in range(600):
            try:
                urllib.request.urlopen(self.url + "/health").read()
                return
            except (urllib.error.URLError, ConnectionError):
                if self.process.poll() is not None:
                    break
                time.sleep(0.2)
        self.log.seek(0)
        sys.exit(f"llama-server did not start: {self.log.read()[-2000:]}")

    def stop(self):
        self.process.terminate()
        self.process.wait()


def bessemer(args, *words):
    return subprocess.run([args.bessemer, *map(str, words)], check=True, capture_output=True, text=True).stdout


def encode(args, path):
    """Ids of a file, as `bessemer tokenizer encode` gives them."""
    return json.loads(bessemer(args, "tokenizer", "encode", args.run, path, "--json"))


def numbers(args, model, texts):
    """Ids of the texts, greedy texts of `bessemer generate` and of `serve`, and log-probabilities of every token, beside llama.cpp's."""
    ours = Ours(args, 1, args.threads[0])
    theirs = Theirs(args, model, ours.start["context"], 1, args.threads[0], EXACT)
    try:
        equal = True
        for path, text in zip(args.text, texts):
            ids = encode(args, path)
            found = post(theirs.url + "/tokenize", {"content": text, "add_special": False, "parse_special": False})["tokens"]
            print(f"{path}: {len(ids)} token ids, {'equal' if ids == found else 'they DIFFER'}")
            equal &= ids == found
        whole = "\n".join(texts)
        step = len(whole) // (args.documents + 1)
        prompts = [whole[i * step:i * step + 160] for i in range(args.documents)]
        greedy = ["--temperature", 0, "--max-tokens", args.tokens, "--json"]
        generated = [json.loads(bessemer(args, "generate", args.run, f"--prompt={p}", *greedy))["text"] for p in prompts]
        same, worst, compared = 0, 0.0, 0
        for prompt, text in zip(prompts, generated, strict=True):
            here = post(ours.url + "/v1/completions", {"prompt": prompt, "max_tokens": args.tokens, "temperature": 0, "logprobs": 0})["choices"][0]
            there = post(theirs.url + "/completion", {"prompt": prompt, "n_predict": args.tokens, "temperature": 0, "n_probs": 1, "cache_prompt": False})
            same += text == here["text"] == there["content"]
            # As far as the texts are the same tokens; a tie that falls otherwise makes all that follows incomparable.
            for a, b in zip(here["logprobs"]["token_logprobs"], there["completion_probabilities"]):
                if abs(a - b["logprob"]) > 0.05:
                    break
                worst, compared = max(worst, abs(a - b["logprob"])), compared + 1
        print(f"greedy: {same} of {len(prompts)} texts of up to {args.tokens} tokens are equal (generate, serve, llama.cpp); "
              f"{compared} log-probabilities, largest difference {worst:.2e} (bound {args.bound:.0e})")
        return equal and same == len(prompts) and worst < args.bound
    finally:
        ours.stop()
        theirs.stop()


def stream(url, prompt, tokens, end, results):
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
            "logit_bias": {str(end): -100}}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    begun, first, made = time.perf_counter(), None, 0
    with urllib.request.urlopen(request) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                first = first or time.perf_counter() - begun
                usage = json.loads(line[6:]).get("usage")
                made = usage["completion_tokens"] if usage else made
    results.append((first, made))


def processor_seconds(process):
    """What the process has used, waiting threads that spin included (Linux)."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def round_of(server, prompts, clients, tokens, end):
    """(tokens a second, median seconds to the first token, processor seconds a token) of all prompts, shared among the clients."""
    results, used = [], processor_seconds(server.process)
    work = lambda mine: [stream(server.url, p, tokens, end, results) for p in mine]
    threads = [threading.Thread(target=work, args=(prompts[i::clients],)) for i in range(clients)]
    begun = time.perf_counter()
    [t.start() for t in threads]
    [t.join() for t in threads]
    seconds = time.perf_counter() - begun
    assert len(results) == len(prompts) and all(made == tokens for _, made in results), results
    made = sum(made for _, made in results)
    return made / seconds, statistics.median(first for first, _ in results), (processor_seconds(server.process) - used) / made


def speed(args, model, ids, end):
    slots = max(args.clients)
    for threads in args.threads:
        ours = Ours(args, slots, threads)
        servers = [ours, Theirs(args, model, ours.start["context"], slots, threads, [])]
        try:
            for clients in args.clients:
                figures, at = {}, 0
                # One round to warm up. Every round has prompts of its own: neither server may know them from before.
                for turn in range(args.rounds + 1):
                    prompts = [ids[at + i * args.prompt:at + (i + 1) * args.prompt] for i in range(args.requests)]
                    at = (at + args.requests * args.prompt) % (len(ids) - args.requests * args.prompt)
                    for server in servers if turn % 2 else servers[::-1]:
                        figure = round_of(server, prompts, clients, args.tokens, end)
                        if turn:
                            figures.setdefault(server.name, []).append(figure)
                for name, rounds in figures.items():
                    rate, first, used = (statistics.median(r[i] for r in rounds) for i in range(3))
                    print(f"{name}, {threads} threads, {clients} clients: {rate:.0f} tokens/s, first token after {1000 * first:.1f} ms, "
                          f"{1000 * used:.2f} ms of processor a token (medians of {len(rounds)}; load {os.getloadavg()[0]:.1f})", flush=True)
        finally:
            for server in servers:
                server.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bessemer", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--text", required=True, action="append", help="a text file; of another text than the training's, best")
    parser.add_argument("--llama-server", default=shutil.which("llama-server"))
    parser.add_argument("--gguf", help="an f32 export of the run; made if left out")
    parser.add_argument("--documents", type=int, default=40, help="prompts whose texts are compared")
    parser.add_argument("--bound", type=float, default=1e-3, help="of differences of log-probabilities")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["numbers", "speed"])
    args = parser.parse_args()
    if not args.llama_server:
        print("left out: there is no llama-server on PATH, and --llama-server names none")
        return
    # As they are: Python would make line feeds of other line ends.
    texts = [pathlib.Path(name).read_bytes().decode() for name in args.text]
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        model = args.gguf
        if not model:
            model = directory / "model.gguf"
            bessemer(args, "checkpoint", "export", args.run, "--to", "gguf", "--out", model)
        equal = args.only == "speed" or numbers(args, model, texts)
        if args.only != "numbers":
            tokenizer = json.loads((pathlib.Path(args.run) / "tokenizer.json").read_text())
            end = next(t["id"] for t in tokenizer["added_tokens"] if t["content"] == "<|endoftext|>")
            speed(args, model, [i for name in args.text for i in encode(args, name)], end)
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
