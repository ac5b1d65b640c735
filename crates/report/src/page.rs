//! The page around the sections.

use crate::plot;
use crate::text::escape;

const STYLE: &str = "\
*{box-sizing:border-box}html{color-scheme:light dark;-webkit-text-size-adjust:100%}\
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
main{max-width:1140px;margin:0 auto;padding:28px 20px 60px}\
header{border-bottom:1px solid var(--line);padding-bottom:14px;margin-bottom:8px}\
h1{font-size:1.75rem;line-height:1.2;margin:0 0 6px;overflow-wrap:anywhere}header p{margin:2px 0;color:var(--soft)}\
h2{font-size:1.2rem;margin:36px 0 12px}p{margin:8px 0}\
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,150px),1fr));gap:10px}\
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px;display:flex;flex-direction:column}\
.card b{font-size:1.35rem;line-height:1.3;font-variant-numeric:tabular-nums}.card span{font-size:.85rem;line-height:1.35}\
.card small{font-size:.75rem;line-height:1.35;color:var(--soft);margin-top:2px;overflow-wrap:anywhere}\
.verdict{border-left:4px solid var(--c2);background:var(--card);padding:10px 14px;border-radius:0 8px 8px 0;margin:0 0 14px}\
.verdict.worse{border-color:var(--c1)}\
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:26px 34px;align-items:start}\
figure{margin:0;min-width:0;max-width:580px;break-inside:avoid}figcaption{font-weight:600;margin-bottom:8px}\
.note{font-size:.8rem;color:var(--soft);margin:4px 0 0}\
.scroll{overflow-x:auto;margin:10px 0 22px}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}\
th,td{padding:5px 18px 5px 0;text-align:left;border-bottom:1px solid var(--grid);vertical-align:top}\
thead th{color:var(--soft);font-weight:500;border-color:var(--line)}tbody th{font-weight:500;white-space:nowrap}\
td{overflow-wrap:anywhere}.n{text-align:right;white-space:nowrap}\
details{border:1px solid var(--line);border-radius:8px;margin:8px 0;overflow:hidden}\
summary{cursor:pointer;padding:8px 14px;background:var(--card);font-size:.9rem}\
pre{margin:0;padding:12px 14px;font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-x:auto;tab-size:4}\
pre.sample{white-space:pre-wrap;overflow-wrap:anywhere}\
footer{margin-top:40px;color:var(--soft);font-size:.8rem}\
@media print{main{padding:0;max-width:none}body{font-size:11pt}.grid{grid-template-columns:1fr 1fr;gap:16px}\
details:not([open]){display:none}h2{break-after:avoid}.card{break-inside:avoid}}";

/// The whole page. It refers to nothing outside itself, and forbids the browser to fetch or run anything.
pub(crate) fn page(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>{}{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\
         <footer>Written by Bessemer. This page needs no network and runs no script.</footer>\n\
         </main>\n</body>\n</html>\n",
        escape(title),
        plot::STYLE
    )
}
