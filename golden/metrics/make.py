"""What sacrebleu, rouge_score and NLTK say of texts: python golden/metrics/make.py > crates/metrics/tests/integration/golden.json

Versions: sacrebleu 2.6.0, rouge_score 0.1.2, nltk 3.10.4. METEOR without WordNet: its synonyms need a download.
"""
import json
import random

from nltk.stem.porter import PorterStemmer
from nltk.translate import meteor_score
from rouge_score import rouge_scorer
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_intl import TokenizerV14International
from sacrebleu.tokenizers.tokenizer_zh import TokenizerZh


class NoSynonyms:
    def synsets(self, word):
        return []


LINES = [
    "The dog bit the man.", "It wasn't surprising.", "The man had just bitten him.", "The dog had bit the man.",
    "No one was surprised, really?", "$1,000.50 (about 3-4%) — ok? a-b &quot;x&quot; &amp;lt; U.S. 1.5.2, x.",
    "Producția de zahăr primă va fi exprimată în ceea ce privește zahărul alb;",
    "producţia de zahăr brut se exprimă în zahăr alb;", "Co nás nejvíc trápí, protože lékaři si vybírají, kdo bude žít",
    "这 是 一个 测试 。 这是一个测试。", "a", "", "   ", "d e f g h a b c", "a b c d e f g h",
    "The quick brown foxes were running; the lazy dogs' generalizations failed.",
    "Quickly, the brown fox ran over generally lazy dogs!", "ÀÉÎ İstanbul ΣΊΣΥΦΟΣ Straße", "x\u00a0y\u2003z\x1cw", "C++ 3.5.1-rc2 (don't!) ...",
    "one two three four five six seven eight nine ten eleven twelve", "twelve eleven ten nine eight seven six five four three two one",
]
WORDS = "the a of steel iron converter blew air through molten pig and oxidised carbon silicon in twenty minutes .".split()


# Pieces of several scripts, with punctuation and symbols inside and outside of numbers.
PIECES = """steel 3,000.5 1,5 2020. «fer» ¿qué? “x” don’t €5 5€ ±3 ≠ → … — ‑ ½ Ⅷ ٣٫٥ चाँद। ไทย 鋼鉄 转炉， 吹炼。 空气（氧） １２３ ＡＢ ㎏ ☃ ★ 𠀀 😀 の カ ｶ
한국어 U+2000 C++ a-b 4-5 (x) [y] {z} & < > " ' ` ~ ^ | \\ / . , ; : ! ? % # @ * _ = $ 7.""".split()


def pairs():
    """300 pairs of texts in several scripts with their BLEU by the international and the Chinese tokenizer."""
    rng = random.Random(2)
    rows = []
    for _ in range(300):
        pieces = [rng.choice(PIECES) for _ in range(rng.randrange(4, 14))]
        hyp = "".join(p + rng.choice(["", " ", " "]) for p in pieces)
        pieces = [p if rng.random() < 0.8 else rng.choice(PIECES) for p in pieces]
        ref = "".join(p + rng.choice(["", " ", " "]) for p in pieces)
        score = lambda name: BLEU(tokenize=name, effective_order=True).sentence_score(hyp, [ref]).score
        rows.append([hyp, ref, TokenizerV14International()(hyp.rstrip()), TokenizerZh()(hyp.rstrip()), score("intl"), score("zh")])
    return rows


