"""A tiny SentencePiece model, the pieces that the original cuts, and cc_net's perplexity over them with KenLM.

    pip install sentencepiece==0.2.3 kenlm==0.3.0 && python golden/score/sentencepiece_models.py path/to/lmplz

writes crates/score/tests/data/sentencepiece/. The model has a table of characters of its own (a few rules instead of the
quarter of a megabyte of NFKC), a piece of a user and byte pieces in a second model. `lmplz` is compiled from the sources of
KenLM (LGPL; nothing of it is kept here).
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import kenlm
import sentencepiece

SCORE = pathlib.Path(__file__).parents[2] / "crates/score/tests/data"
OUT = SCORE / "sentencepiece"
# Ligatures, full-width letters, a fraction, an ideographic space, a character that goes away, one that becomes two words.
RULES = ["FB01\t66 69", "FF21\t41", "FF41\t61", "BD\t31 2F 32", "3000\t20", "AD\t", "2026\t2E 2E 2E", "A0\t20", "66 66 69\tFB03",
         "2003\t20 61 6E 64 20"]
TEXTS = [
    "the cat likes a river",
    "  The   old man\u3000follows   ",
    "\uff21\uff41 \ufb01nd \u00bd of it\u2026",
    "soft\u00adhyphen and\u2003more office",
    "日本語 and кот, x日本y",
    "<user>the<user>cat <user>",
    "",
    "   ",
    "\u2581already escaped \u2581",
    "aaaaaaaaaaaaaaaaaaaaaaaaa",
    "zzz qqq éè",
    "a\nb\tc",
]


def train(name, **options):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "rules.tsv").write_text("\n".join(RULES) + "\n", encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(SCORE / "kenlm/small.txt"), model_prefix=str(folder / "m"), vocab_size=options.pop("vocab_size"),
            model_type="unigram", hard_vocab_limit=False, normalization_rule_tsv=str(folder / "rules.tsv"),
            user_defined_symbols=["<user>"], minloglevel=2, num_threads=1, **options)
        (OUT / f"{name}.model").write_bytes((folder / "m.model").read_bytes())
    return sentencepiece.SentencePieceProcessor(model_file=str(OUT / f"{name}.model"))


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    small = train("small", vocab_size=90)
    models = {"small": small, "bytes": train("bytes", vocab_size=330, byte_fallback=True, remove_extra_whitespaces=False)}
    pieces = {name: [model.encode(text, out_type=str) for text in TEXTS] for name, model in models.items()}
    # The text of the perplexities is such that cc_net's normal form is its lower case.
    cut = [" ".join(small.encode(line, out_type=str)) for line in (SCORE / "kenlm/small.txt").read_text().lower().splitlines()]
    arpa = subprocess.run([sys.argv[1], "-o", "3", "--discount_fallback", "-S", "200M"], input="\n".join(cut) + "\n", text=True,
                          check=True, capture_output=True).stdout
    (OUT / "small.arpa").write_text(arpa, encoding="utf-8")
    model = kenlm.Model(str(OUT / "small.arpa"))
    documents = ["The cat likes a river", "nobody hears the road\nto the sea\n\nevery day", "I am very perplexed"]
    perplexities = []
    for document in documents:
        score, length = 0.0, 0
        for line in document.lower().split("\n"):
            spoken = small.encode(line, out_type=str)
            score += model.score(" ".join(spoken))
            length += len(spoken) + 1
        perplexities.append(10.0 ** (-score / length))
    (OUT / "pieces.json").write_text(json.dumps(
        {"texts": TEXTS, "pieces": pieces, "documents": documents, "perplexities": perplexities}, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
