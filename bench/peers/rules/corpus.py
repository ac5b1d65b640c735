"""Writes JSON lines of documents to judge: documentation, sources and prose that are on any developer's machine.

    python corpus.py OUT.jsonl [DOCUMENTS] [TEXT ...]

Takes markdown files, doc comments and sources of the crates in the cargo registry, pieces of the given text files, and
documents that are made wrong on purpose (lines and paragraphs repeated, bullets, brackets, ellipses, citations, policy
phrases, other scripts), so that every rule has something to drop. The same arguments give the same bytes.
"""
import json
import os
import random
import re
import sys

out, wanted = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4000
rng = random.Random(11)


def registry():
    root = os.path.join(os.environ.get("CARGO_HOME", os.path.expanduser("~/.cargo")), "registry", "src")
    found = []
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(files):
            if name.endswith((".md", ".rs", ".txt")):
                found.append(os.path.join(folder, name))
    rng.shuffle(found)
    return found


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


def doc_comments(source):
    lines = re.findall(r"^\s*//[/!] ?(.*)$", source, re.M)
    text = "\n".join(lines)
    return re.sub(r"```.*?```", "", text, flags=re.S)


def paragraphs(source):
    """Doc comments with their lines joined: closest to what an extractor makes of a page."""
    parts = re.split(r"\n\s*\n", doc_comments(source))
    return "\n".join(" ".join(part.split()) for part in parts if len(part.split()) > 4)


def spoil(text):
    lines = text.split("\n")
    kind = rng.randrange(14)
    if kind == 0:
        lines = lines * 2
    elif kind == 1:
        return text + "\n\n" + text
    elif kind == 2:
        lines = ["- " + line for line in lines]
    elif kind == 3:
        lines = [line + " ..." for line in lines]
    elif kind == 4:
        lines = [re.sub(r"\b(\w+)\b", r"\1 [12]", line, count=2) for line in lines]
    elif kind == 5:
        lines.insert(rng.randrange(len(lines) + 1), "Read our privacy policy and enable JavaScript to go on.")
    elif kind == 6:
        lines.insert(rng.randrange(len(lines) + 1), "Lorem ipsum dolor sit amet.")
    elif kind == 7:
        return text.replace("{", "").replace("}", "").replace("\n\n", "\n")
    elif kind == 8:
        return text.replace("\n", "\r\n")
    elif kind == 9:
        return text.translate(str.maketrans("aeiou", "äéîøü"))
    elif kind == 10:
        words = text.split(" ")
        at = rng.randrange(len(words) + 1)
        words[at:at] = words[max(0, at - 12):at] * rng.randrange(1, 4)
        return " ".join(words)
    elif kind == 11:
        return text.replace(".", "。").replace(",", "，").replace("the ", "这个")
    elif kind == 12:
        return text.replace(" the ", "\u00a0the\u2003").replace(".\n", "\u2028")
    else:
        return text[: rng.randrange(1, 400)]
    return "\n".join(lines)


documents = []
for path in sys.argv[3:]:
    text = read(path) or ""
    for start in range(0, len(text), 1500):
        piece = text[start:start + 1500]
        documents.append(piece)
        documents.append(spoil(re.sub(r"[|`{}#*]|\n(?=\S)", " ", piece) if rng.random() < 0.7 else piece))
for path in registry():
    if len(documents) >= wanted:
        break
    text = read(path)
    if not text:
        continue
    if path.endswith(".rs"):
        # A source as it is is nearly always lost to `{`: prose is what the rules were made for.
        kind = rng.randrange(8)
        text = text if kind == 0 else doc_comments(text) if kind < 3 else paragraphs(text)
    if len(text) < 200 and rng.random() < 0.9:
        continue
    documents.append(text[:30000])
    if rng.random() < 0.5:
        documents.append(spoil(text[:30000]))
rng.shuffle(documents)
with open(out, "w", encoding="utf-8") as file:
    for text in documents[:wanted]:
        file.write(json.dumps({"text": text}) + "\n")
print(f"{min(len(documents), wanted)} documents, {os.path.getsize(out)} bytes")
