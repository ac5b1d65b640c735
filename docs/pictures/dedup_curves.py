"""The picture of docs/dedup.md: python3 docs/pictures/dedup_curves.py > docs/pictures/dedup-curves.svg"""

CURVES = [
    ("native, 20 x 7", 20, 7, "var(--c0)"),
    ("FineWeb, 14 x 8", 14, 8, "var(--c1)"),
    ("RefinedWeb, 450 x 20", 450, 20, "var(--c3)"),
    ("NeMo, 20 x 13", 20, 13, "var(--c2)"),
    ("marin, 26 x 11", 26, 11, "var(--c4)"),
]
W, H, L, T = 720, 400, 60, 20
PW, PH = 470, 320


def x(s):
    return L + (s - 0.4) / 0.6 * PW


def y(p):
    return T + (1 - p) * PH


out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="sans-serif" font-size="12">']
LIGHT = "--c0:#1552e5;--c1:#e67503;--c2:#15523f;--c3:#962590;--c4:#616903;--ink:#1b1f24;--grid:#e8ebef;--page:#fff"
DARK = "--c0:#a0bcf6;--c1:#e78329;--c2:#6affe2;--c3:#b131d4;--c4:#f4d65b;--ink:#e6e9ed;--grid:#282e36;--page:#14171b"
out.append(f'<style>svg{{{LIGHT}}}@media (prefers-color-scheme:dark){{svg{{{DARK}}}}}text{{fill:var(--ink)}}</style>')
out.append(f'<rect width="{W}" height="{H}" style="fill:var(--page)"/>')
for i in range(6):
    p = i / 5
    out.append(f'<line x1="{L}" x2="{L + PW}" y1="{y(p):.1f}" y2="{y(p):.1f}" style="stroke:var(--grid)"/>')
    out.append(f'<text x="{L - 8}" y="{y(p) + 4:.1f}" text-anchor="end">{p:.1f}</text>')
for i in range(7):
    s = 0.4 + i / 10
    out.append(f'<line x1="{x(s):.1f}" x2="{x(s):.1f}" y1="{T}" y2="{T + PH}" style="stroke:var(--grid)"/>')
    out.append(f'<text x="{x(s):.1f}" y="{T + PH + 18}" text-anchor="middle">{s:.1f}</text>')
out.append(f'<text x="{L + PW / 2}" y="{H - 12}" text-anchor="middle">Jaccard similarity s</text>')
out.append(f'<text x="16" y="{T + PH / 2}" text-anchor="middle" transform="rotate(-90 16 {T + PH / 2})">probability to become a candidate</text>')
for at, (name, b, r, colour) in enumerate(CURVES):
    points = " ".join(f"{x(s):.1f},{y(1 - (1 - s**r) ** b):.1f}" for s in (0.4 + i * 0.005 for i in range(121)))
    out.append(f'<polyline points="{points}" fill="none" style="stroke:{colour}" stroke-width="2"/>')
    out.append(f'<line x1="{L + PW + 16}" x2="{L + PW + 40}" y1="{T + 14 + 22 * at}" y2="{T + 14 + 22 * at}" style="stroke:{colour}" stroke-width="2"/>')
    out.append(f'<text x="{L + PW + 46}" y="{T + 18 + 22 * at}">{name}</text>')
out.append("</svg>")
print("\n".join(out))
