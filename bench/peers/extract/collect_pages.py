"""Collects pages with known main text: collect_pages.py OUT

- news-*: 23 articles in ten languages with the text that a person checked, from the source package of newspaper4k
  (pip download, MIT).
- docs-*: manuals that are installed here (mdBook, Node.js, npm). Their gold is the element that the generator puts the
  text into; navigation and footers lie outside of it.
"""
import glob, os, subprocess, sys, tarfile, tempfile
from lxml import html as H

out = sys.argv[1]
os.makedirs(out, exist_ok=True)


def news():
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run([sys.executable, "-m", "pip", "-q", "download", "--no-deps", "--no-binary", "newspaper4k",
                        "newspaper4k==0.9.6", "-d", tmp], check=True)
        tarfile.open(glob.glob(tmp + "/*.tar.gz")[0]).extractall(tmp, filter="data")
        data = glob.glob(tmp + "/newspaper4k*/tests/data")[0]
        for txt in sorted(glob.glob(data + "/txt/*.txt")):
            name = os.path.basename(txt)[:-4]
            page = f"{data}/html/{name}.html"
            if os.path.exists(page):
                open(f"{out}/news-{name}.html", "wb").write(open(page, "rb").read())
                open(f"{out}/news-{name}.txt", "w").write(open(txt).read())


def text(element):
    for gone in element.xpath(".//script|.//style|.//*[@aria-hidden='true']|.//nav|.//button"):
        gone.drop_tree()
    return " ".join(t for t in element.itertext())


def docs(label, pattern, xpath, step, most):
    files = sorted(f for f in glob.glob(pattern) if os.path.getsize(f) > 6000)[::step][:most]
    for f in files:
        page = open(f, "rb").read()
        found = H.fromstring(page.decode("utf-8", "replace").encode(), parser=H.HTMLParser(encoding="utf-8")).xpath(xpath)
        if found and len(text(found[0]).split()) > 80:
            name = os.path.basename(f)[:-5].replace(".", "_")
            open(f"{out}/docs-{label}-{name}.html", "wb").write(page)
            open(f"{out}/docs-{label}-{name}.txt", "w").write(text(found[0]))


news()
rust = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True).stdout.strip()
docs("mdbook", rust + "/share/doc/rust/html/book/ch*.html", "//main", 7, 14)
docs("node", "/usr/share/doc/nodejs/api/*.html", "//*[@id='apicontent']", 7, 8)
docs("npm", "/usr/lib/node_modules/npm/docs/output/commands/*.html", "//*[@id='content']", 7, 8)
print(len(glob.glob(out + "/*.html")), "pages")
