//! `bessemer corpus`: build a corpus, look into one.

mod delete;
mod inspect;
mod mixture;
mod review;
mod scored;
mod verify;

use crate::cli::{CorpusCommand, ReviewCommand};
use crate::commands::explain;
use crate::commands::run::Session;
use crate::commands::scores;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::run_dir::{RECIPE, RunDir, SHARDS, similar};
use bessemer_corpus::{CorpusReader, RunCard};
use bessemer_recipe::RecipeUse;
use bessemer_runlog::Record;
use bessemer_units::{Bytes, counted};
use bessemer_web::redact::redact;
use std::fmt::Write;
use std::path::{Path, PathBuf};

pub(crate) fn run(command: &CorpusCommand, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match command {
        CorpusCommand::Build { recipe, cluster } => {
            if cluster.is_some() {
                super::cluster::require()?;
            }
            let mut session = Session::open(recipe, RecipeUse::Corpus)?;
            session.with_stages(console, |stages, log, console| {
                stages.corpus(console, log, cluster.as_deref()).map(|_| ())
            })
        }
        CorpusCommand::Cluster(command) => super::cluster::run(command, console),
        CorpusCommand::Inspect(args) => inspect::inspect(&corpus_of(&args.path)?, args, as_json, console),
        CorpusCommand::Export(args) => inspect::export(&corpus_of(&args.path)?, args, as_json, console),
        CorpusCommand::Verify { path } => verify::run(&corpus_of(path)?, as_json),
        CorpusCommand::Card { path, out } => {
            let reader = CorpusReader::open(&corpus_of(path)?)?;
            let page = bessemer_corpus::run_card(&reader, &run_of_card(path)?)?;
            bessemer_durable::write(out, page.as_bytes())?;
            console.say(&format!("wrote {}", out.display()));
            if as_json {
                let object = serde_json::json!({ "card": out.display().to_string(), "bytes": page.len() });
                print(&object.to_string())?;
            }
            Ok(())
        }
        CorpusCommand::Explain(args) => explain::explain(args, as_json, console),
        CorpusCommand::Profiles { name } => explain::profiles(name.as_deref(), as_json),
        CorpusCommand::Review(ReviewCommand::Serve(args)) => {
            review::serve(args, &corpus_of(&args.path)?, console)
        }
        CorpusCommand::Review(ReviewCommand::Apply(args)) => {
            review::apply(args, &corpus_of(&args.path)?, as_json, console)
        }
        CorpusCommand::Media(command) => crate::commands::media::run(command, as_json, console),
        CorpusCommand::Delete { path, ids, file, reason } => {
            let wanted = delete::wanted(ids, file.as_deref())?;
            delete::run(path, &corpus_of(path)?, &wanted, reason, as_json, console)
        }
        CorpusCommand::Extract { files, plain, repair_mojibake, ok, limit } => {
            super::extract::run(files, *plain, *repair_mojibake, *ok, *limit, as_json, console)
        }
        CorpusCommand::Stats { path, recipe } => {
            let reader = CorpusReader::open(&corpus_of(path)?)?;
            let s = reader.summary();
            // A run directory whose recipe does not fit its shards has statistics all the same.
            let taken = mixture::taken(path, recipe.as_deref()).or_else(|failure| match recipe {
                Some(_) => Err(failure),
                None => {
                    console.say(&format!("no mixture: {}", failure.message));
                    Ok(Vec::new())
                }
            })?;
            let scored = scored::splits(path)?;
            if as_json {
                let mut value = serde_json::to_value(s)?;
                if !taken.is_empty() {
                    value["mixture"] = serde_json::to_value(&taken)?;
                }
                if !scored.is_empty() {
                    value["scored"] = scored::objects(&scored);
                }
                return Ok(print(&serde_json::to_string(&value)?)?);
            }
            let mut text = String::new();
            let count =
                |c: bessemer_corpus::Count| format!("{:>9} documents  {:>9}", c.documents, Bytes(c.bytes));
            let _ = writeln!(text, "source      {}", s.source);
            let _ = writeln!(text, "read        {}", count(s.read));
            let _ = writeln!(text, "kept        {}", count(s.kept));
            for (split, v) in &s.splits {
                let _ = writeln!(
                    text,
                    "  {:<10}{:>9} documents  {:>9}  {} sources",
                    split.name(),
                    v.documents,
                    Bytes(v.bytes),
                    v.sources
                );
            }
            let _ = writeln!(text, "dropped     {}", count(s.dropped));
            for (reason, c) in &s.dropped_by_reason {
                let _ = writeln!(text, "  {reason:<18} {}", count(*c));
            }
            let _ = writeln!(
                text,
                "edits       {}, {}, {}",
                counted(s.emails_replaced, "e-mail address"),
                counted(s.ips_replaced, "IP address"),
                counted(s.lines_removed, "line")
            );
            if s.numbers_replaced + s.secrets_replaced > 0 {
                let _ = writeln!(
                    text,
                    "            {}, {}",
                    counted(s.numbers_replaced, "phone, card or account number"),
                    counted(s.secrets_replaced, "key or token")
                );
            }
            for (set, c) in &s.decontaminated {
                let _ = writeln!(
                    text,
                    "evaluation  {set}: {} dropped, {} cut out of {}",
                    counted(c.dropped, "document"),
                    counted(c.places, "place"),
                    counted(c.cut, "document")
                );
            }
            for (name, score) in &s.scores {
                let _ = writeln!(text, "score       {name}: {}", score.in_words());
            }
            for remark in &s.remarks {
                let _ = writeln!(text, "remark      {remark}");
            }
            text.push_str(&scored::text(&scored));
            text.push_str(&mixture::text(&s.components, &taken));
            Ok(print(text.trim_end())?)
        }
        CorpusCommand::TrainClassifier(args) => scores::train_classifier_of(args, as_json, console),
        CorpusCommand::TrainLm(args) => scores::train_lm(args, as_json, console),
        CorpusCommand::TrainDsir(args) => scores::train_dsir(args, as_json, console),
        CorpusCommand::Score(args) => scores::score(args, as_json),
    }
}

