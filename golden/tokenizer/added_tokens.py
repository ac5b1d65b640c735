"""Ids that Hugging Face's tokenizers gives to texts with added tokens.

    python golden/tokenizer/added_tokens.py golden > crates/tokenizer/tests/data/hf_added_tokens.json
    python golden/tokenizer/added_tokens.py ids DIRECTORY    # DIRECTORY/NAME.ids from NAME.json and NAME.texts.json

The settings are those of the added tokens in the files of five model families, with shorter lists; ids count from the vocabulary's end.
"""

import itertools
import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer

DATA = Path(__file__).parents[2] / "crates/tokenizer/tests/data"


def token(content, **flags):
    settings = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return {"content": content, **settings, **flags}


FAMILIES = {
    "gpt2": ("gpt2", [token("<|endoftext|>", special=True, normalized=True), token("<mask>", special=True, lstrip=True)]),
    "llama3": (
        "llama3",
        [token(t, special=True) for t in ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")],
    ),
    "qwen2": (
        "qwen2",
        [token(t, special=True) for t in ("<|im_start|>", "<|im_end|>")]
        + [token(t) for t in ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|fim_prefix|>")],
    ),
    "phi3": (
        "gpt2",
        [
            token("</s>", rstrip=True),
            token("<s>", special=True),
            token("<|assistant|>", special=True, rstrip=True),
            token("<|user|>", special=True, rstrip=True),
            token("<|end|>", special=True, rstrip=True),
            token("<|code|>", lstrip=True, rstrip=True),
        ],
    ),
    "neox": (
        "gpt2",
        [token(" " * n, normalized=True) for n in range(6, 1, -1)]
        + [token("\t\t", normalized=True), token("|||EMAIL|||", normalized=True), token("znew", single_word=True, normalized=True)]
        + [token("<|padding|>", special=True), token("w</think>"), token("zing", single_word=True)],
    ),
}
PIECES = [" ", "  ", "   ", "\n", "\t\t", "\u00a0", "new", "aznew", "zing", "azing", "w", "é", "日本", ".", ",", "'s", "_", "\u0301", "12", "a b"]


def texts(contents, count, seed):
    made = random.Random(seed)
    pieces = PIECES + contents * 2
    return ["".join(made.choice(pieces) for _ in range(made.randint(1, 14))) for _ in range(count)]


def with_tokens(file, tokens):
    """A tokenizer.json with these added tokens."""
    after = itertools.count(max(file["model"]["vocab"].values()) + 1)
    kept = [t for t in file["added_tokens"] if t["content"] not in {t["content"] for t in tokens}]
    known = file["model"]["vocab"]
    added = [{"id": known[t["content"]] if t["content"] in known else next(after), **t} for t in tokens]
    return {**file, "added_tokens": sorted(kept + added, key=lambda t: t["id"])}


def ids(file, texts):
    """Ids with all added tokens, and with those that are not special."""
    tokenizer = Tokenizer.from_str(json.dumps(file))
    everything = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    tokenizer.encode_special_tokens = True
    plain = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    return [list(both) for both in zip(everything, plain)]


def golden():
    made = {}
    for seed, (name, (base, tokens)) in enumerate(FAMILIES.items()):
        file = with_tokens(json.loads((DATA / f"hf_{base}.json").read_text()), tokens)
        cases = texts([t["content"] for t in tokens], 40, seed)
        made[name] = {"base": base, "added_tokens": file["added_tokens"], "cases": dict(zip(cases, ids(file, cases)))}
    print(json.dumps(made, ensure_ascii=True, separators=(",", ":")))


if sys.argv[1] == "golden":
    golden()
else:
    for path in sorted(Path(sys.argv[2]).glob("*.json")):
        if not path.name.endswith(".texts.json"):
            cases = json.loads(path.with_suffix(".texts.json").read_text())
            path.with_suffix(".ids").write_text(json.dumps(ids(json.loads(path.read_text()), cases)))
