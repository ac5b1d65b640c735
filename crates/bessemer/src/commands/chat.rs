//! `bessemer chat`: chats as tokens.

use crate::cli::{ChatCommand, ChatShowArgs, ScoredAnswers};
use crate::commands::{chat_template, tokenizer};
use crate::console::{Console, colours, print, print_coloured};
use crate::escape;
use crate::failure::Failure;
use bessemer_chat::rows::read_object;
use bessemer_chat::{
    Answers, ChatEncoder, ChatError, ChatRow, ChatRows, ChatTemplate, ChatTokens, FittedChat,
};
use bessemer_documents::JsonRows;
use bessemer_tokenizer::Tokenizer;
use bessemer_units::counted;
use serde_json::json;
use std::fmt::Write;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Rows that are wrong and named by `--count`; others are only counted.
const MOST_NAMED: u64 = 5;

pub(crate) fn run(command: &ChatCommand, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match command {
        ChatCommand::Show(args) => show(args, as_json, console),
    }
}

/// Counts of a file.
#[derive(Default)]
struct Counts {
    chats: u64,
    tokens: u64,
    scored: u64,
    /// Messages left out of chats that are longer than the context.
    dropped: u64,
    wrong: u64,
}

fn show(args: &ChatShowArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    if args.context.is_some_and(|context| context == 0) {
        return Err(Failure::usage("--context: wanted at least 1, found 0"));
    }
    let encoder = encoder(args)?;
    let shown = args.file.display();
    let mut counts = Counts::default();
    for row in rows(&args.file)? {
        if !args.count && counts.chats >= args.chats as u64 {
            break;
        }
        match row.and_then(|row| encode(&encoder, args, &row).map(|fitted| (row, fitted))) {
            Ok((row, fitted)) => {
                if counts.chats < args.chats as u64 {
                    print_chat(&encoder, &row, &fitted, as_json)?;
                }
                counts.chats += 1;
                counts.tokens += fitted.tokens.ids.len() as u64;
                counts.scored += fitted.tokens.scored_tokens() as u64;
                counts.dropped += fitted.dropped as u64;
            }
            Err(e) if args.count && !matches!(e, ChatError::Read { .. }) => {
                counts.wrong += 1;
                if counts.wrong <= MOST_NAMED {
                    console.say(&format!("warning: {shown}, {e}"));
                }
            }
            Err(e) => return Err(Failure::new(format!("{shown}, {e}"))),
        }
    }
    if counts.chats == 0 && counts.wrong == 0 {
        return Err(Failure::new(format!("{shown}: wanted at least one chat, found an empty file")));
    }
    if args.count {
        print_counts(&counts, as_json)?;
    }
    Ok(())
}

/// Chats of a file: JSON lines, a JSON array or a table, plain or compressed, or Parquet.
pub(super) fn rows(path: &Path) -> Result<Box<dyn Iterator<Item = Result<ChatRow, ChatError>>>, Failure> {
    let failed = |e: String| Failure::new(format!("cannot read {}: {e}", path.display()));
    if path.extension().is_none_or(|ending| !ending.eq_ignore_ascii_case("parquet")) {
        let reader = bessemer_corpus::open_json_lines(path, "").map_err(|e| failed(e.to_string()))?;
        return Ok(Box::new(ChatRows::new(reader)));
    }
    let file = bessemer_durable::open_regular(path).map_err(|e| failed(e.to_string()))?;
    let rows = JsonRows::open(file).map_err(|e| failed(e.to_string()))?;
    Ok(Box::new((1..).zip(rows).map(|(line, row)| {
        let row = row.map_err(|e| ChatError::Read { line, source: io::Error::other(e) })?;
        let (form, chat) = read_object(&row).map_err(|problem| ChatError::Row { line, problem })?;
        Ok(ChatRow { line, form, chat })
    })))
}

fn encode(encoder: &ChatEncoder, args: &ChatShowArgs, row: &ChatRow) -> Result<FittedChat, ChatError> {
    let answers = match args.answers {
        ScoredAnswers::All => Answers::All,
        ScoredAnswers::Last => Answers::Last,
    };
    let fitted = match args.context {
        Some(context) => encoder.encode_within(&row.chat, answers, context),
        None => encoder.encode(&row.chat, answers).map(|tokens| FittedChat { tokens, dropped: 0 }),
    };
    fitted.map_err(|e| ChatError::Row { line: row.line, problem: e.to_string() })
}

