//! The recipes that come with the program, and the composition that they use.

use bessemer_optim::OptimConfig;
use bessemer_recipe::{Loaded, Origin, Recipe, RecipeUse, load_recipe_for, parse_recipe};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes")
}

/// Recipes for a text that the user brings need its path.
fn shipped(name: &str, sets: &[&str]) -> Loaded<Recipe> {
    let mut sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
    if name != "quickstart.toml" {
        sets.push("corpus.path=input.txt".into());
    }
    let path = folder().join(name);
    load_recipe_for(&path, &sets, None, RecipeUse::Training, bessemer_corpus::check)
        .unwrap_or_else(|e| panic!("{name}:\n{e}"))
}

#[test]
fn every_shipped_recipe_loads_resolves_and_reads_back() {
    let mut seen = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".toml") {
            continue;
        }
        seen += 1;
        let loaded = shipped(&name, &[]);
        let recipe = &loaded.value;
        assert_eq!(format!("{}.toml", recipe.run.name), name, "a run is named after its recipe");
        let plan = recipe.train.resolve(1, Some(10_000_000)).unwrap();
        assert_eq!(plan.micro_batch * plan.accumulation * plan.seq_len, recipe.train.batch_tokens);
        recipe.model.resolve(Some(recipe.tokenizer.vocab_size as usize)).unwrap();
        let written = loaded.to_toml();
        let again = parse_recipe("recipe.toml", &written, &[]).unwrap_or_else(|e| panic!("{e}\n{written}"));
        assert_eq!(again.value, *recipe);
        assert_eq!(again.to_toml(), written);
    }
    assert!(seen >= 8, "{seen}");
}

/// A run is cut short by one setting, whatever the recipe states: its steps, tokens or passes, and a warm-up of its own.
#[test]
fn every_shipped_recipe_can_be_cut_to_five_steps() {
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let recipe = shipped(&name, &["train.steps=5"]).value;
        assert_eq!(recipe.train.resolve(1, Some(10_000_000)).unwrap().steps, 5, "{name}");
        assert!(recipe.optim.warmup(5) <= 5, "{name}");
    }
    let quickstart = shipped("quickstart.toml", &[]).value;
    assert_eq!((quickstart.train.steps, quickstart.optim.warmup(300)), (300, 15));
    assert_eq!(quickstart.optim.warmup(40), 2);
}

#[test]
fn one_duration_replaces_that_of_the_layer_below_and_two_of_one_layer_are_refused() {
    let of = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
        parse_recipe("r.toml", "[train]\ntokens = 81_920\n", &sets)
    };
    let durations = |sets: &[&str]| {
        let train = of(sets).unwrap().value.train;
        (train.steps, train.tokens, train.epochs)
    };
    assert_eq!(durations(&[]), (0, 81_920, 0.0));
    assert_eq!(durations(&["train.steps=5"]), (5, 0, 0.0));
    assert_eq!(durations(&["train.epochs=1.5"]), (0, 0, 1.5));
    assert_eq!(durations(&["train.steps=5", "train.tokens=9"]), (0, 9, 0.0));
    // A zero takes back a key of its own name and nothing else.
    assert_eq!(durations(&["train.steps=0"]), (0, 81_920, 0.0));
    let e = of(&["train={steps=5,epochs=1}"]).unwrap_err().to_string();
    assert!(e.contains("found steps = 5 and epochs = 1"), "{e}");
    let e = of(&["train.tokens=0"]).unwrap_err().to_string();
    assert!(e.contains("found none"), "{e}");
}

#[test]
fn the_character_recipes_are_the_settings_of_nanogpt() {
    let small = shipped("tinyshakespeare-char.toml", &[]).value;
    assert_eq!(small.train.resolve(1, None).unwrap().sequences_per_step, 12);
    assert_eq!((small.optim.lr * small.optim.min_lr_ratio, small.optim.beta2), (1e-4, 0.99));
    let large = shipped("tinyshakespeare-char-large.toml", &[]);
    assert_eq!(large.value.train.resolve(1, None).unwrap().sequences_per_step, 64);
    assert_eq!((large.value.model.width, large.value.model.dropout), (Some(384), 0.2));
    // 100 steps in both; all else is inherited from the smaller one.
    let warmup = |recipe: &Recipe| recipe.optim.warmup(recipe.train.steps);
    assert_eq!((warmup(&small), warmup(&large.value)), (100, 100));
    assert_eq!(large.value.optim, OptimConfig { warmup_fraction: 0.02, ..small.optim });
    assert!(
        matches!(large.origin("optim.lr"), Some(Origin::Base { file, .. }) if file.ends_with("tinyshakespeare-char.toml"))
    );
    assert!(matches!(large.origin("model.width"), Some(Origin::File { .. })));
    assert_eq!(large.origin("optim.eps"), Some(Origin::Default));
}

/// The error of a recipe given as text.
fn refused(text: &str) -> String {
    parse_recipe("my.toml", text, &[]).expect_err(text).to_string()
}

