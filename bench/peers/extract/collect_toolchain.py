"""Collects documentation and short reference pages of the Rust toolchain, in two halves: collect_toolchain.py OUT [DOCS]

The pages are those that rustup installed (`$(rustc --print sysroot)/share/doc/rust/html`, or DOCS). Their generators are
mdBook, whose text is `<main>`, and rustdoc, whose text is `#main-content`. The gold is the text of that element without
links to headings and sources, buttons, tables of contents, and rustdoc's path above the title. OUT/dev may be looked at
to adjust rules, OUT/held is only measured. Both hold the pages as they are (`named`) and without names (`nameless`), see
collect_manuals.py. Folders on which rules were adjusted earlier (book, reference, rust-by-example, functions of std) are
left out, and so are indexes, whose text is links for more than half, and pages under 30 words or above 400 kB.
The pages of std are divided by a hash of their path; samples are the first pages in the order of that hash.
"""
import glob, hashlib, os, subprocess, sys
from lxml import etree, html as H
from collect_manuals import gold, nameless

MDBOOK, RUSTDOC = "//main", "//*[@id='main-content']"
ITEMS = [f"std/**/{kind}.*.html" for kind in ("keyword", "primitive", "macro", "constant", "type")]
# half (both: by hash), kind of page, name, patterns, XPath of the text, most pages in a half
SETS = [
    ("both", "reference", "std_items", ITEMS, RUSTDOC, 150),
    ("held", "reference", "error_codes", ["error_codes/E*.html"], MDBOOK, 150),
    ("both", "documentation", "std_modules", ["std/**/index.html"], RUSTDOC, 50),
    ("dev", "documentation", "edition_guide", ["edition-guide/**/*.html"], MDBOOK, 80),
    ("dev", "documentation", "rustdoc", ["rustdoc/**/*.html"], MDBOOK, 50),
    ("held", "documentation", "cargo", ["cargo/**/*.html"], MDBOOK, 50),
    ("held", "documentation", "clippy", ["clippy/**/*.html"], MDBOOK, 50),
    ("held", "documentation", "embedded_book", ["embedded-book/**/*.html"], MDBOOK, 50),
    ("held", "documentation", "rustc", ["rustc/**/*.html"], MDBOOK, 50),
]
RUSTDOC_GONE = ".//rustdoc-toolbar|.//*[@class='rustdoc-breadcrumbs']|.//summary[contains(@class,'hideme')]"


def digest(path):
    return hashlib.sha256(path.encode()).digest()


def read(path):
    """A page, its tree and its gold text, if the page can be used."""
    page = open(path, "rb").read()
    if not 3000 < len(page) <= 400_000:
        return None
    parse = lambda: H.fromstring(page, parser=H.HTMLParser(encoding="utf-8"))
    tree = parse()
    for element in tree.xpath(RUSTDOC_GONE):
        element.drop_tree()
    # A possible break inside of a word does not end the word. libxml2 makes the text behind it its content.
    etree.strip_tags(tree, "wbr")
    return page, parse(), tree


def main(out, docs):
    for half in ("dev", "held"):
        for variant in ("named", "nameless"):
            os.makedirs(f"{out}/{half}/{variant}", exist_ok=True)
    for half, kind, name, patterns, xpath, most in SETS:
        paths = {os.path.relpath(f, docs) for p in patterns for f in glob.glob(f"{docs}/{p}", recursive=True)}
        paths = {p for p in paths if os.path.basename(p) not in ("print.html", "toc.html")}
        counts = {"dev": 0, "held": 0}
        for path in sorted(paths, key=digest):
            own = half if half != "both" else ("dev", "held")[digest(path)[-1] % 2]
            found = read(f"{docs}/{path}") if counts[own] < most else None
            if not found:
                continue
            page, tree, cleaned = found
            elements = cleaned.xpath(xpath)
            text, links = gold(elements) if elements else ("", 1)
            if len(text.split()) < 30 or links > 0.5:
                continue
            counts[own] += 1
            stem = f"{kind}-{name}-" + "".join(c if c.isalnum() else "_" for c in path.removesuffix(".html"))[-80:]
            for variant, html in (("named", page), ("nameless", nameless(tree))):
                open(f"{out}/{own}/{variant}/{stem}.html", "wb").write(html)
                open(f"{out}/{own}/{variant}/{stem}.txt", "w").write(text)
        print(f"{kind:15}{name:15}{counts['dev']:4} in dev{counts['held']:5} held out", flush=True)


if __name__ == "__main__":
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True).stdout.strip()
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else sysroot + "/share/doc/rust/html")
