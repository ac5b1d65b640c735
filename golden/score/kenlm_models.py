"""Binaries that KenLM builds from crates/score/tests/data/kenlm/small.arpa, and its scores of some sentences.

    pip install kenlm==0.3.0 && python golden/score/kenlm_models.py path/to/build_binary

`build_binary` is compiled from the sources of KenLM (LGPL; nothing of it is kept here).
"""

import json
import pathlib
import subprocess
import sys

import kenlm

DATA = pathlib.Path(__file__).parents[2] / "crates/score/tests/data/kenlm"
KINDS = {
    "probing.bin": ["probing"],
    "trie.bin": ["trie"],
    "quantised.bin": ["-q", "5", "-b", "4", "trie"],
    "array.bin": ["-a", "22", "trie"],
    "quantised_array.bin": ["-q", "4", "-b", "5", "-a", "3", "trie"],
}
SENTENCES = [
    "the cat likes a river",
    "nobody hears the road to the sea every day",
    "her sister draws",
    "an unknown thing wants zzz",
    "",
    "again again again",
    "the old man follows the small garden with a smile in the morning at night",
]


def scores(path):
    model = kenlm.Model(str(path))
    return [{"sentence": s, "words": list(model.full_scores(s))} for s in SENTENCES]


def main():
    arpa = DATA / "small.arpa"
    result = {"small.arpa": scores(arpa)}
    for name, settings in KINDS.items():
        kind, *_ = settings[-1:]
        command = [sys.argv[1], *settings[:-1], kind, str(arpa), str(DATA / name)]
        subprocess.run(command, check=True, capture_output=True)
        result[name] = scores(DATA / name)
    (DATA / "scores.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