#[test]
fn mistakes_within_and_between_sections_point_at_their_lines() {
    for (text, wanted) in [
        (
            "[train]\nsteps = 5\nbatch_tokens = 1000",
            "my.toml:3:16: train.batch_tokens = 1000 is 3.91 sequences",
        ),
        ("[train]\nseq_len = 256", "my.toml:1:"),
        ("[train]\nsteps = 5\ntokens = 5", "found steps = 5 and tokens = 5"),
        (
            "[train]\nsteps = 5\n[model]\nheads = 5\nwidth = 64",
            "my.toml:4:9: model.heads: 5 heads do not divide width 64",
        ),
        ("[train]\nsteps = 5\n[optim]\nlr = -1", "my.toml:4:6: optim.lr: wanted 0 to 100"),
        (
            "[train]\nsteps = 5\nseq_len = 512\n[model]\ncontext = 256",
            "my.toml:3:11: train.seq_len = 512 is longer than the model's context of 256",
        ),
        (
            "[train]\nsteps = 5\n[model]\nvocab_size = 300",
            "my.toml:4:14: model.vocab_size = 300 is smaller than",
        ),
        ("[train]\nsteps = 5\n[save]\nkeep_last = 0", "my.toml:4:13: save.keep_last: wanted 1"),
        ("[train]\nsteps = 5\n[corpus]\nsource = 'file'", "corpus.path is missing"),
        ("[train]\nsteps = 5\n[corpus.clean]\nmax_bytes = 0", "my.toml:4:13: corpus.clean.max_bytes = 0"),
        ("[train]\nsteps = 5\n[tokenizer]\nvocab_size = 3", "my.toml:4:14: [tokenizer] "),
        ("[train]\nsteps = 5\n[eval.ngram]\norder = 9", "my.toml:4:9: [eval] ngram.order = 9: wanted 1 to 7"),
        (
            "[train]\nsteps = 5\n[eval.samples.generate.sampling]\ntop_p = 0",
            "my.toml:4:9: [eval] samples.generate.sampling.top_p = 0",
        ),
        ("[train]\nsteps = 5\n[optim]\nscheduel = 'wsd'", "did you mean `schedule`?"),
        ("[train]\nsteps = 5\n[optim]\nschedule = 'wds'", "did you mean \"wsd\"?"),
        ("[train]\nsteps = 5\n[run]\nname = '../x'", "my.toml:4:8: run.name"),
        ("[train]\nsteps = 5\nlearning_rate = 1", "unknown key `learning_rate` in [train]"),
    ] {
        let found = refused(text);
        assert!(found.contains(wanted), "{text}\nwanted {wanted}\nfound  {found}");
    }
}

#[test]
fn problems_of_several_sections_come_together() {
    let found = refused(
        "[run]\nname = ''\n[train]\nsteps = 5\nbatch_tokens = 7\n[optim]\nlr = -1\n[save]\nkeep_last = 0\n",
    );
    for wanted in ["run.name", "train.batch_tokens", "optim.lr", "save.keep_last"] {
        assert!(found.contains(wanted), "{wanted} missing in {found}");
    }
}

#[test]
fn every_key_of_a_resolved_recipe_is_documented() {
    let text = shipped("quickstart.toml", &[]).to_toml();
    let lines: Vec<&str> = text.lines().collect();
    for (i, line) in lines.iter().enumerate() {
        let is_key = !line.starts_with('#') && !line.is_empty();
        let documented = i > 0 && lines[i - 1].starts_with('#');
        assert!(!is_key || documented, "no documentation above line {}: {line}", i + 1);
    }
}

#[test]
fn a_key_under_its_old_name_is_read_with_a_remark() {
    let text = "[train]\nsteps = 5\n[parallel]\nstage = \"zero1\"\n";
    let loaded = parse_recipe("my.toml", text, &[]).unwrap();
    assert!(loaded.to_toml().contains("data = \"zero1\"") && !loaded.to_toml().contains("stage = "));
    assert_eq!(loaded.renamed.len(), 1);
    assert!(
        loaded.renamed[0].starts_with("my.toml:4:1: `parallel.stage` is now called `parallel.data`"),
        "{:?}",
        loaded.renamed
    );
    // Layers may differ in the name; a later one wins as ever.
    let sets = ["parallel.data=zero2".to_owned(), "parallel.stage=zero3".to_owned()];
    let loaded = parse_recipe("my.toml", text, &sets).unwrap();
    assert!(loaded.to_toml().contains("data = \"zero3\""));
    assert_eq!(loaded.renamed.len(), 2);
    let both = "[train]\nsteps = 5\n[parallel]\nstage = \"zero1\"\ndata = \"zero2\"\n";
    assert!(
        refused(both).contains("both `parallel.data` and its old name `parallel.stage`"),
        "{}",
        refused(both)
    );
    assert!(refused("[train]\nsteps = 5\n[parallel]\nstage = \"zero9\"\n").contains("zero9"));
}
