"""Scores and times of `bessemer metric` beside sacrebleu, rouge_score and NLTK on the same files, in one run.

    python bench/peers/metrics/compare.py --bessemer target/release/bessemer [--lines 20000]

Needs sacrebleu, rouge_score and nltk. Texts are made by a fixed seed: references of 5 to 40 words, systems that drop, replace and move
some. A time is that of a whole process for Bessemer, which reads the files, and that of the scoring call alone for the others.
"""
import argparse
import json
import pathlib
import random
import subprocess
import tempfile
import time

from nltk.translate import meteor_score
from rouge_score import rouge_scorer
from sacrebleu.metrics import BLEU, CHRF, TER


class NoSynonyms:
    def synsets(self, word):
        return []


def make(lines):
    rng = random.Random(7)
    words = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randrange(2, 10))) for _ in range(5000)]
    weights = [1 / (i + 1) for i in range(len(words))]
    systems, references = [], []
    for _ in range(lines):
        reference = rng.choices(words, weights, k=rng.randrange(5, 41))
        system = [rng.choices(words, weights)[0] if rng.random() < 0.15 else w for w in reference if rng.random() > 0.08]
        if len(system) > 6 and rng.random() < 0.5:
            i = rng.randrange(len(system) - 3)
            run = system[i:i + 3]
            del system[i:i + 3]
            k = rng.randrange(len(system))
            system[k:k] = run
        systems.append(" ".join(system).capitalize() + ".")
        references.append(" ".join(reference).capitalize() + ".")
    return systems, references


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bessemer", required=True)
    parser.add_argument("--lines", type=int, default=20000)
    args = parser.parse_args()
    systems, references = make(args.lines)

    def rouge(name):
        scorer = rouge_scorer.RougeScorer([name], use_stemmer=True)
        return lambda: 100 * sum(scorer.score(r, s)[name].fmeasure for s, r in zip(systems, references)) / len(systems)

    peers = [
        ("bleu", [], lambda: BLEU().corpus_score(systems, [references]).score),
        ("chrf", [], lambda: CHRF().corpus_score(systems, [references]).score),
        ("ter", [], lambda: TER().corpus_score(systems, [references]).score),
        ("rouge2", ["--stem"], rouge("rouge2")),
        ("rougel", ["--stem"], rouge("rougeL")),
        ("meteor", [], lambda: 100 * sum(meteor_score.single_meteor_score(r.split(), s.split(), wordnet=NoSynonyms()) for s, r in zip(systems, references)) / len(systems)),
    ]
    with tempfile.TemporaryDirectory() as place:
        paths = [pathlib.Path(place, name) for name in ("system", "reference")]
        for path, lines in zip(paths, (systems, references)):
            path.write_text("\n".join(lines) + "\n")
        print("| metric | Bessemer | peer | equal | Bessemer, s | peer, s | ratio |\n|---|---|---|---|---|---|---|")
        for name, options, peer in peers:
            times = []
            for _ in range(3):
                start = time.perf_counter()
                out = subprocess.run([args.bessemer, "metric", name, *map(str, paths), "--samples", "1", "--json", *options], check=True, capture_output=True)
                times.append(time.perf_counter() - start)
            score = json.loads(out.stdout)["score"]
            start = time.perf_counter()
            wanted = peer()
            peer_time = time.perf_counter() - start
            own = sorted(times)[1]
            equal = abs(score - wanted) < 1e-9 * (1 + abs(wanted))
            print(f"| {name} | {score:.6f} | {wanted:.6f} | {'yes' if equal else 'NO'} | {own:.3f} | {peer_time:.3f} | {peer_time / own:.0f} |", flush=True)


main()
