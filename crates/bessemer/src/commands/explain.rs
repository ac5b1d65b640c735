//! `bessemer corpus explain` and `bessemer corpus profiles`: what the rules of a profile say about documents.

use super::pages::{PageFault, holds_pages, pages};
use crate::cli::ExplainArgs;
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_corpus::{repair_json, source_kind_of};
use bessemer_corpus_config::{RulesConfig, SourceKind};
use bessemer_documents::JsonRows;
use bessemer_rules::{
    DocumentView, Outcome, Profile, Row, RuleResult, RuleVerdict, Scratch, Value, Verdict, build_profiles,
    json_field, json_value,
};
use bessemer_units::counted;
use bessemer_web::extract::Main;
use bessemer_web::page::{PageOptions, PageVerdict};
use serde_json::{Map, Value as Json, json};
use std::borrow::Cow;
use std::fmt::Write;
use std::fs::File;
use std::io::{BufRead, Read};
use std::path::Path;

/// Largest text of one document, in bytes: longer lines and files are skipped and reported.
const MAX_DOCUMENT: u64 = 256 << 20;

/// A document with its columns.
struct Document {
    name: String,
    columns: Map<String, Json>,
}

impl Row for Document {
    fn value(&self, column: &str) -> Option<Value<'_>> {
        json_field(&self.columns, column).map(json_value)
    }

    fn names(&self) -> Vec<&str> {
        self.columns.keys().map(String::as_str).collect()
    }
}

pub(crate) fn profiles(name: Option<&str>, as_json: bool) -> Result<(), Failure> {
    if let Some(name) = name {
        let profile = Profile::find(name).map_err(Failure::usage)?;
        if as_json {
            return Ok(print(&serde_json::to_string(profile.file())?)?);
        }
        let mut text = format!(
            "{}\n{}\n{}\nwords: {}\n\n",
            name,
            profile.about(),
            profile.source(),
            profile.words().name()
        );
        // An empty text names every rule and its limits.
        for rule in profile.explain(&DocumentView::of(""), &mut Scratch::new()).rules {
            let _ = writeln!(text, "{:<40} {:<22} {}", rule.rule, limits(&rule), rule.label);
        }
        return Ok(print(&text)?);
    }
    let all = Profile::names().into_iter().map(Profile::named).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(Failure::new)?;
    if as_json {
        let languages = Profile::fineweb2_languages();
        let named = languages.iter().map(|language| Profile::named(&format!("fineweb2-{language}")));
        let languages = named.collect::<Result<Vec<_>, _>>().map_err(Failure::new)?;
        let rows: Vec<Json> = all
            .iter()
            .chain(&languages)
            .map(|p| json!({"name": p.name(), "about": p.about(), "source": p.source(), "words": p.words().name()}))
            .collect();
        return Ok(print(&serde_json::to_string(&rows)?)?);
    }
    let mut text = String::new();
    for profile in all {
        let _ = writeln!(text, "{:<20} {}", profile.name(), profile.about());
    }
    let languages = Profile::fineweb2_languages().join(", ");
    let _ =
        writeln!(text, "{:<20} FineWeb-2 with the values of a language: {languages}", "fineweb2-LANGUAGE");
    Ok(print(&text)?)
}