/// Records of the run in `path` about its corpus; empty for the directory of a corpus alone.
fn run_of_card(path: &Path) -> Result<RunCard, Failure> {
    let dir = RunDir::new(path);
    let shards = dir.text(Path::new(SHARDS).join(bessemer_corpus::TOKENS_FILE)).ok();
    let command = match dir.has(bessemer_runlog::FILE) {
        false => None,
        true => bessemer_runlog::read(dir.handle()?)?.records.into_iter().find_map(|record| match record {
            Record::Run(run) => Some(run.command.join(" ")),
            _ => None,
        }),
    };
    Ok(RunCard {
        tokens: shards.and_then(|text| serde_json::from_str(&text).ok()),
        vocab_size: dir.load_tokenizer().ok().map(|tokenizer| tokenizer.vocab_size() as u64),
        command,
        recipe: dir.text(RECIPE).ok().map(|text| redact(&text).into_owned()),
    })
}

/// A run directory holds its corpus in a folder; a corpus directory is one.
fn corpus_of(path: &Path) -> Result<PathBuf, Failure> {
    let inside = path.join("corpus");
    let place = if inside.is_dir() { inside } else { path.to_path_buf() };
    if place.join(bessemer_corpus::SUMMARY_FILE).exists() {
        return Ok(place);
    }
    if let Some(near) = similar(path).filter(|_| !path.is_dir()) {
        return Err(Failure::new(format!(
            "there is no directory {}; did you mean {}?",
            path.display(),
            near.display()
        )));
    }
    Err(Failure::new(format!(
        "{} holds no corpus; build one first: bessemer corpus build RECIPE, or bessemer run RECIPE",
        path.display()
    )))
}