def main():
    rng = random.Random(1)
    for _ in range(60):
        a = [rng.choice(WORDS) for _ in range(rng.randrange(3, 40))]
        b = list(a)
        for _ in range(rng.randrange(0, 6)):
            i, j = sorted(rng.randrange(len(b) + 1) for _ in range(2))
            run = b[i:j]
            del b[i:j]
            k = rng.randrange(len(b) + 1)
            b[k:k] = run
            if b and rng.random() < 0.5:
                b[rng.randrange(len(b))] = rng.choice(WORDS)
        LINES.extend([" ".join(a), " ".join(b)])
    bleus = {
        "default": {}, "none": {"tokenize": "none"}, "char": {"tokenize": "char"}, "lower": {"lowercase": True},
        "floor": {"smooth_method": "floor"}, "add": {"smooth_method": "add-k"}, "off": {"smooth_method": "none"},
        "effective": {"effective_order": True}, "intl": {"tokenize": "intl"}, "zh": {"tokenize": "zh"},
    }
    chrfs = {"default": {}, "plus": {"word_order": 2}, "eps": {"eps_smoothing": True}, "beta3": {"beta": 3}, "lower": {"lowercase": True, "word_order": 2}}
    rouge = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"])
    stemmed = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True)
    segments = []
    for i in range(0, len(LINES), 2):
        hyp, refs = LINES[i], [LINES[i + 1], LINES[(i + 5) % len(LINES)]]
        one = {"hypothesis": hyp, "references": refs}
        one["bleu"] = {name: BLEU(**dict(args, effective_order=True)).sentence_score(hyp, refs).score for name, args in bleus.items()}
        one["chrf"] = {name: CHRF(**args).sentence_score(hyp, refs).score for name, args in chrfs.items()}
        one["ter"] = [TER(case_sensitive=c).sentence_score(hyp, refs).score for c in (False, True)]
        lines = lambda text: text.replace(" . ", " .\n").replace(",", "\n")
        one["rouge"] = [
            {k: [v.precision, v.recall, v.fmeasure] for k, v in scorer.score(lines(refs[0]), lines(hyp)).items()}
            for scorer in (rouge, stemmed)
        ]
        one["meteor"] = meteor_score.meteor_score([r.split() for r in refs], hyp.split(), wordnet=NoSynonyms())
        segments.append(one)
    hyps = [s["hypothesis"] for s in segments]
    streams = [[s["references"][k] for s in segments] for k in range(2)]
    corpus = {
        "bleu": {name: [BLEU(**args).corpus_score(hyps, streams).score] for name, args in bleus.items()},
        "chrf": {name: [CHRF(**args).corpus_score(hyps, streams).score] for name, args in chrfs.items()},
        "ter": [TER(case_sensitive=c).corpus_score(hyps, streams).score for c in (False, True)],
    }
    signatures = []
    for metric in (BLEU(), BLEU(smooth_method="floor", lowercase=True), CHRF(), CHRF(word_order=2, eps_smoothing=True), TER()):
        metric.corpus_score(hyps, streams)
        signatures.append(str(metric.get_signature()))
    words = sorted({w for line in open(__file__) for w in line.lower().split() if w.isalpha()} | set(STEMS.split()))
    stemmer = PorterStemmer()
    json.dump({
        "segments": segments, "corpus": corpus, "signatures": signatures,
        "tokens_13a": {line: Tokenizer13a()(line) for line in LINES if line},
        "pairs": pairs(),
        "stems": {w: stemmer.stem(w) for w in words},
    }, fp=__import__("sys").stdout, ensure_ascii=False, indent=1, sort_keys=True)


STEMS = """caresses ponies ties caress cats feed agreed plastered bled motoring sing conflated troubled sized hopping tanned falling hissing fizzed failing
filing happy sky relational conditional rational valenci hesitanci digitizer conformabli radicalli differentli vileli analogousli vietnamization predication
operator feudalism decisiveness hopefulness callousness formaliti sensitiviti sensibiliti triplicate formative formalize electriciti electrical hopeful
goodness revival allowance inference airliner gyroscopic adjustable defensible irritant replacement adjustment dependent adoption homologou communism
activate angulariti homologous effective bowdlerize probate rate cease controll roll dies died flies spied tried enjoy enjoyment spy fly by yyyy
geology geologi archaeologi apologi theologically generally radically fully usefully hopefully possibly ably skies dying lying tying news inning innings
outings cannings howe proceed exceed succeed owed eased eyed aching using oxen generalizations oscillators naïve cafés übungen as is it being"""

main()