pub(crate) fn explain(args: &ExplainArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    if args.profile.iter().any(|name| name == "list") {
        return profiles(None, as_json);
    }
    let Some(file) = &args.file else {
        return Err(Failure::usage(
            "explain needs a file of documents: text, .jsonl (also .gz, .zst), .parquet, .html or .warc (also .gz, .zst)",
        ));
    };
    if args.profile.is_empty() && args.keep.is_empty() {
        let all = Profile::names().join(", ");
        return Err(Failure::usage(format!(
            "explain needs --profile NAME (one of {all}, or a .toml file) or --keep"
        )));
    }
    let config =
        RulesConfig { profiles: args.profile.clone(), keep: args.keep.clone(), ..RulesConfig::default() };
    // The keys of a recipe stand for the flags here.
    let flags = |e: String| e.replace("rules.profiles", "--profile").replace("rules.keep", "--keep");
    let profiles = build_profiles(&config).map_err(|e| Failure::usage(flags(e.to_string())))?;
    let mut scratch = Scratch::new();
    let (mut shown, mut kept, mut passed_over, mut unread) = (0, 0, 0, None);
    for document in documents(file, &args.text)? {
        let document = match document {
            Ok(document) => document,
            // A damaged line is reported and the run goes on; a damaged file ends here.
            Err(Fault::Document(message)) => {
                passed_over += 1;
                say_some(console, passed_over, &message);
                continue;
            }
            Err(Fault::File(message)) => {
                unread = Some(message);
                break;
            }
        };
        let Some(Json::String(text)) = json_field(&document.columns, &args.text) else {
            let message =
                format!("{}: no text in {:?}; it has {}", document.name, args.text, fields(&document));
            // Where the first document lacks the field, so do most of the others.
            if shown + passed_over == 0 {
                return Err(Failure::usage(format!("{message}; name the field of the text with --text")));
            }
            passed_over += 1;
            say_some(console, passed_over, &message);
            continue;
        };
        if shown == 0 {
            check_columns(&config, &profiles, &document)?;
        }
        let judged = judge(&profiles, &document, text, &mut scratch);
        kept += u64::from(judged.iter().all(|(_, j)| !matches!(j.verdict, Verdict::Drop(_))));
        shown += 1;
        print(&if as_json { line(&document.name, &judged)? } else { table(&document.name, &judged) })?;
        if args.limit.is_some_and(|limit| shown >= limit) {
            break;
        }
    }
    if !as_json {
        console.say(&format!(
            "{}: {kept} kept, {} dropped; {passed_over} skipped",
            counted(shown, "document"),
            shown - kept
        ));
    }
    unread.map_or(Ok(()), |message| Err(Failure::new(message)))
}

/// Names that an error lists.
const MOST_NAMES: usize = 20;
/// Skipped documents that are reported one by one.
const MOST_TOLD: u64 = 5;

/// The names of a document's fields, as far as a line holds them.
fn fields(document: &Document) -> String {
    let names = document.names();
    if names.is_empty() {
        return "no fields".into();
    }
    let short = |name: &&str| match name.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => (*name).to_owned(),
    };
    let more = names.len().saturating_sub(MOST_NAMES);
    let mut text = names.iter().take(MOST_NAMES).map(short).collect::<Vec<_>>().join(", ");
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

/// Reports why a document is skipped, unless enough were reported; the last line of the command has their number.
fn say_some(console: &mut Console, number: u64, message: &str) {
    if number <= MOST_TOLD {
        console.say(message);
    }
    if number == MOST_TOLD {
        console.say("further skipped documents are only counted");
    }
}

/// Applies every profile to the text that the previous one left. Profiles after a drop see the text that was dropped.
fn judge<'p>(
    profiles: &'p [Profile],
    row: &Document,
    text: &str,
    scratch: &mut Scratch,
) -> Vec<(&'p str, Outcome)> {
    let mut text = Cow::Borrowed(text);
    let mut judged = Vec::new();
    for profile in profiles {
        let outcome = profile.explain(&DocumentView { text: &text, columns: row }, scratch);
        if let Verdict::Edit(new) = &outcome.verdict {
            text = Cow::Owned(new.clone());
        }
        judged.push((profile.name(), outcome));
    }
    judged
}

fn check_columns(config: &RulesConfig, profiles: &[Profile], row: &Document) -> Result<(), Failure> {
    let simple: Vec<&str> = row.names();
    for source in &config.keep {
        let predicate = bessemer_rules::Predicate::parse(source).map_err(Failure::usage)?;
        let inner: Vec<&str> = predicate.columns().filter(|name| row.value(name).is_some()).collect();
        let names = simple.iter().copied().chain(inner);
        predicate.check_columns(names).map_err(Failure::usage)?;
    }
    for profile in profiles {
        for column in profile.columns() {
            if row.value(column).is_none() {
                return Err(Failure::usage(format!(
                    "profile {:?} reads the column {column:?}, which the documents lack; they have {}",
                    profile.name(),
                    fields(row)
                )));
            }
        }
    }
    Ok(())
}