/// The encoder that the arguments name.
fn encoder(args: &ChatShowArgs) -> Result<ChatEncoder, Failure> {
    let directory = args.template.as_deref().filter(|path| path.is_dir());
    let Some(from) = args.tokenizer.as_deref().or(directory) else {
        return Err(Failure::usage(
            "wanted --tokenizer with a tokenizer.json, or --template with a directory that has one",
        ));
    };
    let tokenizer: Arc<Tokenizer> = Arc::new(tokenizer::load(from)?);
    let template = match args.template.as_deref() {
        Some(path) => named(path, &tokenizer)?,
        None if from.is_dir() => named(from, &tokenizer)?,
        None => {
            return Err(Failure::usage("wanted --template with a name, a file or a directory, found none"));
        }
    };
    ChatEncoder::new(template, tokenizer).map_err(Failure::new)
}

fn named(path: &Path, tokenizer: &Tokenizer) -> Result<ChatTemplate, Failure> {
    chat_template::named(path, tokenizer)
        .map_err(|e| Failure { message: format!("--template: {}", e.message), ..e })
}

fn print_chat(
    encoder: &ChatEncoder,
    row: &ChatRow,
    fitted: &FittedChat,
    as_json: bool,
) -> Result<(), Failure> {
    let FittedChat { tokens, dropped } = fitted;
    let (count, scored) = (tokens.ids.len(), tokens.scored_tokens());
    if as_json {
        let ranges: Vec<[usize; 2]> = tokens.scored.iter().map(|range| [range.start, range.end]).collect();
        let object = json!({
            "line": row.line, "form": row.form.name(), "tokens": count, "scored_tokens": scored,
            "dropped_messages": dropped, "ids": tokens.ids, "scored": ranges,
        });
        return Ok(print(&object.to_string())?);
    }
    let answers = counted(tokens.scored.len(), "answer");
    let mut text = format!(
        "line {} ({}): {}, {scored} of them scored in {answers}",
        row.line,
        row.form.name(),
        counted(count, "token")
    );
    if *dropped > 0 {
        let _ = write!(text, "; {} left out", counted(*dropped, "oldest message"));
    }
    text.push('\n');
    match colours() {
        true => {
            coloured(encoder, tokens, &mut text);
            Ok(print_coloured(&text)?)
        }
        false => {
            plain(encoder, tokens, &mut text);
            Ok(print(&text)?)
        }
    }
}

/// A token as it is shown: control characters escaped, a line break visible.
fn token_text(encoder: &ChatEncoder, id: u32) -> String {
    let bytes = encoder.tokenizer().token_bytes(id).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => escape::controls(text).replace('\n', "⏎\n"),
        // A part of a character.
        Err(_) => bytes.iter().map(|byte| format!("<{byte:02X}>")).collect(),
    }
}

fn plain(encoder: &ChatEncoder, tokens: &ChatTokens, out: &mut String) {
    let begins = |at: usize| tokens.scored.iter().any(|range| range.start == at);
    let ends = |at: usize| tokens.scored.iter().any(|range| range.end == at);
    for (at, id) in tokens.ids.iter().enumerate() {
        if ends(at) {
            out.push('»');
        }
        if at > 0 && !ends(at) && !begins(at) && !out.ends_with('\n') {
            out.push('·');
        }
        if begins(at) {
            out.push('«');
        }
        out.push_str(&token_text(encoder, *id));
    }
    if ends(tokens.ids.len()) {
        out.push('»');
    }
    out.push('\n');
}

fn coloured(encoder: &ChatEncoder, tokens: &ChatTokens, out: &mut String) {
    // Scored tokens are green, other special tokens dim. Every second token is underlined, which shows the borders.
    let mut ranges = tokens.scored.iter().peekable();
    for (at, id) in tokens.ids.iter().enumerate() {
        while ranges.next_if(|range| range.end <= at).is_some() {}
        let is_scored = ranges.peek().is_some_and(|range| range.contains(&at));
        let colour = match (is_scored, encoder.is_special(*id)) {
            (true, _) => "\u{1b}[32m",
            (false, true) => "\u{1b}[2m",
            (false, false) => "\u{1b}[0m",
        };
        let line = if at % 2 == 1 { "\u{1b}[4m" } else { "" };
        let _ = write!(out, "{colour}{line}{}\u{1b}[0m", token_text(encoder, *id));
    }
    out.push('\n');
}

fn print_counts(counts: &Counts, as_json: bool) -> Result<(), Failure> {
    let Counts { chats, tokens, scored, dropped, wrong } = counts;
    let text = match as_json {
        true => json!({
            "chats": chats, "tokens": tokens, "scored_tokens": scored, "dropped_messages": dropped, "wrong_rows": wrong,
        })
        .to_string(),
        false => {
            let share = *scored as f64 / (*tokens).max(1) as f64 * 100.0;
            let (chats, tokens) = (counted(*chats, "chat"), counted(*tokens, "token"));
            let (dropped, wrong) = (counted(*dropped, "message"), counted(*wrong, "wrong row"));
            format!("{chats}, {tokens}, {scored} of them scored ({share:.1}%); {dropped} left out, {wrong}")
        }
    };
    Ok(print(&text)?)
}
