"""Word-level F1 of extractors against gold, and their time: compare.py PAGES [NAME=DIR ...]

PAGES holds X.html and X.txt (collect_pages.py, collect_manuals.py); pages whose names begin alike up to the first `-`
are one set. Each NAME=DIR holds X.txt as an extractor wrote it, and timing.json
({"bytes", "seconds"}). Python trafilatura is run here, as datatrove calls it for FineWeb (favour precision, no
comments, tables kept) and with its defaults. A page without output counts 0. Words are runs of letters and digits;
scripts written without spaces count by character. Resiliparse and jusText run too where they are installed.
--parts prints the sets by their second word too (the generator of a manual), --each every page.
"""
import collections, glob, json, os, re, sys, time
import trafilatura

pages = sys.argv[1]
WORD = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u2e80-\u9fff\uac00-\ud7af]|[^\W_]+")


def words(text):
    return collections.Counter(WORD.findall(text.lower()))


def score(gold, found):
    both = sum((gold & found).values())
    if not both:
        return 0.0, 0.0, 0.0
    p, r = both / sum(found.values()), both / sum(gold.values())
    return p, r, 2 * p * r / (p + r)


def peer(extract):
    outputs, size, begun = {}, 0, time.perf_counter()
    for name in names:
        page = open(f"{pages}/{name}.html", "rb").read()
        size += len(page)
        outputs[name] = extract(page) or ""
    return outputs, size / 1e6 / (time.perf_counter() - begun)


def peers():
    yield "trafilatura (python)", trafilatura.extract
    precision = dict(favor_precision=True, include_comments=False, deduplicate=True)
    yield "trafilatura (python, precision)", lambda page: trafilatura.extract(page, **precision)
    try:
        from resiliparse.extract.html2text import extract_plain_text
        from resiliparse.parse.html import HTMLTree

        tree = lambda page: HTMLTree.parse(page.decode("utf-8", "replace"))
        yield "resiliparse, main content", lambda page: extract_plain_text(tree(page), main_content=True)
    except ImportError:
        pass
    try:
        import justext

        english = justext.get_stoplist("English")
        good = lambda page: (p.text for p in justext.justext(page, english) if not p.is_boilerplate)
        yield "jusText (English)", lambda page: "\n".join(good(page))
    except ImportError:
        pass


names = sorted(os.path.basename(f)[:-5] for f in glob.glob(pages + "/*.html"))
gold = {n: words(open(f"{pages}/{n}.txt").read()) for n in names}
runs = {label: peer(extract) for label, extract in peers()}
for argument in sys.argv[2:]:
    if argument.startswith("--"):
        continue
    label, where = argument.split("=")
    read = lambda n: open(f"{where}/{n}.txt").read() if os.path.exists(f"{where}/{n}.txt") else ""
    timing = json.load(open(where + "/timing.json"))
    runs[label] = {n: read(n) for n in names}, timing["bytes"] / 1e6 / timing["seconds"]
oracle = {n: words(t) for n, t in runs["trafilatura (python)"][0].items()}
sets = sorted({n.split("-")[0] for n in names})
if "--parts" in sys.argv:
    sets = sorted(set(sets) | {"-".join(n.split("-")[:2]) for n in names})
print(f"{'extractor':34}{'set':16}{'pages':>6}{'P':>8}{'R':>8}{'F1':>8}{'median':>8}{'F1 to py':>10}{'MB/s':>8}")
for label, (outputs, speed) in runs.items():
    for part in sets:
        own = [n for n in names if n.startswith(part + "-")]
        s = [score(gold[n], words(outputs[n])) for n in own]
        near = [score(oracle[n], words(outputs[n]))[2] for n in own]
        mean = lambda k: sum(x[k] for x in s) / len(s)
        middle = sorted(x[2] for x in s)[len(s) // 2]
        print(f"{label:34}{part:16}{len(own):6}{mean(0):8.4f}{mean(1):8.4f}{mean(2):8.4f}{middle:8.4f}"
              f"{sum(near) / len(near):10.4f}{speed:8.2f}")
if "--each" in sys.argv:
    for n in names:
        print(f"{n:50}", *(f"{score(gold[n], words(o[n]))[2]:.3f}" for o, _ in runs.values()))
