//! A run on a mixture: it resumes exactly after a stop, reports losses by component and refuses another mixture.

use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_recipe::{Recipe, parse_recipe};
use bessemer_runlog::{Change, Eval, Record, Training};
use bessemer_shards::{ShardSet, ShardSetWriter, SplitMeta};
use bessemer_tokenizer::{Tokenizer, TokenizerConfig, TokenizerKind, Trainer as TokenizerTrainer};
use bessemer_train::{Observer, Trainer, TrainerInput, run_mixture};
use bessemer_units::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sentences, and letters that are hard to guess; a third component is empty.
fn data(dir: &Path, split: &str) -> (Arc<Tokenizer>, Arc<ShardSet>) {
    let config = TokenizerConfig { kind: TokenizerKind::Char, ..TokenizerConfig::default() };
    let mut trainer = TokenizerTrainer::new(config).unwrap();
    trainer.feed("abcdefghijklmnopqrstuvwxyz .\n");
    let tokenizer = trainer.finish(|_| {}).unwrap();
    let meta = SplitMeta {
        split: split.into(),
        vocab_size: tokenizer.vocab_size() as u32,
        tokenizer: tokenizer.fingerprint().parse().unwrap(),
    };
    let mut writer = ShardSetWriter::create(dir, meta, 2000).unwrap();
    for (name, documents) in [("plain", 160_u128), ("letters", 20), ("none", 0)] {
        writer.begin_component(name).unwrap();
        for i in 0..documents {
            let text = match name {
                "plain" => "the cat sat on a mat. ".repeat(3),
                _ => (0..66).map(|k| char::from(b'a' + ((i * 31 + k * k * 7 + k / 5) % 26) as u8)).collect(),
            };
            let tokens = tokenizer.encode(text.as_bytes()).unwrap();
            writer.push_document(i.to_le_bytes(), text.len() as u64, &tokens).unwrap();
        }
    }
    writer.finish().unwrap();
    (Arc::new(tokenizer), Arc::new(ShardSet::open(dir, split).unwrap()))
}

fn recipe(sources: &str) -> Recipe {
    let text = "[model]\narchitecture = \"llama\"\nlayers = 1\nwidth = 16\nheads = 2\nkv_heads = 1\ncontext = 16\n\
                [train]\nbatch_tokens = 128\nseq_len = 16\nmicro_batch = 4\nsteps = 30\n\
                [tokenizer]\nkind = \"char\"\n[optim]\nlr = 1e-2\n\
                [eval]\nevery_steps = 15\n[eval.samples]\nat_end = false\n[eval.ngram]\nenabled = false\n\
                [save]\nevery_steps = 10\nkeep_last = 50\n";
    parse_recipe("recipe.toml", &format!("{text}{sources}"), &[]).unwrap().value
}

fn sources(weights: [f64; 3]) -> String {
    let one = |(name, weight): (&str, f64)| {
        format!(
            "[[corpus.sources]]\nname = '{name}'\nsource = 'folder'\npath = '{name}'\nweight = {weight}\n"
        )
    };
    ["plain", "letters", "none"].into_iter().zip(weights).map(one).collect()
}

#[derive(Default)]
struct Watch {
    losses: Vec<(u64, u64)>,
    evals: Vec<Eval>,
    training: Training,
    warnings: Vec<String>,
    changes: Vec<Change>,
    stop_after: Option<u64>,
    stop: Arc<AtomicBool>,
}

impl Observer for Watch {
    fn record(&mut self, record: &Record) {
        match record {
            Record::Step(step) => {
                self.stop.fetch_or(self.stop_after == Some(step.step), Ordering::Relaxed);
                self.losses.push((step.step, step.loss.to_bits()));
            }
            Record::Eval(eval) => self.evals.push(eval.clone()),
            Record::Training(training) => self.training = training.clone(),
            Record::Change(change) => self.changes.push(change.clone()),
            Record::Warning(warning) => self.warnings.push(warning.message.clone()),
            _ => {}
        }
    }
    fn message(&mut self, _: &str) {}
    fn progress(&mut self, _: &str, _: u64, _: u64) {}
}

