//! `bessemer corpus review`: people review a sample of a corpus, and their verdicts change its rules.

use crate::cli::{ReviewApplyArgs, ReviewServeArgs};
use crate::commands::judge;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::recipes::load_recipe_for;
use crate::run_dir::{RECIPE, RunDir};
use bessemer_corpus::CorpusReader;
use bessemer_corpus::review::{
    Decision, DecisionSettings, Estimate, FilterQuality, RecipeEdit, ReviewOptions, ReviewSample,
};
use bessemer_judge::{Item, Question, Store, Study, SystemText};
use bessemer_recipe::{Recipe, RecipeUse};
use bessemer_units::counted;
use serde_json::json;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Choices of a reviewer: the first keeps a document, the others drop it and name the reason.
const CHOICES: [&str; 7] = [
    "keep",
    "drop: advertising or spam",
    "drop: menus, lists, boilerplate",
    "drop: repetition",
    "drop: damaged or no language",
    "drop: harmful or private",
    "drop: other",
];

/// The file of a review: beside the corpus, so that a build does not touch it.
fn file_of(folder: &Path, named: Option<&PathBuf>) -> PathBuf {
    named.cloned().unwrap_or_else(|| {
        let mut name = folder.file_name().unwrap_or_default().to_owned();
        name.push(".review.jsonl");
        folder.with_file_name(name)
    })
}

/// Opens a review and the sample that it is about.
fn open(path: &Path, reader: &CorpusReader) -> Result<(Store, ReviewSample), Failure> {
    let store = judge::open(path)?;
    let context = store.context().map_err(Failure::new)?;
    let sample = context.and_then(|context| serde_json::from_value::<ReviewSample>(context).ok());
    let sample = sample.filter(|sample| sample.documents.len() == store.study().items.len());
    let Some(sample) = sample else {
        return Err(Failure::new(format!(
            "{}: wanted a review of a corpus, found another study; name another file with --file",
            path.display()
        )));
    };
    let (wanted, found) = (&reader.summary().fingerprint, &sample.corpus);
    match wanted == found {
        true => Ok((store, sample)),
        false => Err(Failure::new(format!(
            "{}: wanted a review of the corpus in {} (fingerprint {wanted}), found one of another corpus ({found}): the corpus was \
             built again since; name another file with --file, or move this one away",
            path.display(),
            reader.folder().display()
        ))),
    }
}

pub(super) fn serve(args: &ReviewServeArgs, folder: &Path, console: &mut Console) -> Result<(), Failure> {
    let reader = CorpusReader::open(folder)?;
    let path = file_of(folder, args.file.as_ref());
    if !path.exists() {
        let options = ReviewOptions {
            documents: args.documents as usize,
            profiles: args.profile.clone(),
            seed: args.seed,
        };
        let sample = ReviewSample::draw(&reader, &options)?;
        create(&path, &sample, args)?;
        console.say(&format!(
            "wrote {}: {} of {}",
            path.display(),
            counted(sample.documents.len(), "document"),
            counted(sample.strata.len(), "stratum").replace("stratums", "strata")
        ));
    }
    let (store, _) = open(&path, &reader)?;
    judge::serve(store, &args.listen, &args.hosts.allow_hosts, console)
}

/// Writes the file of a review.
fn create(path: &Path, sample: &ReviewSample, args: &ReviewServeArgs) -> Result<(), Failure> {
    let items = sample.documents.iter().map(|document| Item {
        id: document.id.clone(),
        texts: vec![SystemText {
            system: sample.strata[document.stratum].name.clone(),
            text: document.text.clone(),
            log_probability: None,
            turns: Vec::new(),
        }],
        ..Item::default()
    });
    let study = Study {
        question: Question::Scale {
            text: "Should a model learn from this document? (Long ones are cut.)".into(),
            labels: CHOICES.map(str::to_owned).into(),
        },
        judgements: args.verdicts,
        seed: args.seed,
        items: items.collect(),
    };
    Store::create_with(path, study, Some(&serde_json::to_value(sample)?)).map(drop).map_err(Failure::new)
}

/// For each document whether reviewers would drop it: most of its verdicts, repetitions included. A tie keeps it.
fn junk(store: &Store) -> Result<Vec<Option<bool>>, Failure> {
    let mut counts = vec![[0usize; 2]; store.study().items.len()];
    for judgement in store.judgements().map_err(Failure::new)? {
        if let Some(count) = counts.get_mut(judgement.task.key.item) {
            count[usize::from(judgement.choice > 1.0)] += 1;
        }
    }
    Ok(counts.into_iter().map(|[keep, drop]| (keep + drop > 0).then_some(drop > keep)).collect())
}

/// The recipe of the corpus: its file and what it says; none for a corpus of which no recipe is known.
fn recipe(args: &ReviewApplyArgs) -> Result<Option<(PathBuf, Recipe)>, Failure> {
    let dir = RunDir::new(&args.path);
    let file = match &args.recipe {
        Some(file) => file.clone(),
        None if dir.has(RECIPE) => dir.recipe(),
        None => return Ok(None),
    };
    let recipe = load_recipe_for(&file, &[], RecipeUse::Corpus)?.value;
    Ok(Some((std::path::absolute(file)?, recipe)))
}