fn verdict_of<'j>(judged: &'j [(&str, Outcome)]) -> (&'static str, Option<&'j str>) {
    let reason = judged.iter().find_map(|(_, outcome)| match &outcome.verdict {
        Verdict::Drop(label) => Some(label.as_str()),
        _ => None,
    });
    let edited = judged.iter().any(|(_, outcome)| matches!(outcome.verdict, Verdict::Edit(_)));
    (
        if reason.is_some() {
            "drop"
        } else if edited {
            "edit"
        } else {
            "keep"
        },
        reason,
    )
}

fn line(name: &str, judged: &[(&str, Outcome)]) -> Result<String, Failure> {
    let (verdict, reason) = verdict_of(judged);
    let profiles: Vec<Json> =
        judged.iter().map(|(profile, outcome)| json!({"profile": profile, "rules": outcome.rules})).collect();
    Ok(serde_json::to_string(
        &json!({"document": name, "verdict": verdict, "reason": reason, "profiles": profiles}),
    )?)
}

fn table(name: &str, judged: &[(&str, Outcome)]) -> String {
    let (verdict, reason) = verdict_of(judged);
    let mut text =
        format!("{name}: {verdict}{}\n", reason.map_or_else(String::new, |reason| format!(" ({reason})")));
    for (profile, outcome) in judged {
        let _ = writeln!(text, "  {profile}");
        for rule in &outcome.rules {
            let value = rule.value.map_or_else(|| "-".to_owned(), number);
            let verdict = match rule.verdict {
                RuleVerdict::Pass => "pass",
                RuleVerdict::Fail => "FAIL",
                RuleVerdict::Undefined => "no value",
                RuleVerdict::Reported => "",
            };
            let _ = writeln!(
                text,
                "    {:<36} {value:>12}  {:<22} {verdict:<8} {}",
                rule.rule,
                limits(rule),
                rule.label
            );
        }
    }
    text
}

fn limits(rule: &RuleResult) -> String {
    match (rule.min, rule.max) {
        (Some(min), Some(max)) => format!("{} to {}", number(min), number(max)),
        (Some(min), None) => format!("at least {}", number(min)),
        (None, Some(max)) => format!("at most {}", number(max)),
        (None, None) => String::new(),
    }
}

