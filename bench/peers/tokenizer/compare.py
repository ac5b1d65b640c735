"""Training and encoding speed beside Hugging Face `tokenizers`, tiktoken, kitoken and rs-bpe, on the same text, with identical results.

Needs `pip install tokenizers tiktoken kitoken rs-bpe`.

    python collect_corpus.py CORPUS 100
    cargo build --release -p bessemer-tokenizer --example tokenizer_bench
    python compare.py CORPUS path/to/tokenizer_bench [ROUNDS]

Text of other languages, encoded on one thread beside tiktoken, with a vocabulary trained on it:

    python collect_languages.py LANGUAGES
    python compare.py --encode LANGUAGES path/to/tokenizer_bench [ROUNDS]

Each contestant runs in its own process, in turn, ROUNDS times; medians are printed. Reading files is outside all
clocks. "CPU" is the rate by processor time, where a contestant gives it: on a shared machine it says more. Identity: the trained tokenizer.json files must be equal byte for byte, and an order-dependent checksum of
all ids must be equal. rs-bpe knows OpenAI's vocabularies only; the last rounds use cl100k, taken out of rs-bpe and given to all.
"""
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VOCAB = 32768
ENCODE_BYTES = 25_000_000
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def documents(folder, limit=None):
    texts, total = [], 0
    for path in sorted(Path(folder).iterdir()):
        if limit is not None and total >= limit:
            break
        data = path.read_bytes()
        try:
            texts.append(data.decode("utf-8"))
        except UnicodeDecodeError:
            continue
        total += len(data)
    return texts, sum(len(t.encode()) for t in texts)


def checksum(all_ids):
    h = 0
    for ids in all_ids:
        for i in ids:
            h = (h * 31 + i) % ((1 << 61) - 1)
    return h


def hf_train(folder, threads, out):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    texts, size = documents(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, min_frequency=2, special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )
    start = time.perf_counter()
    tokenizer.train_from_iterator(texts, trainer)
    seconds = time.perf_counter() - start
    Path(out).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    return [{"seconds": seconds, "bytes": size}]


def hf_encode(folder, file, threads):
    from tokenizers import Tokenizer
    texts, size = documents(folder, ENCODE_BYTES)
    tokenizer = Tokenizer.from_file(file)
    start = time.perf_counter()
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    ids = [e.ids for e in encoded]
    seconds = time.perf_counter() - start
    return [{"seconds": seconds, "bytes": size, "checksum": checksum(ids), "tokens": sum(map(len, ids))}]


def tiktoken_encode(folder, file, threads):
    import tiktoken
    from tokenizers.pre_tokenizers import ByteLevel
    texts, size = documents(folder, ENCODE_BYTES)
    model = json.loads(Path(file).read_text(encoding="utf-8"))["model"]
    byte_of = {letter: byte for byte, letter in spelling().items()}
    specials = {"<|endoftext|>": model["vocab"].pop("<|endoftext|>")}
    ranks = {bytes(byte_of[c] for c in token): i for token, i in model["vocab"].items()}
    encoding = tiktoken.Encoding("ours", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=specials)
    start, before = time.perf_counter(), time.process_time()
    ids = encoding.encode_ordinary_batch(texts, num_threads=threads)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - before
    return [{"seconds": seconds, "cpu_seconds": cpu_seconds, "bytes": size, "checksum": checksum(ids), "tokens": sum(map(len, ids))}]


def kitoken_encode(folder, file, threads):
    from kitoken import Kitoken
    texts, size = documents(folder, ENCODE_BYTES)
    tokenizer = Kitoken.from_tokenizers_file(file)
    start = time.perf_counter()
    ids = [tokenizer.encode(text, False) for text in texts]
    seconds = time.perf_counter() - start
    return [{"seconds": seconds, "bytes": size, "checksum": checksum(ids), "tokens": sum(map(len, ids))}]


CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def spelling():
    """GPT-2's spelling of bytes as characters."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}


def cl100k_ranks():
    import rs_bpe
    bpe = rs_bpe.bpe.openai.cl100k_base().bpe()
    return {bytes(bpe.decode_tokens([i])): i for i in range(100256)}


def write_cl100k(out):
    """cl100k as a tokenizer.json: the two parts of a token are those that merges of lower rank leave of it."""
    ranks, letters = cl100k_ranks(), spelling()

    def parts(token):
        pieces = [token[i:i + 1] for i in range(len(token))]
        while len(pieces) > 2:
            joined = [ranks.get(a + b, 1 << 60) for a, b in zip(pieces, pieces[1:])]
            at = joined.index(min(joined))
            pieces[at:at + 2] = [pieces[at] + pieces[at + 1]]
        return pieces

    spell = lambda token: "".join(letters[b] for b in token)
    merges = [[spell(piece) for piece in parts(token)] for token in ranks if len(token) > 1]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
             "vocab": {spell(token): rank for token, rank in ranks.items()}, "merges": merges}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": CL100K}, "behavior": "Isolated", "invert": False}
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
             "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
             "post_processor": None, "decoder": byte_level, "model": model}
    Path(out).write_text(json.dumps(whole, ensure_ascii=False), encoding="utf-8")


def cl100k_rs_bpe(folder, file, threads):
    import rs_bpe
    texts, size = documents(folder, ENCODE_BYTES)
    tokenizer = rs_bpe.bpe.openai.cl100k_base()
    start = time.perf_counter()
    ids = [tokenizer.encode(text) for text in texts]
    seconds = time.perf_counter() - start
    return [{"seconds": seconds, "bytes": size, "checksum": checksum(ids), "tokens": sum(map(len, ids))}]


def cl100k_tiktoken(folder, file, threads):
    import tiktoken
    texts, size = documents(folder, ENCODE_BYTES)
    encoding = tiktoken.Encoding("cl100k", pat_str=CL100K, mergeable_ranks=cl100k_ranks(), special_tokens={})
    start = time.perf_counter()
    ids = encoding.encode_ordinary_batch(texts, num_threads=threads)
    seconds = time.perf_counter() - start
    return [{"seconds": seconds, "bytes": size, "checksum": checksum(ids), "tokens": sum(map(len, ids))}]


def alone(function, threads, *arguments):
    """Runs one of the functions above in a fresh process."""
    command = [sys.executable, __file__, "--only", function, *map(str, arguments)]
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM="true")
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def ours(bench, *arguments):
    lines = subprocess.run([bench, *map(str, arguments)], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in lines.splitlines()]


def rate(figures, clock):
    """Median MB/s by "seconds" or "cpu_seconds"; 0 where a figure has none."""
    return statistics.median(f["bytes"] / f[clock] / 1e6 if f.get(clock) else 0.0 for f in figures)


def row(name, threads, figures):
    rates = [f["bytes"] / f["seconds"] / 1e6 for f in figures]
    seconds = statistics.median(f["seconds"] for f in figures)
    cpu = rate(figures, "cpu_seconds")
    print(f"| {name} | {threads} | {seconds:.3f} | {rate(figures, 'seconds'):.1f} | {max(rates):.1f} | {f'{cpu:.1f}' if cpu else ''} |", flush=True)
    return statistics.median(rates)


HEADER = "| what | threads | median s | median MB/s | best MB/s | CPU MB/s |\n|---|---|---|---|---|---|"


def main():
    folder, bench = sys.argv[1], sys.argv[2]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    work = Path(tempfile.mkdtemp())
    own_file, hf_file = work / "ours.json", work / "hf.json"
    print(HEADER)
    for threads in (1, 2):
        a, b = [], []
        for _ in range(rounds):
            a += ours(bench, "train", folder, VOCAB, threads, own_file)
            b += alone("hf_train", threads, folder, threads, hf_file)
        same = own_file.read_bytes() == hf_file.read_bytes()
        ratio = row("train, ours", threads, a) / row("train, HF tokenizers", threads, b)
        print(f"| ratio {ratio:.1f}, files equal: {same} | | | | | |", flush=True)
    for threads in (1, 2):
        contest("", threads, rounds, bench, folder, own_file,
                {"tiktoken": "tiktoken_encode", "HF tokenizers": "hf_encode"} | ({"kitoken": "kitoken_encode"} if threads == 1 else {}))
    cl100k = work / "cl100k.json"
    write_cl100k(cl100k)
    contest(" cl100k", 1, rounds, bench, folder, cl100k,
            {"rs-bpe": "cl100k_rs_bpe", "kitoken": "kitoken_encode", "tiktoken": "cl100k_tiktoken"})


def contest(what, threads, rounds, bench, folder, file, peers):
    own, others = [], {peer: [] for peer in peers}
    for _ in range(rounds):
        own += ours(bench, "encode", folder, file, threads, 1, ENCODE_BYTES)
        for peer, function in peers.items():
            others[peer] += alone(function, threads, folder, file, threads)
    own_rate = row(f"encode{what}, ours", threads, own)
    ids = lambda figures: {(f["tokens"], f["checksum"]) for f in figures}
    for peer, figures in others.items():
        ratio = own_rate / row(f"encode{what}, {peer}", threads, figures)
        cpu = rate(own, "cpu_seconds") / (rate(figures, "cpu_seconds") or math.inf)
        by_cpu = f" (CPU {cpu:.2f})" if cpu else ""
        print(f"| ratio to {peer} {ratio:.2f}{by_cpu}, ids equal: {ids(own) == ids(figures)} | | | | | |", flush=True)


def encode_only():
    folder, bench = sys.argv[2], sys.argv[3]
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    own_file = Path(tempfile.mkdtemp()) / "ours.json"
    ours(bench, "train", folder, VOCAB, 1, own_file)
    print(HEADER)
    contest("", 1, rounds, bench, folder, own_file, {"tiktoken": "tiktoken_encode"})


if __name__ == "__main__":
    if sys.argv[1] == "--only":
        function, *arguments = sys.argv[2:]
        if function == "hf_train":
            result = hf_train(arguments[0], int(arguments[1]), arguments[2])
        else:
            result = globals()[function](arguments[0], arguments[1], int(arguments[2]))
        print(json.dumps(result))
    elif sys.argv[1] == "--encode":
        encode_only()
    else:
        main()