pub(super) fn apply(
    args: &ReviewApplyArgs,
    folder: &Path,
    as_json: bool,
    console: &mut Console,
) -> Result<(), Failure> {
    let reader = CorpusReader::open(folder)?;
    let path = file_of(folder, args.file.as_ref());
    if !path.exists() {
        return Err(Failure::new(format!(
            "{} does not exist: review documents first with bessemer corpus review serve {}",
            path.display(),
            args.path.display()
        )));
    }
    let (store, sample) = open(&path, &reader)?;
    let settings = DecisionSettings { least: args.least as usize, agreement: args.agreement };
    let decision = Decision::of(&sample, &junk(&store)?, settings);
    if decision.reviewed == 0 {
        return Err(Failure::new(format!("{} has no verdict yet", path.display())));
    }
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from("reviewed.toml"));
    let profile_path = |name: &str| {
        let stem = out.file_stem().unwrap_or_default().to_string_lossy();
        out.with_file_name(format!("{stem}-{name}.toml")).display().to_string()
    };
    let recipe = recipe(args)?;
    // Without a recipe, what the corpus itself tells of its configuration.
    let told = || serde_json::from_value(reader.summary().built_with.as_ref()?.config.clone()).ok();
    let config = recipe.as_ref().map(|(_, recipe)| recipe.corpus.clone()).or_else(told).unwrap_or_default();
    let (edits, files, notes) = decision.edits(&sample, &config, &profile_path)?;
    let files = files
        .iter()
        .map(|file| Ok((profile_path(&file.name), file.toml().map_err(Failure::new)?)))
        .collect::<Result<Vec<(String, String)>, Failure>>()?;
    if args.out.is_some() {
        let mut text = String::new();
        if let Some((base, recipe)) = &recipe {
            let name = format!("{}-reviewed", recipe.run.name);
            let _ =
                writeln!(text, "base = {}\nrun.name = {}", json!(base.display().to_string()), json!(name));
        }
        edits.iter().for_each(|edit| text += &(edit.line() + "\n"));
        for (path, text) in
            files.iter().map(|(path, text)| (Path::new(path), text)).chain([(out.as_path(), &text)])
        {
            judge::write_new(path, text.as_bytes())
                .map_err(|e| Failure::new(format!("--out {}: {e}", path.display())))?;
            console.say(&format!("wrote {}", path.display()));
        }
        if recipe.is_some() {
            // A base that has a base itself is refused here, not at the next build.
            load_recipe_for(&out, &[], RecipeUse::Corpus)?;
        }
    }
    if as_json {
        let mut value = serde_json::to_value(&decision)?;
        value["edits"] = serde_json::to_value(&edits)?;
        value["profiles"] = files.iter().map(|(path, text)| json!({ "path": path, "text": text })).collect();
        value["by_hand"] = json!(notes);
        return Ok(print(&value.to_string())?);
    }
    Ok(print(text(&decision, &edits, &files, &notes).trim_end())?)
}

/// The result in words.
fn text(decision: &Decision, edits: &[RecipeEdit], files: &[(String, String)], notes: &[String]) -> String {
    let mut text = format!(
        "{} with a verdict, {} of them junk\n",
        counted(decision.reviewed, "document"),
        decision.junk
    );
    for reason in &decision.reasons {
        let _ = writeln!(text, "dropped {}: {} of {} are junk", reason.reason, reason.junk, reason.reviewed);
    }
    for stratum in &decision.without_verdicts {
        let _ = writeln!(text, "no verdict: {stratum}; the figures below leave these documents out");
    }
    let _ = writeln!(text, "\n{:28}{:>22}{:>22}{:>22}", "", "before", "after", "after, held out");
    let share = |estimate: Option<Estimate>| match estimate {
        Some(Estimate { value, low, high }) => format!("{value:.3} ({low:.2}-{high:.2})"),
        None => "–".into(),
    };
    type Figure = (&'static str, fn(&FilterQuality) -> Option<Estimate>);
    let figures: [Figure; 4] = [
        ("precision of the filters", |quality| quality.precision),
        ("recall of the filters", |quality| quality.recall),
        ("junk among the kept", |quality| quality.junk_among_kept),
        ("kept", |quality| quality.kept),
    ];
    for (name, of) in figures {
        let columns = [&decision.before, &decision.after, &decision.held_out];
        let _ = write!(text, "{name:28}");
        columns.iter().for_each(|quality| {
            let _ = write!(text, "{:>22}", share(of(quality)));
        });
        text.push('\n');
    }
    text += if decision.changes.is_empty() { "\nno change has enough verdicts\n" } else { "\nchanges\n" };
    decision.changes.iter().for_each(|change| text += &format!("  {}\n", change.in_words()));
    if !edits.is_empty() {
        text += "\nrecipe\n";
        edits.iter().for_each(|edit| text += &format!("  {}\n", edit.line()));
    }
    for (path, file) in files {
        let _ = write!(text, "\n{path}\n");
        file.lines().for_each(|line| text += &format!("  {line}\n"));
    }
    notes.iter().for_each(|note| text += &format!("by hand: {note}\n"));
    text
}