/// Formats a number with six significant digits and without trailing zeros.
fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return format!("{value}");
    }
    let decimals = (5 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    format!("{value:.decimals$}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Errors of reading.
enum Fault {
    /// With one document.
    Document(String),
    /// With everything that follows.
    File(String),
}

type Documents = Box<dyn Iterator<Item = Result<Document, Fault>>>;

/// The documents of a file, one at a time.
fn documents(path: &Path, text: &str) -> Result<Documents, Failure> {
    let place = path.display().to_string();
    let name = place.to_ascii_lowercase();
    let open =
        || bessemer_durable::open_regular(path).map_err(|error| Failure::new(format!("{place}: {error}")));
    if name.ends_with(".parquet") {
        return rows(open()?, place);
    }
    if holds_pages(path) {
        return pages_as_documents(path, text);
    }
    if source_kind_of(&name) == Some(SourceKind::Jsonl) {
        let reader = bessemer_corpus::open_json_lines(path, text);
        return Ok(json_lines(reader.map_err(|error| Failure::new(format!("{place}: {error}")))?, place));
    }
    let mut bytes = Vec::new();
    let read = open()?.take(MAX_DOCUMENT + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::new(format!("{place}: {error}")))?;
    if bytes.len() as u64 > MAX_DOCUMENT {
        return Err(Failure::new(format!(
            "{place}: a document of more than {MAX_DOCUMENT} bytes; cut it first"
        )));
    }
    let whole = bessemer_durable::decode_text(bytes).map_err(|error| {
        Failure::new(format!(
            "{place}: {error}; supported: text, .jsonl (also .gz, .zst), .parquet, .html and .warc"
        ))
    })?;
    let columns = [(text.to_owned(), Json::String(whole)), ("path".to_owned(), Json::String(place.clone()))];
    Ok(Box::new(std::iter::once(Ok(Document { name: place, columns: columns.into_iter().collect() }))))
}

/// The pages of a web archive or a saved page, with the text that a build takes of them.
fn pages_as_documents(path: &Path, text: &str) -> Result<Documents, Failure> {
    let (place, text) = (path.display().to_string(), text.to_owned());
    let pages = pages(path, &Main, PageOptions::default())?;
    Ok(Box::new(pages.filter(|page| !matches!(page, Err(PageFault::Remark(_)))).map(move |page| {
        let page = match page {
            Ok(page) => page,
            Err(PageFault::Record(message)) => return Err(Fault::Document(message)),
            Err(PageFault::File(message) | PageFault::Remark(message)) => return Err(Fault::File(message)),
        };
        let name = page.url.as_ref().map_or_else(|| place.clone(), |url| format!("{place} ({url})"));
        if page.verdict != PageVerdict::Ok {
            let detail = page.detail.unwrap_or_default();
            return Err(Fault::Document(format!("{name}: {} ({detail})", page.verdict.name())));
        }
        let columns = [
            (text.as_str(), Some(page.text)),
            ("url", page.url),
            ("fetched", page.date),
            ("title", page.title),
            ("language", page.language),
        ];
        let columns = columns.into_iter().map(|(name, value)| (name.to_owned(), Json::from(value)));
        Ok(Document { name, columns: columns.collect() })
    })))
}

/// Fields or columns of the first document of a file that can be read; `None` if it holds none.
pub(crate) fn first_columns(path: &Path) -> Result<Option<Map<String, Json>>, Failure> {
    let first = documents(path, "text")?.find_map(|document| match document {
        Ok(document) => Some(Ok(document.columns)),
        Err(Fault::Document(_)) => None,
        Err(Fault::File(message)) => Some(Err(Failure::new(message))),
    });
    first.transpose()
}

/// One object a line.
fn json_lines(mut reader: Box<dyn BufRead + Send>, place: String) -> Documents {
    let mut number = 0_u64;
    let mut bytes = Vec::new();
    let mut ended = false;
    Box::new(std::iter::from_fn(move || {
        while !ended {
            bytes.clear();
            number += 1;
            let at = format!("{place}:{number}");
            match (&mut reader).take(MAX_DOCUMENT).read_until(b'\n', &mut bytes) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => {
                    ended = true;
                    return Some(Err(Fault::File(format!("{at}: {error}"))));
                }
            }
            if bytes.len() as u64 == MAX_DOCUMENT && bytes.last() != Some(&b'\n') {
                let rest = skip_line(&mut reader);
                ended = rest.is_err();
                return Some(Err(Fault::Document(format!("{at}: a line of more than {MAX_DOCUMENT} bytes"))));
            }
            if bytes.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            return Some(match serde_json::from_slice::<Map<String, Json>>(&repair_json(&bytes)) {
                Ok(columns) => {
                    let name = match columns.get("id") {
                        Some(Json::String(id)) => format!("{at} ({id})"),
                        Some(Json::Number(id)) => format!("{at} ({id})"),
                        _ => at,
                    };
                    Ok(Document { name, columns })
                }
                Err(error) => Err(Fault::Document(format!("{at}: wanted a JSON object: {error}"))),
            });
        }
        None
    }))
}

/// Passes over the rest of a line without holding it.
fn skip_line(reader: &mut Box<dyn BufRead + Send>) -> std::io::Result<()> {
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(());
        }
        let end = buffer.iter().position(|&byte| byte == b'\n');
        let used = end.map_or(buffer.len(), |at| at + 1);
        reader.consume(used);
        if end.is_some() {
            return Ok(());
        }
    }
}

/// Rows of a Parquet file.
fn rows(file: File, place: String) -> Result<Documents, Failure> {
    let rows = JsonRows::open(file).map_err(|error| Failure::new(format!("{place}: {error}")))?;
    Ok(Box::new(rows.enumerate().map(move |(index, columns)| {
        let number = index + 1;
        let columns = columns.map_err(|error| Fault::File(format!("{place}:{number}: {error}")))?;
        let id = columns.get("id").and_then(Json::as_str).map_or_else(String::new, |id| format!(" ({id})"));
        Ok(Document { name: format!("{place}:{number}{id}"), columns })
    })))
}
