"""A corpus with planted near-duplicates, from texts on this machine, the same for the same arguments and texts.

    python make_corpus.py OUT.jsonl [DOCUMENTS] [DUPLICATE_SHARE] [WORDS] [SEED] [FOLDER]

A document is a list of sentences drawn from the .md and .rs files below FOLDER (default: the sources of the cargo
registry), about WORDS words. DUPLICATE_SHARE of the documents copy an earlier one with one run of words replaced,
for a Jaccard similarity of word 5-grams spread evenly from 0.5 to 1. Each line: text, id, of (the row copied, or
-1), jaccard (exact, of sets of lowercased word 5-grams).
"""
import json
import random
import re
import sys
from pathlib import Path

WORD = re.compile(r"[^\W_]+")


def sentences(folder, limit):
    found = []
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".md", ".rs")):
        try:
            text = path.read_text()
        except (UnicodeDecodeError, OSError):
            continue
        for sentence in re.split(r"(?<=[.!?;])\s+", text):
            words = sentence.split()
            if 5 <= len(words) <= 40:
                found.append(words)
        if len(found) > limit:
            break
    return found


def grams(words):
    plain = WORD.findall(" ".join(words).lower())
    return {tuple(plain[i : i + 5]) for i in range(max(1, len(plain) - 4))}


def main():
    out = Path(sys.argv[1])
    argument = lambda i, default: sys.argv[i] if len(sys.argv) > i else default
    documents, share = int(argument(2, 20000)), float(argument(3, 0.2))
    length, seed = int(argument(4, 500)), int(argument(5, 1))
    folder = Path(argument(6, Path.home() / ".cargo/registry/src"))
    draw = random.Random(seed)
    pool = sentences(folder, 400_000)
    if not pool:
        sys.exit(f"no .md or .rs file below {folder} has sentences; name another FOLDER")
    rows, of = [], []
    for row in range(documents):
        if row and draw.random() < share:
            source = draw.randrange(row)
            words = list(rows[source])
            target = draw.uniform(0.5, 1.0)
            windows = max(1, len(words) - 4)
            cut = max(0, round(windows * (1 - target) / (1 + target)) - 4)
            if cut:
                at = draw.randrange(max(1, len(words) - cut))
                fresh = [w for _ in range(cut // 5 + 1) for w in draw.choice(pool)][:cut]
                words[at : at + cut] = fresh
            # A copy of a copy is related to both: truth is told of the row it was made from.
            of.append(source)
        else:
            words, goal = [], draw.randint(length // 2, length * 3 // 2)
            while len(words) < goal:
                words += draw.choice(pool)
            of.append(-1)
        rows.append(words)
    with out.open("w") as file:
        for row, words in enumerate(rows):
            similarity = 0.0
            if of[row] >= 0:
                a, b = grams(words), grams(rows[of[row]])
                similarity = len(a & b) / len(a | b)
            file.write(json.dumps({"text": " ".join(words), "id": row, "of": of[row], "jaccard": similarity}) + "\n")
    print(f"{documents} documents, {sum(o >= 0 for o in of)} of them copies, {out.stat().st_size / 1e6:.1f} MB")


main()
