"""Tiny fastText models and what the original predicts with them.

    pip install fasttext-wheel==0.9.2 && python golden/score/fasttext_models.py

writes crates/score/tests/data/fasttext/*.bin, *.ftz and predictions.json. The models are trained with several threads'
worth of luck removed (thread = 1), but only the files count: the test reads them and compares probabilities.
"""

import json
import pathlib
import random
import tempfile

import fasttext

OUT = pathlib.Path(__file__).parents[2] / "crates/score/tests/data/fasttext"
TOPICS = {
    "en": "the of and to in is that it was for on with as his they".split(),
    "de": "der die und in den von zu das mit sich des auf für ist im über größer".split(),
    "fr": "le de un être et à il avoir ne je son que se qui ce dans où".split(),
    "ru": "и в не на я быть он с что а по это она этот к".split(),
}
TEXTS = [
    "the wind is in the trees",
    "die Größe des Hauses ist über dem Durchschnitt",
    "où est le château de son père",
    "что это не она",
    "unknown words only zzz qqq",
    "",
    " \t x",
    "the </s> und der",
    "__label__en the",
]


def predict(model, text):
    pairs = model.f.predict(text + "\n", -1, 0.0, "strict")
    return [[label, float(p)] for p, label in pairs]


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    rng = random.Random(7)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as f:
        for i in range(240):
            label = rng.choices(list(TOPICS), weights=[5, 3, 2, 1])[0]
            words = " ".join(rng.choices(TOPICS[label], k=8))
            f.write(f"__label__{label} {words}\n")
        f.flush()
        common = dict(input=f.name, dim=4, epoch=5, lr=0.5, thread=1, verbose=0)
        models = {
            "softmax": dict(loss="softmax", minn=2, maxn=4, wordNgrams=2, bucket=300),
            "hs": dict(loss="hs", wordNgrams=3, bucket=100),
            "ova": dict(loss="ova", minn=1, maxn=2, bucket=100),
            "ns": dict(loss="ns"),
        }
        expected = {}
        for name, settings in models.items():
            model = fasttext.train_supervised(**common, **settings)
            model.save_model(str(OUT / f"{name}.bin"))
            expected[f"{name}.bin"] = [predict(model, t) for t in TEXTS]
            if name == "softmax":
                model.quantize(input=f.name, qnorm=True, cutoff=280, retrain=False, dsub=3)
                model.save_model(str(OUT / "pruned.ftz"))
                expected["pruned.ftz"] = [predict(model, t) for t in TEXTS]
    (OUT / "predictions.json").write_text(
        json.dumps({"texts": TEXTS, "predictions": expected}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