fn input(dir: &Path, recipe: &Recipe) -> TrainerInput {
    let (tokenizer, train) = data(&dir.join("shards"), "train");
    let (_, validation) = data(&dir.join("shards"), "validation");
    TrainerInput {
        recipe: recipe.clone(),
        recipe_text: String::new(),
        tokenizer,
        train,
        validation: Some(validation),
        former: None,
        tasks: Default::default(),
        directory: bessemer_durable::ConfinedDir::create_named(dir).unwrap(),
        memory_available: Bytes(1 << 30),
        peak: None,
    }
}

/// Trains to the end, in sessions that stop after the given steps.
fn train(dir: &Path, recipe: &Recipe, stops: &[u64], threads: usize) -> Watch {
    let mut watch = Watch::default();
    for stop in stops.iter().map(|s| Some(*s)).chain([None]) {
        let backend = CpuBackend::new(CpuConfig { threads, ..CpuConfig::default() }).unwrap();
        let mut trainer = Trainer::new(input(dir, recipe), Box::new(backend)).unwrap();
        watch.stop = Arc::default();
        watch.stop_after = stop;
        let flag = watch.stop.clone();
        trainer.run(&mut watch, &flag).unwrap();
        trainer.final_evaluation(threads, &mut watch, &flag).unwrap();
    }
    watch
}

#[test]
fn a_run_on_a_mixture_goes_on_exactly_and_tells_losses_by_component() {
    let recipe = recipe(&sources([0.4, 0.6, 0.0]));
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let whole = train(one.path(), &recipe, &[], 1);
    let parts = train(two.path(), &recipe, &[7, 22], 2);
    assert_eq!(whole.losses.len(), 30);
    assert_eq!(whole.losses, parts.losses);

    let last = whole.evals.last().unwrap();
    let names: Vec<&str> = last.components.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["plain", "letters"], "the empty component has no loss");
    let (plain, letters) = (&last.components[0], &last.components[1]);
    assert!(plain.loss + 0.5 < letters.loss, "{} and {}", plain.loss, letters.loss);
    assert_eq!(plain.tokens_scored + letters.tokens_scored, last.tokens_scored);
    let sum = plain.loss * plain.tokens_scored as f64 + letters.loss * letters.tokens_scored as f64;
    assert!((sum / last.tokens_scored as f64 - last.loss).abs() < 1e-9);

    // 240 samples, 144 of them from 82 of letters: 1.8 passes.
    let share = |w: &Watch, i: usize| w.training.mixture[i].clone();
    assert!(
        (share(&whole, 1).weight - 0.6).abs() < 1e-5 && (share(&whole, 1).epochs - 144.0 / 82.0).abs() < 1e-9
    );
    assert_eq!(whole.warnings, Vec::<String>::new());
}

