"""Ids of our encoder against Hugging Face `tokenizers` on a corpus and on random awkward text, for every pattern;
loading of our files by `transformers`; the error of a character tokenizer.

    python differential.py CORPUS path/to/tokenizer_bench [SEED]
"""
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer
from regenerate_goldens import AWKWARD, PRETOKENIZERS

ATOMS = AWKWARD + [
    "'", "s", "S", "re", "LL", "ve", "\u017f", " ", "  ", "\t", "\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "0", "12", "4567",
    "!", "..", "_", "\u00e9", "\u0301", "\u200d", "\ufeff", "\ufffd", "word", "Zebra", "\u4e2d\u6587",
]


def random_text(rng):
    pieces = []
    for _ in range(rng.randrange(1, 40)):
        if rng.random() < 0.3:
            point = rng.choice([rng.randrange(0x80, 0x3000), rng.randrange(0x110000)])
            pieces.append(chr(point) if not 0xD800 <= point <= 0xDFFF else "\u0378")
        else:
            pieces.append(rng.choice(ATOMS))
    return "".join(pieces)


def main():
    corpus, bench = sys.argv[1], sys.argv[2]
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    work = Path(tempfile.mkdtemp())
    folder = work / "texts"
    folder.mkdir()
    files, total = sorted(Path(corpus).iterdir()), 0
    rng.shuffle(files)
    for i, path in enumerate(files):
        (folder / f"c{i:05}").write_bytes(path.read_bytes())
        total += path.stat().st_size
        if total > 10_000_000:
            break
    every = "".join(chr(c) + " x"[c % 2] for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF)
    (folder / "every").write_bytes(every.encode())
    for i in range(3000):
        (folder / f"r{i:05}").write_bytes(random_text(rng).encode())
    names = sorted(p.name for p in folder.iterdir())
    texts = [(folder / name).read_bytes().decode() for name in names]
    for pattern in PRETOKENIZERS:
        out = work / f"{pattern}.json"
        subprocess.run([bench, "export", folder, "8000", pattern, out.with_suffix("")], check=True)
        file = out.with_suffix("") / "tokenizer.json"
        lines = subprocess.run([bench, "ids", folder, file], check=True, capture_output=True, text=True).stdout.splitlines()
        ours = [json.loads(line) for line in lines]
        theirs = [e.ids for e in Tokenizer.from_file(str(file)).encode_batch_fast(texts, add_special_tokens=False)]
        different = [names[i] for i in range(len(names)) if ours[i] != theirs[i]]
        print(f"{pattern}: {len(names)} texts, {sum(map(len, ours))} ids, different texts: {different[:5] or 'none'}")
        from transformers import AutoTokenizer
        loaded = AutoTokenizer.from_pretrained(out.with_suffix(""))
        sample = "I'll say <|endoftext|> na\u00efve 12345\n\n  ok"
        want = Tokenizer.from_file(str(file)).encode(sample).ids
        print(f"  transformers: {type(loaded).__name__}, ids equal: {loaded(sample)['input_ids'] == want}, "
              f"decodes: {loaded.decode(want, clean_up_tokenization_spaces=False) == sample}, eos {loaded.eos_token!r} {loaded.eos_token_id}, "
              f"size {len(loaded)}")
    out = work / "char"
    (work / "small").mkdir()
    text = "First Citizen:\nBefore we proceed \u00e9 any further, hear me speak.\n"
    (work / "small/a").write_text(text)
    subprocess.run([bench, "export", work / "small", "500", "char", out], check=True)
    from transformers import AutoTokenizer
    loaded = AutoTokenizer.from_pretrained(out)
    ids = json.loads(subprocess.run([bench, "ids", work / "small", out / "tokenizer.json"], check=True, capture_output=True, text=True).stdout)
    print(f"char: ids equal: {loaded(text)['input_ids'] == ids}, order of nanoGPT: {ids == [sorted(set(text)).index(c) for c in text]}, "
          f"decodes: {loaded.decode(ids, clean_up_tokenization_spaces=False) == text}")
    try:
        print("  unknown character gave", loaded("Q")["input_ids"])
    except Exception as error:
        print("  unknown character is an error:", error)


if __name__ == "__main__":
    main()
