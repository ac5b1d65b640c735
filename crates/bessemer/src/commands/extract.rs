//! `bessemer corpus extract`: what is left of web pages.

use super::pages::{PageFault, pages};
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_web::extract::{Extractor, Main, Plain};
use bessemer_web::page::{Page, PageOptions, PageVerdict};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Counts of the pages so far.
struct Shown {
    extractor: &'static dyn Extractor,
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
        let mut pages = pages(file, shown.extractor, shown.options.clone())?;
        while shown.printed < shown.limit
            && let Some(page) = pages.next()
        {
            match page {
                Ok(page) => shown.page(file, page)?,
                Err(PageFault::Record(message)) => {
                    shown.faults += 1;
                    console.say(&message);
                }
                Err(PageFault::Remark(message)) => console.say(&message),
                Err(PageFault::File(message)) => return Err(Failure::new(message)),
            }
        }
    }
    let mut told: Vec<String> = shown.verdicts.iter().map(|(name, n)| format!("{n} {name}")).collect();
    if shown.faults > 0 {
        told.push(format!("{} broken places skipped", shown.faults));
    }
    console.say(&if told.is_empty() { "no pages".to_string() } else { told.join(", ") });
    Ok(())
}

impl Shown {
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
