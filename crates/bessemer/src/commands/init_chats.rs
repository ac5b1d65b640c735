//! `bessemer init --from MODEL --chats FILE`: a recipe that tunes a model on chats.

use crate::cli::InitArgs;
use crate::commands::checkpoint::Place;
use crate::commands::{chat_template, import};
use crate::console::{Console, print};
use crate::escape::shell_word;
use crate::failure::Failure;
use crate::run_dir::RunDir;
use bessemer_arch::Model;
use bessemer_chat::{Answers, ChatEncoder, ChatError, ChatRows};
use bessemer_recipe::{ChatFacts, Tuner};
use bessemer_train::{Observer, TrainState};
use bessemer_units::{Tokens, counted};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Wrong rows that are named; others are only counted.
const MOST_NAMED: u64 = 5;

/// Writes the recipe to `args.out`, which does not exist, for a run called `name`.
pub(crate) fn run(
    args: &InitArgs,
    name: &str,
    chats: &Path,
    as_json: bool,
    console: &mut Console,
) -> Result<(), Failure> {
    let Some(from) = &args.from else {
        return Err(Failure::usage(
            "--chats: wanted --from MODEL too, the model to tune (a run, or a directory with config.json)",
        ));
    };
    let Some(path) = chats.to_str() else {
        return Err(Failure::new(format!(
            "{}: a recipe can only name paths that are UTF-8; rename it",
            chats.display()
        )));
    };
    if path.to_ascii_lowercase().ends_with(".parquet") {
        return Err(Failure::new(format!(
            "{path}: wanted .jsonl, .json, .csv or .tsv, found Parquet, of which `bessemer run` reads no chats yet; \
             `duckdb -c \"copy '{path}' to 'chats.jsonl'\"` writes JSON lines"
        )));
    }
    // The file is read before a model is imported for it.
    bessemer_durable::open_regular(chats).map_err(|e| Failure::new(format!("{path}: {e}")))?;
    let from = imported(from, console)?;
    let model = model_of(&from)?;
    let run = RunDir::new(&from);
    let tokenizer = Arc::new(run.load_tokenizer()?);
    let template = args.template.clone().unwrap_or_default();
    let place = if template.is_empty() { from.as_path() } else { Path::new(&template) };
    let loaded = chat_template::named(place, &tokenizer)
        .map_err(|e| Failure { message: format!("{}; --template names one", e.message), ..e })?;
    let encoder = ChatEncoder::new(loaded, tokenizer).map_err(Failure::new)?;
    let facts = count(
        ChatFacts { path: path.to_owned(), template, ..ChatFacts::default() },
        &encoder,
        &model,
        console,
    )?;
    let tuner = Tuner::new(&model, &facts).map_err(|problem| Failure::new(format!("{path}: {problem}")))?;
    let command = format!("bessemer run {}", shell_word(&args.out.display().to_string()));
    let recipe = tuner.to_toml(name, &facts, &from, &run.tokenizer(), &command).map_err(|problems| {
        Failure::usage(problems.into_iter().map(|p| p.message).collect::<Vec<_>>().join("; "))
    })?;
    bessemer_durable::write(&args.out, recipe.as_bytes())
        .map_err(|e| Failure::new(format!("--out {}: {e}", args.out.display())))?;
    let rank = tuner.model.adapters.as_ref().map_or(0, |adapters| adapters.rank);
    if as_json {
        return Ok(print(
            &json!({
                "recipe": args.out.display().to_string(), "from": from.display().to_string(), "chats": facts.chats,
                "tokens": facts.tokens, "scored_tokens": facts.scored, "longest": facts.longest, "too_long": facts.too_long,
                "seq_len": tuner.seq_len, "batch_tokens": tuner.batch_tokens, "steps": tuner.steps, "rank": rank, "next": command,
            })
            .to_string(),
        )?);
    }
    Ok(print(&format!(
        "found: {}, {} tokens, {} of them in answers; the longest has {}\n\
         chose: adapters of rank {rank} on {}, about {} steps of {} tokens\n\
         next:  {command}",
        counted(facts.chats, "chat"),
        Tokens(facts.tokens),
        Tokens(facts.scored),
        facts.longest,
        from.display(),
        tuner.steps,
        Tokens(tuner.batch_tokens),
    ))?)
}

/// The run of a model: the directory itself, or a new run below `runs` into which a directory of Hugging Face's layout is imported.
fn imported(from: &Path, console: &mut Console) -> Result<PathBuf, Failure> {
    let run = RunDir::new(from);
    if run.checkpoints().is_dir() {
        return Ok(from.to_owned());
    }
    if !from.join("config.json").is_file() {
        return Err(Failure::new(format!(
            "--from {}: wanted a run with checkpoints, or a directory of a model with config.json, found neither",
            from.display()
        )));
    }
    let out = Path::new("runs").join(run.name());
    if RunDir::new(&out).checkpoints().is_dir() {
        return Err(Failure::new(format!(
            "--from {0}: {1} exists already; use --from {1} if it is that model, or rename one",
            from.display(),
            out.display()
        )));
    }
    import::import(from, None, &out, console)?;
    Ok(out)
}

/// The architecture of a run's newest checkpoint.
fn model_of(from: &Path) -> Result<Model, Failure> {
    let loaded = Place::open_initial(from)?.load_lazily(None)?.loaded;
    let state =
        TrainState::of(loaded.manifest()).map_err(|e| Failure::new(format!("{}: {e}", from.display())))?;
    Ok(state.identity.model)
}

/// Reads the chats, and counts their tokens.
fn count(
    mut facts: ChatFacts,
    encoder: &ChatEncoder,
    model: &Model,
    console: &mut Console,
) -> Result<ChatFacts, Failure> {
    let path = facts.path.clone();
    let reader = bessemer_corpus::open_json_lines(Path::new(&path), "")
        .map_err(|e| Failure::new(format!("cannot read {path}: {e}")))?;
    let (mut wrong, mut first) = (0, None);
    for row in ChatRows::new(reader) {
        let line = row.as_ref().map_or(0, |row| row.line);
        match row.and_then(|row| encoder.encode_within(&row.chat, Answers::All, model.context)) {
            Ok(fitted) => {
                let tokens = fitted.tokens.ids.len() as u64;
                facts.chats += 1;
                facts.tokens += tokens;
                facts.scored += fitted.tokens.scored_tokens() as u64;
                facts.longest = facts.longest.max(tokens);
            }
            Err(ChatError::TooLong { .. }) => facts.too_long += 1,
            Err(e @ ChatError::Row { .. }) => {
                wrong += 1;
                first = first.or_else(|| Some(e.to_string()));
                if wrong <= MOST_NAMED {
                    console.say(&format!("warning: {path}, {e}"));
                }
            }
            // A template that rejects a chat would end the run.
            Err(e @ ChatError::Read { .. }) => return Err(Failure::new(format!("{path}, {e}"))),
            Err(e) => return Err(Failure::new(format!("{path}, line {line}: {e}"))),
        }
        console.progress("reading chats", facts.chats, 0);
    }
    if wrong > MOST_NAMED {
        console.say(&format!("warning: {path}: {} more", counted(wrong - MOST_NAMED, "wrong row")));
    }
    match first {
        Some(first) if facts.chats == 0 => {
            Err(Failure::new(format!("{path}: wanted at least one chat, found none; {first}")))
        }
        _ => Ok(facts),
    }
}
