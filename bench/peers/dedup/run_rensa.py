"""rensa from a JSONL file to a list of dropped rows.

    python run_rensa.py IN.jsonl DROPPED.txt words|grams|rho BANDS ROWS SIMILARITY

words: sets of words as in its README; grams: word 5-grams, the sets that all others here compare; both through
RMinHashDeduplicator, which checks candidates by the signatures. rho: its sampled pipeline over words, which flags every
row that shares a band with another, originals included.
"""
import json
import re
import sys

import rensa

source, target, mode, bands, rows, similarity = sys.argv[1:7]
bands, values, similarity = int(bands), int(bands) * int(rows), float(similarity)
word = re.compile(r"[^\W_]+")


def documents():
    with open(source) as file:
        for line in file:
            text = json.loads(line)["text"]
            if mode == "grams":
                plain = word.findall(text.lower())
                yield [" ".join(plain[i : i + 5]) for i in range(max(1, len(plain) - 4))]
            else:
                yield text.split()


if mode == "rho":
    matrix = rensa.RMinHash.digest_matrix_from_token_sets_rho(list(documents()), num_perm=values, seed=42)
    lsh = rensa.RMinHashLSH(threshold=similarity, num_perm=values, num_bands=bands)
    dropped = [row for row, flag in enumerate(lsh.query_duplicate_flags_matrix_one_shot(matrix)) if flag]
else:
    index = rensa.RMinHashDeduplicator(threshold=similarity, num_perm=values, use_lsh=True, num_bands=bands)
    keep = index.add_pairs((str(row), tokens) for row, tokens in enumerate(documents()))
    dropped = [row for row, kept in enumerate(keep) if not kept]
with open(target, "w") as file:
    file.writelines(f"{row}\n" for row in dropped)
