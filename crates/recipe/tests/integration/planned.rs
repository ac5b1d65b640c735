//! Recipes whose layout a plan chooses.

use bessemer_corpus_config::CorpusConfig;
use bessemer_recipe::{LayoutPlan, Origin, RecipeUse, load_planned, load_recipe, parse_recipe};
use serde_json::json;
use std::fs;
use tempfile::TempDir;

const RECIPE: &str = "[corpus]\nsource = \"folder\"\npath = \"text\"\n[model]\narchitecture = \"llama\"\n\
                      [train]\nsteps = 5\nbatch_tokens = 2048\nseq_len = 128\n\
                      [parallel]\nlayout = \"auto\"\ndata = \"zero1\"\n";

fn plan() -> LayoutPlan {
    LayoutPlan {
        ranks: 4,
        machine: "4 \"fast\" ones".into(),
        settings: vec![
            ("parallel.tensor".into(), json!(2)),
            ("parallel.stages".into(), json!([])),
            ("train.micro_batch".into(), json!(2)),
            ("train.recompute".into(), json!("full")),
        ],
    }
}

fn by_plan(origin: Option<Origin>) -> bool {
    matches!(origin, Some(Origin::Plan { subject }) if subject == "4 ranks, 4 \"fast\" ones")
}

#[test]
fn a_plan_is_the_topmost_layer_and_its_keys_say_so() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("recipe.toml");
    fs::write(&path, RECIPE).unwrap();
    let sets = ["parallel.pipeline=1".to_owned()];
    let before = load_recipe(&path, &sets).unwrap();
    assert!(before.value.parallel.awaits_plan() && LayoutPlan::of(&before).is_none());
    assert!(before.is_free("parallel.tensor") && before.is_free("train.micro_batch"));
    assert!(!before.is_free("parallel.data") && !before.is_free("parallel.pipeline"));
    let loaded = load_planned(&path, &sets, None, &plan(), RecipeUse::Training, CorpusConfig::check).unwrap();
    assert!(!loaded.value.parallel.awaits_plan());
    assert_eq!((loaded.value.parallel.tensor.ranks(), loaded.value.train.micro_batch), (2, 2));
    for (key, _) in plan().settings {
        assert!(by_plan(loaded.origin(&key)) && loaded.is_free(&key), "{key}: {:?}", loaded.origin(&key));
    }
    assert!(matches!(loaded.origin("parallel.data"), Some(Origin::File { line: 12, .. })));
    assert_eq!(LayoutPlan::of(&loaded), Some(plan()));
    assert!(loaded.show_origins().contains("# plan for 4 ranks, 4 \"fast\" ones"));

    // The resolved recipe carries the plan: as a recipe it has the same origins, and what a layer above says is a constraint.
    let resolved = place.path().join("resolved.toml");
    fs::write(&resolved, loaded.to_toml()).unwrap();
    let again = load_recipe(&resolved, &[]).unwrap();
    assert_eq!((&again.value, LayoutPlan::of(&again)), (&loaded.value, Some(plan())));
    assert!(by_plan(again.origin("parallel.tensor")) && !again.is_free("parallel.data"));
    // A later plan takes the place of the earlier one, tables included.
    let layers = ("train.recompute_layers".to_owned(), json!({ "stage 0-1": "full" }));
    let with_layers = LayoutPlan { settings: vec![layers], ..plan() };
    fs::write(
        &resolved,
        load_planned(&path, &sets, None, &with_layers, RecipeUse::Training, CorpusConfig::check)
            .unwrap()
            .to_toml(),
    )
    .unwrap();
    let fewer = LayoutPlan {
        ranks: 2,
        settings: vec![("train.recompute_layers".into(), json!({ "stage 0": "full" }))],
        ..plan()
    };
    let replanned =
        load_planned(&resolved, &[], None, &fewer, RecipeUse::Training, CorpusConfig::check).unwrap();
    assert_eq!(LayoutPlan::of(&replanned), Some(fewer));
    assert!(!replanned.to_toml().contains("stage 0-1"), "{}", replanned.to_toml());
    let again =
        load_planned(&resolved, &[], None, &plan(), RecipeUse::Training, CorpusConfig::check).unwrap();
    assert_eq!((again.value, again.path), (loaded.value.clone(), Some(resolved.clone())));
    fs::write(&resolved, loaded.to_toml()).unwrap();
    let sets = ["parallel.tensor=4".to_owned()];
    let constrained = load_recipe(&resolved, &sets).unwrap();
    assert!(!constrained.is_free("parallel.tensor") && constrained.is_free("train.recompute"));
    let on_top = "base = \"resolved.toml\"\n[parallel]\ntensor = 1\n";
    fs::write(&path, on_top).unwrap();
    let derived = load_recipe(&path, &[]).unwrap();
    assert!(!derived.is_free("parallel.tensor") && derived.is_free("train.micro_batch"));
}

#[test]
fn constraints_of_a_plan_are_checked_once_it_is_made() {
    let sets = |sets: &[&str]| sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>();
    // Sequence parallelism for whatever number of tensor-parallel ranks the plan takes.
    parse_recipe("r.toml", RECIPE, &sets(&["parallel.sequence=true"])).unwrap();
    let manual = sets(&["parallel.sequence=true", "parallel.layout=manual"]);
    let error = parse_recipe("r.toml", RECIPE, &manual).unwrap_err().to_string();
    assert!(error.contains("parallel.sequence"), "{error}");
    let place = TempDir::new().unwrap();
    let path = place.path().join("recipe.toml");
    fs::write(&path, RECIPE).unwrap();
    let bad = LayoutPlan { settings: vec![("parallel.sequence".into(), json!(true))], ..plan() };
    let error = load_planned(&path, &[], None, &bad, RecipeUse::Training, CorpusConfig::check)
        .unwrap_err()
        .to_string();
    assert!(error.contains("parallel.sequence = true"), "{error}");
    let unknown = LayoutPlan { settings: vec![("parallel.rings".into(), json!(1))], ..plan() };
    let error = load_planned(&path, &[], None, &unknown, RecipeUse::Training, CorpusConfig::check)
        .unwrap_err()
        .to_string();
    assert!(error.contains("unknown key `rings`") && error.contains("4 ranks"), "{error}");
    for wrong in ["parallel.layout=fast", "parallel.planned.rank=1", "parallel.planned.keys=1"] {
        parse_recipe("r.toml", RECIPE, &sets(&[wrong])).unwrap_err();
    }
    // A record that names a key which is not there is no plan.
    let record = ["parallel.planned.ranks=4", "parallel.planned.keys=['parallel.rings']"];
    assert!(LayoutPlan::of(&parse_recipe("r.toml", RECIPE, &sets(&record)).unwrap()).is_none());
}
