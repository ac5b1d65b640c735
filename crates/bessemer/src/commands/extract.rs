//! `bessemer corpus extract`: what is left of web pages.

use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_web::extract::{Extractor, Main, Plain};
use bessemer_web::page::{Page, PageOptions, PageVerdict, page_of_html, page_of_record};
use bessemer_web::warc::{WarcLimits, WarcReader};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What came of the pages so far.
struct Shown<'a> {
    extractor: &'a dyn Extractor,
    options: PageOptions,
    only_ok: bool,
    limit: u64,
    as_json: bool,
    printed: u64,
    verdicts: BTreeMap<&'static str, u64>,
    faults: u64,
}

pub(crate) fn run(
    files: &[PathBuf],
    plain: bool,
    repair_mojibake: bool,
    only_ok: bool,
    limit: Option<u64>,
    as_json: bool,
    console: &mut Console,
) -> Result<(), Failure> {
    let mut shown = Shown {
        extractor: if plain { &Plain } else { &Main },
        options: PageOptions { repair_mojibake, ..PageOptions::default() },
        only_ok,
        limit: limit.unwrap_or(u64::MAX),
        as_json,
        printed: 0,
        verdicts: BTreeMap::new(),
        faults: 0,
    };
    for file in files {
        if shown.printed >= shown.limit {
            break;
        }
        if is_html(file) {
            let page = html(file, &shown)?;
            shown.page(file, page)?;
        } else {
            archive(file, &mut shown, console)?;
        }
    }
    let mut told: Vec<String> = shown.verdicts.iter().map(|(name, n)| format!("{n} {name}")).collect();
    if shown.faults > 0 {
        told.push(format!("{} broken places passed over", shown.faults));
    }
    console.say(&if told.is_empty() { "no pages".to_string() } else { told.join(", ") });
    Ok(())
}

fn is_html(file: &Path) -> bool {
    let extension = file.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    matches!(extension.as_str(), "html" | "htm" | "xhtml")
}

fn html(file: &Path, shown: &Shown<'_>) -> Result<Page, Failure> {
    let read = || {
        let mut bytes = Vec::new();
        // One byte above the limit is enough to see that there are too many.
        let most = shown.options.max_body as u64 + 1;
        bessemer_durable::open_regular(file)?.take(most).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    let bytes = read().map_err(|e| Failure::new(format!("cannot read {}: {e}", file.display())))?;
    Ok(page_of_html(&bytes, shown.extractor, &shown.options))
}

fn archive(file: &Path, shown: &mut Shown<'_>, console: &mut Console) -> Result<(), Failure> {
    let failed = |e| Failure::new(format!("{}: {e}", file.display()));
    let mut reader = WarcReader::open(file, WarcLimits::default()).map_err(failed)?;
    while shown.printed < shown.limit {
        match reader.next() {
            Ok(Some(record)) => {
                if let Some(page) = page_of_record(&record, shown.extractor, &shown.options) {
                    shown.page(file, page)?;
                }
            }
            Ok(None) => break,
            Err(e) if e.is_skippable() => {
                shown.faults += 1;
                console.say(&format!("{}: {e}; passed over", file.display()));
            }
            Err(e) => return Err(failed(e)),
        }
    }
    if reader.counts().records == 0 && shown.faults == 0 && reader.length() > 0 {
        return Err(Failure::new(format!("{} holds no WARC record", file.display())));
    }
    Ok(())
}

impl Shown<'_> {
    fn page(&mut self, file: &Path, page: Page) -> Result<(), Failure> {
        *self.verdicts.entry(page.verdict.name()).or_default() += 1;
        if self.only_ok && page.verdict != PageVerdict::Ok {
            return Ok(());
        }
        self.printed += 1;
        if self.as_json {
            let object = serde_json::json!({
                "file": file.display().to_string(),
                "offset": page.position.map(|p| p.offset),
                "url": page.url,
                "date": page.date,
                "media_type": page.media_type,
                "charset": page.charset.map(|(name, _)| name),
                "charset_from": page.charset.map(|(_, source)| format!("{source:?}").to_lowercase()),
                "replaced": page.replaced,
                "title": page.title,
                "language": page.language,
                "verdict": page.verdict.name(),
                "detail": page.detail,
                "text": page.text,
            });
            return Ok(print(&object.to_string())?);
        }
        let name = page.url.unwrap_or_else(|| file.display().to_string());
        let charset = page.charset.map_or("-", |(name, _)| name);
        let detail = page.detail.map(|d| format!(" ({d})")).unwrap_or_default();
        print(&format!("{name}  {charset}  {}{detail}", page.verdict.name()))?;
        if !page.text.is_empty() {
            print(&format!("\n{}\n", page.text))?;
        }
        Ok(())
    }
}