/// Epochs are capped over the whole run, before and after the mixture and the length change; a run that cannot be so is refused.
#[test]
fn a_changed_mixture_goes_on_behind_what_each_component_has_given() {
    let dir = tempfile::tempdir().unwrap();
    let mut before = recipe(&sources([0.4, 0.6, 0.0]));
    before.corpus.sources[1].epochs = Some(1.0);
    let first = session(dir.path(), &before, Some(13));
    let letters = |watch: &Watch| watch.training.mixture[1].clone();
    assert!((letters(&first).epochs - 1.0).abs() < 0.05, "{:?}", letters(&first));
    let mut after = recipe(&sources([0.9, 0.1, 0.0]));
    after.corpus.sources[1].epochs = Some(1.0);
    after.train.steps = 40;
    let changed = session(dir.path(), &after, Some(25));
    let change = changed.changes.first().unwrap();
    assert_eq!(change.step, 13);
    let told = change.effects.join("; ");
    for part in ["mixture", "letters", "continues after its last sample"] {
        assert!(told.contains(part), "{told}");
    }
    // 104 samples under the first mixture, 216 under the second, of which 82 are an epoch of letters.
    let given = letters(&first).weight * 104.0;
    let then = (0.1 * 216.0_f64).min(82.0 - given);
    assert!((letters(&changed).epochs * 82.0 - given - then).abs() < 2.0, "{:?}", letters(&changed));
    // No further change: no record, and the same numbers as without the stop.
    let rest = session(dir.path(), &after, None);
    assert!(rest.changes.is_empty() && rest.losses.len() == 15, "{:?}", rest.changes);
    assert_eq!(letters(&rest), letters(&changed));
    after.corpus.sources[0].epochs = Some(0.2);
    after.train.steps = 60;
    let backend = CpuBackend::new(CpuConfig::default()).unwrap();
    let Err(error) = Trainer::new(input(dir.path(), &after), Box::new(backend)) else {
        panic!("more data than there are")
    };
    assert!(error.to_string().contains("allow more epochs or take fewer samples"), "{error}");
}

fn session(dir: &Path, recipe: &Recipe, stop_after: Option<u64>) -> Watch {
    let backend = CpuBackend::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    let mut trainer = Trainer::new(input(dir, recipe), Box::new(backend)).unwrap();
    let mut watch = Watch { stop_after, ..Watch::default() };
    let flag = watch.stop.clone();
    trainer.run(&mut watch, &flag).unwrap();
    watch
}

#[test]
fn repetition_beyond_four_passes_is_told_and_caps_hold() {
    let dir = tempfile::tempdir().unwrap();
    let mut often = recipe(&sources([0.05, 0.95, 0.0]));
    often.train.steps = 60;
    let (_, set) = data(dir.path(), "train");
    let taken = run_mixture(&often, &set).unwrap();
    assert_eq!(taken.iter().map(|t| t.samples).sum::<u64>(), 480);
    let warnings = bessemer_train::repeated_too_often(&taken);
    assert!(warnings.len() == 1 && warnings[0].contains("letters"), "{warnings:?}");
    often.corpus.sources[1].epochs = Some(2.0);
    let taken = run_mixture(&often, &set).unwrap();
    assert_eq!((taken[0].samples, taken[1].samples), (480 - 164, 164));
    assert!(bessemer_train::repeated_too_often(&taken).is_empty());
    often.corpus.sources[2].weight = Some(0.5);
    assert!(run_mixture(&often, &set).unwrap_err().to_string().contains("none"));
    // A recipe of one source has no mixture, whatever the shards contain.
    assert!(run_mixture(&recipe("[corpus]\nsource = 'embedded'\n"), &set).unwrap().is_empty());
}

#[test]
fn one_source_that_is_passed_over_more_than_four_times_is_told() {
    let mut recipe = recipe("[corpus]\nsource = 'embedded'\n");
    recipe.eval.every_steps = 0;
    recipe.save.every_steps = 0;
    let dir = tempfile::tempdir().unwrap();
    let (_, set) = data(dir.path(), "train");
    let samples_per_epoch = set.token_count() / recipe.train.seq_len;
    let samples_per_step = recipe.train.batch_tokens / recipe.train.seq_len;
    let warnings = |steps: u64| {
        let mut recipe = recipe.clone();
        recipe.train.steps = steps;
        train(tempfile::tempdir().unwrap().path(), &recipe, &[], 1).warnings
    };
    let four = 4 * samples_per_epoch / samples_per_step;
    assert_eq!(warnings(four), Vec::<String>::new());
    let warned = warnings(four + four / 10);
    assert!(
        warned.len() == 1 && warned[0].contains("4.4 passes") && warned[0].contains("train.steps"),
        "{warned:?}"
    );
}
