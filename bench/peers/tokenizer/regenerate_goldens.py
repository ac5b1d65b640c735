"""Write the files in crates/tokenizer/tests/data that come from Hugging Face `tokenizers`.

    python regenerate_goldens.py ../../../crates/tokenizer/tests/data

`hf_text.txt` is the input (kept in the tree, written once by hand); `hf_<pattern>.json` are trained tokenizers and
`hf_ids.json` the ids of awkward strings under each of them.
"""
import json
import sys
from pathlib import Path
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CASED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def split_then_bytes(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PRETOKENIZERS = {
    "gpt2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "llama3": lambda: split_then_bytes(CASED + r"\p{N}{1,3}" + TAIL),
    "qwen2": lambda: split_then_bytes(CASED + r"\p{N}" + TAIL),
}


def train(name, documents, vocab_size, min_frequency=2):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = PRETOKENIZERS[name]()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


AWKWARD = [
    "", " ", "  ", "\n", "\r\n", "a", " a", "a ", "  a", "\ta", "a\n\nb", "a \n b", "x  y   z", "   ", "\n  \n  x",
    "I'll we've you're it's don't he'd I'm", "I'LL WE'VE IT'S DON'T", "'\u017f '\u017fa", "''s", " 's", "a's", "!'s",
    "0 12 123 1234 12345678", "a1b22c333d4444", " 12345", "\u0663\u0664 \u2167\u00bd\u00b2", "3.14159, -2e10",
    "caf\u00e9 na\u00efve \u00dcber", "e\u0301tude", "\u6f22\u5b57 \u304b\u306a \ud55c\uae00", "\u0441\u043b\u043e\u0432\u043e",
    "\u00a0nbsp\u3000wide\u2003em\u0085nel", "\u200bzero", "\U0001f600\U0001f468\u200d\U0001f469", "\U00020000\U000105c0",
    "fn main() {\n    println!(\"{}\", x);\n}\n", "// ====\n\n\n#[derive(Debug)]\n", "a_b__c", "--flag=value", "...!?\n\n",
    "<|endoftext|>", "a<|endoftext|>b <|endoftext|>\n", "<|endoftext", "tab\t\ttab \t x", "end  ", "end \n", "\x00\x01\x7f",
    "supercalifragilisticexpialidocious" * 3, "=" * 100, " " * 70 + "x", "aaaaaaaaaaaaaaaaaaaaaaaaaaa", "\u00ad\u00ff",
]

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    text = (folder / "hf_text.txt").read_bytes().decode("utf-8")
    parts = text.split("\n\n")
    documents = [part + "\n\n" for part in parts[:-1]] + [parts[-1]]
    trained = {}
    for name in PRETOKENIZERS:
        trained[name] = train(name, documents, 600)
        (folder / f"hf_{name}.json").write_text(trained[name].to_str(pretty=True), encoding="utf-8")
    ids = {text: [trained[name].encode(text).ids for name in PRETOKENIZERS] for text in AWKWARD}
    lines = ",\n".join(f"{json.dumps(text)}: {json.dumps(rows)}" for text, rows in ids.items())
    (folder / "hf_ids.json").write_text("{\n" + lines + "\n}\n", encoding="utf-8")
