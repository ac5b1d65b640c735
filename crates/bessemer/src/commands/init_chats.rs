//! `bessemer init --from MODEL --chats FILE`: a recipe that tunes a model on chats.

use crate::cli::InitArgs;
use crate::commands::checkpoint::Place;
use crate::commands::{chat, chat_template, import};
use crate::console::{Console, print};
use crate::escape::shell_word;
use crate::failure::Failure;
use crate::run_dir::RunDir;
use bessemer_arch::Model;
use bessemer_chat::{Answers, ChatEncoder, ChatError, ChatRow};
use bessemer_corpus::{document_id, text_of_chat};
use bessemer_recipe::{ChatFacts, Tuner};
use bessemer_shards::ShardSet;
use bessemer_train::{Observer, TrainState};
use bessemer_units::{Tokens, counted};
use serde_json::json;
use std::collections::{BTreeSet, HashSet};
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
    // Chats of a model with a template of its own have trained the special tokens of a template.
    let is_new = !template.is_empty() && chat_template::of_directory(&run)?.is_none();
    let mut facts = count(
        ChatFacts { path: path.to_owned(), template, ..ChatFacts::default() },
        &encoder,
        &model,
        console,
    )?;
    if !is_new {
        facts.new_tokens.clear();
    }
    facts.former_text = ShardSet::open(run.shards(), "validation").is_ok();
    let tuner = Tuner::new(&model, &facts).map_err(|problem| Failure::new(format!("{path}: {problem}")))?;
    let command = format!("bessemer run {}", shell_word(&args.out.display().to_string()));
    let recipe = tuner.to_toml(name, &facts, &from, &run.tokenizer(), &command).map_err(|problems| {
        Failure::usage(problems.into_iter().map(|p| p.message).collect::<Vec<_>>().join("; "))
    })?;
    bessemer_durable::write(&args.out, recipe.as_bytes())
        .map_err(|e| Failure::new(format!("--out {}: {e}", args.out.display())))?;
    if !facts.new_tokens.is_empty() {
        console.say(&format!(
            "note: {} are new to the model, which has no template of its own: embeddings are trained too (train.trained)",
            facts.new_tokens.join(", ")
        ));
    }
    let rank = tuner.model.adapters.as_ref().map_or(0, |adapters| adapters.rank);
    if as_json {
        return Ok(print(
            &json!({
                "recipe": args.out.display().to_string(), "from": from.display().to_string(), "chats": facts.chats, "equal": facts.equal, "new_tokens": facts.new_tokens,
                "tokens": facts.tokens, "scored_tokens": facts.scored, "longest": facts.longest, "too_long": facts.too_long,
                "seq_len": tuner.seq_len, "batch_tokens": tuner.batch_tokens, "steps": tuner.steps, "rank": rank, "next": command,
            })
            .to_string(),
        )?);
    }
    Ok(print(&format!(
        "found: {}{}, {} tokens, {} of them in answers; the longest has {}\n\
         chose: adapters of rank {rank} on {}, about {} steps of {} tokens\n\
         next:  {command}",
        counted(facts.chats, "chat"),
        if facts.equal > 0 { format!(" and {} equal to others", facts.equal) } else { String::new() },
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
    let (mut wrong, mut first, mut seen) = (0, None, HashSet::new());
    let (tokenizer, mut special) = (encoder.tokenizer(), BTreeSet::new());
    let fit = |row: ChatRow| {
        let text = text_of_chat(&row.chat).map_err(|problem| ChatError::Row { line: row.line, problem })?;
        Ok((document_id(&text), encoder.encode_within(&row.chat, Answers::All, model.context)?))
    };
    for row in chat::rows(Path::new(&path))? {
        let line = row.as_ref().map_or(0, |row| row.line);
        match row.and_then(fit) {
            Ok((id, _)) if !seen.insert(id) => facts.equal += 1,
            Ok((_, fitted)) => {
                let ids = fitted.tokens.ids.iter().copied();
                special
                    .extend(ids.filter(|id| encoder.is_special(*id) && tokenizer.end_of_text() != Some(*id)));
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
    let names = special.iter().filter_map(|id| tokenizer.token_bytes(*id));
    facts.new_tokens = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    match first {
        Some(first) if facts.chats == 0 => {
            Err(Failure::new(format!("{path}: wanted at least one chat, found none; {first}")))
        }
        _ => Ok(facts),
    }
}
