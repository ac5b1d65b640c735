"""Collects manual pages with known main text, in two halves by generator: collect_manuals.py OUT [DEBS]

The pages come from Debian packages, downloaded with `apt-get download` into DEBS (a temporary folder by default) and
unpacked without being installed. A generator marks the element that holds the text; its text, without links to
headings, links to sources and tables of contents, is the gold. Rules are adjusted on OUT/named/dev-* and
OUT/nameless/dev-* only; held-* is looked at for the report. `named` has the pages as they are; in `nameless` no class,
identifier or role is left and main, nav, footer and their like are div, so that no name gives the answer away.
Pages whose text is links for more than half (indexes) are left out, as are those under 60 words or over 400 kB, and those that are not UTF-8.
"""
import copy, glob, gzip, os, subprocess, sys, tempfile
from lxml import html as H

# half, generator, package, folder below the unpacked root, XPath of the text, pages
SETS = [
    ("dev", "sphinx", "python3.11-doc", "usr/share/doc/python3.11/html/**", "//div[@role='main']", 15),
    ("dev", "sphinx", "python-django-doc", "usr/share/doc/python-django-doc/html/**", "//div[@id='bd']//div[@class='yui-b'][not(@id)]", 10),
    ("dev", "sphinx", "cmake-doc", "usr/share/doc/cmake-data/html/**", "//div[@role='main']", 10),
    ("dev", "pydata", "python-pandas-doc", "usr/share/doc/python-pandas-doc/html/**", "//main", 20),
    ("dev", "rustdoc", "rust-doc", "usr/share/doc/rust-doc/html/std/**", "//*[@id='main-content']", 25),
    ("dev", "docbook", "postgresql-doc-15", "usr/share/doc/postgresql-doc-15/html", "/html/body/div[not(starts-with(@class,'nav'))]", 25),
    ("dev", "mkdocs", "mkdocs-doc", "usr/share/doc/mkdocs/html/**", "//*[@role='main']", 23),
    ("dev", "doxygen", "doxygen-doc", "usr/share/doc/doxygen/html", "//div[@class='header']|//div[@class='contents']|//div[@class='textblock'][not(ancestor::div[@class='contents'])]", 25),
    ("held", "javadoc", "openjdk-17-doc", "usr/share/doc/openjdk-17-jre-headless/api/java.base/java/**", "//main", 25),
    ("held", "haddock", "ghc-doc", "usr/share/doc/ghc-doc/html/libraries/base-*/", "//*[@id='content']", 25),
    ("held", "httpd", "apache2-doc", "usr/share/doc/apache2-doc/manual/en/**", "//*[@id='page-content']", 25),
    ("held", "erlang", "erlang-doc", "usr/share/doc/erlang-doc/lib/*/doc/html", "//*[@id='content']", 25),
    ("held", "qdoc", "qtbase5-doc-html", "usr/share/qt5/doc/**", "//div[@class='content']", 25),
    ("held", "texinfo", "maxima-doc", "usr/share/doc/maxima-doc/html", "/html/body", 25),
    ("held", "gtkdoc", "libglib2.0-doc", "usr/share/gtk-doc/html/**", "/html/body/div[not(@class='footer')]", 25),
    ("held", "asciidoc", "git-doc", "usr/share/doc/git-doc", "//*[@id='header']|//*[@id='content']", 25),
]
SMALL_LINKS = ("headerlink", "anchor", "selflink", "srclink", "viewcode-link", "src", "link")
GONE = (".//script|.//style|.//*[@aria-hidden='true']|.//nav|.//button|.//noscript|.//*[@id='quickview']"
        "|.//*[@id='table-of-contents']|.//div[contains(concat(' ',@class,' '),' toc ')]|.//div[@class='sidebar']"
        "|.//*[contains(concat(' ',@class,' '),' contents ') and contains(@class,'topic')]|.//*[@class='toc-container']"
        "|.//div[@class='header' and p/a[@rel]]|.//*[@id='copy-path']|.//*[@class='toplang']|.//div[@class='summary']"
        "|.//*[contains(@class,'prev-next')]")
NAMES = ("class", "id", "role", "itemprop", "name", "rel")
SECTIONS = ("main", "article", "nav", "footer", "aside", "header", "section", "menu")


def gold(elements):
    """The text of copies of the elements, and the share of its characters that is in links."""
    texts, linked, chars = [], 0, 0
    for element in elements:
        element = copy.deepcopy(element)
        small = [a for a in element.xpath(".//a[@class]") if set(a.get("class").split()) & set(SMALL_LINKS)]
        for gone in element.xpath(GONE) + small:
            gone.drop_tree()
        size = lambda t: len("".join(t.split()))
        texts.append(" ".join(element.itertext()))
        chars += size(texts[-1])
        linked += sum(size(a.text_content()) for a in element.xpath(".//a[@href]"))
    return " ".join(texts), linked / max(chars, 1)


def nameless(tree):
    for e in tree.iter():
        if isinstance(e.tag, str):
            for key in list(e.attrib):
                if key in NAMES or key.startswith(("aria-", "data-")) and key != "aria-hidden":
                    del e.attrib[key]
            if e.tag in SECTIONS:
                e.tag = "div"
    return H.tostring(tree, encoding="utf-8", doctype="<!DOCTYPE html>")


def main(out, debs):
    for variant in ("named", "nameless"):
        os.makedirs(f"{out}/{variant}", exist_ok=True)
    root = debs + "/root"
    for half, generator, package, folder, xpath, most in SETS:
        if not glob.glob(f"{debs}/{package}_*.deb"):
            subprocess.run(["apt-get", "download", "-q", package], cwd=debs, check=True, stdout=subprocess.DEVNULL)
            subprocess.run(["dpkg", "-x", glob.glob(f"{debs}/{package}_*.deb")[0], root], check=True)
        files = [f for end in ("*.html", "*.html.gz") for f in glob.glob(f"{root}/{folder}/{end}", recursive=True)]
        files = sorted(f for f in files if not os.path.islink(f))
        # Twelve candidates for each page wanted, evenly over the sorted names.
        files = files[:: max(1, len(files) // (most * 12))]
        usable = []
        for f in files:
            page = open(f, "rb").read()
            if f.endswith(".gz"):
                page = gzip.decompress(page)
            if not 3000 < len(page) <= 400_000:
                continue
            try:
                page.decode()
            except UnicodeDecodeError:
                continue
            tree = H.fromstring(page, parser=H.HTMLParser(encoding="utf-8"))
            elements = tree.xpath(xpath)
            text, links = gold(elements) if elements else ("", 1)
            if len(text.split()) >= 60 and links <= 0.5:
                usable.append((os.path.relpath(f, root), page, tree, text))
        usable = usable[:: max(1, len(usable) // most)][:most]
        for path, page, tree, text in usable:
            stem = path.replace(".html", "").replace(".gz", "").replace("usr/share/", "")
            name = f"{half}-{generator}-" + "".join(c if c.isalnum() else "_" for c in stem)[-80:]
            for variant, html in (("named", page), ("nameless", nameless(tree))):
                open(f"{out}/{variant}/{name}.html", "wb").write(html)
                open(f"{out}/{variant}/{name}.txt", "w").write(text)
        print(f"{half:5}{generator:10}{package:22}{len(usable):4} pages", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(sys.argv[1], os.path.abspath(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as tmp:
            main(sys.argv[1], tmp)
