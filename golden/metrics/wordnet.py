"""A small WordNet of invented sets, in the format of wndb(5WN), and what NLTK makes of it: python golden/metrics/wordnet.py, which writes
crates/metrics/tests/wordnet/ and golden.json in it. With a folder of WordNet 3.0 as argument it prints METEOR of 300 pairs by that one instead.

Version: nltk 3.10.4.
"""
import json
import os
import random
import sys

import nltk
from nltk.corpus.reader.wordnet import WordNetCorpusReader
from nltk.translate import meteor_score

FOLDER = "crates/metrics/tests/wordnet"
SETS = {
    "noun": [["steel", "Bessemer", "alloy"], ["iron", "steel"], ["furnace", "converter", "blast_furnace"], ["knife", "blade"], ["man", "adult_male"],
             ["box", "case"], ["church", "kirk"], ["wish", "desire"], ["city", "town"], ["air", "wind"], ["run", "heat"], ["foot", "pes"], ["waltz", "dance"]],
    "verb": [["blow", "puff", "wind"], ["melt", "run", "fuse"], ["make", "produce"], ["carry", "bear"], ["bake", "heat"], ["stop", "halt"], ["go", "travel"]],
    "adj": [["hot(p)", "torrid"], ["large", "big(a)"], ["galore(ip)"], ["fine", "thin"], ["fast", "quick"]],
    "adv": [["fast", "quickly"], ["well", "soundly"]],
}
EXCEPTIONS = {"noun": ["feet foot", "knives knife", "men man"], "verb": ["blew blow", "went go", "ran run", "made make"], "adj": ["better good well", "bigger big"], "adv": ["better well"]}
LETTERS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
WORDS = """steel Bessemer alloy iron furnace converter furnaces knife knives blade blades man men box boxes case cases church churches kirk wish wishes desire city
cities town towns air wind run runs heat feet foot pes waltz waltzes dance blow blew puffed wind melts melted fuse fusing make making produces produced carry carries bear
baking baked bake stop stopped halted went go travel hot hotter torrid large larger largest big biggest fine finest thinner fast faster quick quickly well soundly better
the a of . galore ran made""".split()


def write():
    os.makedirs(FOLDER, exist_ok=True)
    for part, sets in SETS.items():
        text = "  1 Invented for tests of the program that reads these files.\n"
        places = {}
        for words in sets:
            place = len(text)
            named = " ".join(f"{word} 0" for word in words)
            frames = " 01 + 02 00" if part == "verb" else ""
            text += f"{place:08d} 03 {LETTERS[part]} {len(words):02x} {named} 000{frames} | invented  \n"
            for word in words:
                lemma = word.split("(")[0].lower()
                places.setdefault(lemma, []).append(place)
        index = "  1 Invented for tests of the program that reads these files.\n"
        for lemma, of in sorted(places.items()):
            index += f"{lemma} {LETTERS[part]} {len(of)} 1 @ {len(of)} 0 {' '.join(f'{place:08d}' for place in of)}  \n"
        for name, content in ((f"data.{part}", text), (f"index.{part}", index), (f"{part}.exc", "".join(line + "\n" for line in EXCEPTIONS[part]))):
            open(os.path.join(FOLDER, name), "w").write(content)


class Reader(WordNetCorpusReader):
    # A table between versions, which needs a download and which no metric reads.
    def map_wn(self, version="wordnet"):
        return None


def reader(folder):
    # NLTK wants a list of lexicographer files, which no metric reads.
    path = os.path.join(folder, "lexnames")
    own = not os.path.exists(path)
    if own:
        open(path, "w").write("".join(f"{i:02d}\tnames\t1\n" for i in range(45)))
    for name in ("cntlist.rev",):
        if not os.path.exists(os.path.join(folder, name)):
            open(os.path.join(folder, name), "w").close()
    nltk.data.path.insert(0, os.path.abspath(folder))
    net = Reader(os.path.abspath(folder), None)
    net.synsets("steel")
    return net


def pairs(net, words):
    rng = random.Random(3)
    rows = []
    for _ in range(300):
        hyp = [rng.choice(words) for _ in range(rng.randrange(3, 16))]
        ref = [word if rng.random() < 0.4 else rng.choice(words) for word in hyp]
        rng.shuffle(ref) if rng.random() < 0.2 else None
        rows.append([" ".join(hyp), " ".join(ref), meteor_score.single_meteor_score(ref, hyp, wordnet=net)])
    return rows


def main():
    if len(sys.argv) > 1:
        net = reader(sys.argv[1])
        words = [w for w in WORDS if w != "."] + """quick dog hounds automobile cars buying purchased begins started children kids happy glad speak talking running
        jogged biggest gigantic little small doctors physician answered replying houses homes lady women feet geese better best""".split()
        json.dump(pairs(net, words), sys.stdout, indent=0)
        return
    write()
    net = reader(FOLDER)
    synonyms = {w: sorted({l.name() for s in net.synsets(w) for l in s.lemmas() if "_" not in l.name()}) for w in sorted(set(WORDS))}
    json.dump({"pairs": pairs(net, WORDS), "synonyms": synonyms}, open(os.path.join(FOLDER, "golden.json"), "w"), ensure_ascii=False, indent=0)
    for name in ("lexnames", "cntlist.rev"):
        os.remove(os.path.join(FOLDER, name))


main()
