//! `parallel.layout = "auto"`: training plans its layout and obeys it.

use crate::workplace::{LLAMA, Workplace};
use serde_json::Value;
use std::fs;

const RECIPE: i32 = 78;
const USAGE: i32 = 2;
const AUTO: [&str; 2] = ["--set", "parallel.layout=auto"];

/// Loss of the last step.
fn loss(place: &Workplace) -> f64 {
    place.records("step").last().unwrap()["loss"].as_f64().unwrap()
}

fn run(place: &Workplace, ranks: &str, further: &[&str]) -> String {
    let words = [&["run", "recipe.toml", "--ranks", ranks], &AUTO[..], further].concat();
    let done = place.bessemer(&words);
    assert_eq!(done.code, Some(0), "{}", done.err);
    done.err
}

/// A key of the resolved recipe of the run directory, with its origin.
fn setting(place: &Workplace, key: &str) -> (String, String) {
    let all = place.bessemer(&["config", "show", "runs/t/recipe.toml", "--origin", "--json"]).json();
    let one = all.as_array().unwrap().iter().find(|setting| setting["key"] == key).unwrap().clone();
    (one["value"].as_str().unwrap().into(), one["origin"].as_str().unwrap().into())
}

fn names(items: &Value) -> Vec<String> {
    items.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
}

fn sum(items: &Value) -> f64 {
    items.as_array().unwrap().iter().map(|item| item["value"].as_f64().unwrap()).sum()
}

#[test]
fn training_obeys_its_plan_and_has_the_loss_of_one_rank() {
    let alone = Workplace::new(LLAMA);
    alone.train(&["train.steps=25"]);
    let wanted = loss(&alone);
    for ranks in ["1", "2", "4"] {
        let place = Workplace::new(LLAMA);
        let said = run(&place, ranks, &["--set", "train.steps=25"]);
        let found = loss(&place);
        assert!((found / wanted - 1.0).abs() < 1e-4, "{found} {wanted} on {ranks} ranks");
        assert!(said.contains(&format!("plan for {ranks} x this machine (")), "{said}");
        assert!(said.contains("the plan against 18 steps (by item: 5)"), "{said}");

        // What the plan chose is in the resolved recipe, and says so.
        for key in ["parallel.tensor", "parallel.data", "train.micro_batch", "train.recompute"] {
            let origin = setting(&place, key).1;
            let wanted = if ranks == "1" { "1 rank, this machine" } else { &format!("{ranks} ranks, this") };
            assert!(origin.starts_with("plan for ") && origin.contains(wanted), "{key}: {origin}");
        }
        assert!(setting(&place, "train.seq_len").1.starts_with("runs/t/recipe.toml:"));

        // The first rank sends what was predicted, byte for byte; a rank holds it but for what the plan counts more carefully.
        let plan = place.records("plan").remove(0);
        let measured = place.records("measured").remove(0);
        assert_eq!((plan["ranks"].to_string(), measured["step"].as_u64()), (ranks.into(), Some(20)));
        let (predicted, costs) = (&plan["predicted"], &measured["costs"]);
        let axes = |items: &Value| -> Vec<(String, f64)> {
            let all = names(items).into_iter().zip(items.as_array().unwrap());
            let mut all: Vec<_> = all.map(|(name, item)| (name, item["value"].as_f64().unwrap())).collect();
            all.sort_by(|a, b| a.0.cmp(&b.0));
            all
        };
        assert_eq!(axes(&predicted["traffic"]), axes(&costs["traffic"]));
        assert_eq!(ranks == "1", axes(&costs["traffic"]).is_empty());
        for class in ["weights", "gradients", "optimizer", "activations"] {
            let bytes =
                |items: &Value| axes(items).into_iter().find(|item| item.0 == class).map(|item| item.1);
            assert_eq!(bytes(&predicted["memory"]), bytes(&costs["memory"]), "{class} on {ranks} ranks");
        }
        let time = sum(&costs["time"]);
        assert!(costs["seconds"].as_f64().unwrap() > 0.0 && time > 0.0);
        assert!(names(&costs["time"]).contains(&"compute".to_owned()));
        let page = fs::read_to_string(place.path("runs/t/report.html")).unwrap();
        assert!(page.contains("Plan of the layout") && page.contains("The plan and what was measured"));
    }
}

#[test]
fn a_run_keeps_its_plan_and_other_ranks_plan_anew() {
    let place = Workplace::new(LLAMA);
    // The learning rate is to depend on the step alone.
    let recipe = fs::read_to_string(place.path("recipe.toml")).unwrap();
    let constant = recipe.replace("warmup_steps = 2", "warmup_steps = 2\nschedule = \"constant\"");
    fs::write(place.path("recipe.toml"), constant).unwrap();
    run(&place, "2", &["--set", "train.steps=3"]);
    let planned = fs::read_to_string(place.path("runs/t/recipe.toml")).unwrap();
    let said = run(&place, "2", &["--set", "train.steps=4"]);
    assert!(said.contains("using the layout of the plan in the run directory"), "{said}");
    assert_eq!(place.records("plan").len(), 1);
    let kept = fs::read_to_string(place.path("runs/t/recipe.toml")).unwrap();
    let differing: Vec<_> = planned.lines().zip(kept.lines()).filter(|(before, now)| before != now).collect();
    assert_eq!(differing, [("steps = 3", "steps = 4")]);

    run(&place, "4", &["--set", "train.steps=6"]);
    assert_eq!(place.records("plan").len(), 2);
    assert_eq!(setting(&place, "parallel.planned.ranks").0, "4");
    // The resolved recipe is a recipe: what the plan chose is planned again for other ranks.
    let done = place.bessemer(&["run", "runs/t/recipe.toml", "--ranks", "1", "--set", "train.steps=7"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert_eq!((place.records("plan").len(), place.records("step").len()), (3, 7));
    // As is a key that the user gives from now on.
    run(&place, "1", &["--set", "train.steps=8", "--set", "train.micro_batch=1"]);
    assert_eq!(place.records("plan").len(), 4);
    assert_eq!(setting(&place, "train.micro_batch").0, "1");
    let alone = Workplace::new(LLAMA);
    alone.train(&["train.steps=8", "optim.schedule=constant"]);
    let (found, wanted) = (loss(&place), loss(&alone));
    assert!((found / wanted - 1.0).abs() < 1e-3, "{found} {wanted}");
}

#[test]
fn keys_of_the_user_are_constraints() {
    for (key, value) in [
        ("parallel.tensor", "2"),
        ("parallel.pipeline", "2"),
        ("parallel.data", "\"zero3\""),
        ("train.micro_batch", "2"),
        ("train.recompute", "\"selective\""),
        ("parallel.schedule", "\"gpipe\""),
    ] {
        let place = Workplace::new(LLAMA);
        let set = format!("{key}={}", value.trim_matches('"'));
        let further = ["--set", &set, "--set", "train.steps=2"];
        let also = if key == "parallel.schedule" { &["--set", "parallel.pipeline=2"][..] } else { &[] };
        run(&place, "2", &[&further, also].concat());
        let (found, origin) = setting(&place, key);
        assert_eq!(found, value, "{key}");
        assert!(origin.starts_with("runs/t/recipe.toml:"), "{key}: {origin}");
        assert!(setting(&place, "parallel.sequence").1.starts_with("plan for 2 ranks"));
    }
}

#[test]
fn constraints_that_cannot_be_met_say_which_one_binds() {
    let place = Workplace::new(LLAMA);
    let auto = |ranks: &str, sets: &[&str]| {
        let mut words = vec!["run", "recipe.toml", "--ranks", ranks];
        words.extend(AUTO);
        words.extend(sets.iter().flat_map(|set| ["--set", *set]));
        place.bessemer(&words)
    };
    auto("2", &["parallel.tensor=3"])
        .failed(RECIPE, &["parallel.tensor=3", "without parallel.tensor there are", "which have 1, 2"]);
    let whole = ["parallel.tensor=1", "parallel.pipeline=1", "parallel.context=1", "train.micro_batch=8"];
    auto("2", &whole).failed(RECIPE, &["without train.micro_batch there are", "which have 1, 2, 4"]);
    auto("2", &["parallel.tensor=3", "parallel.pipeline=3"])
        .failed(RECIPE, &["some of these keys exclude each other"]);
    auto("3", &[]).failed(USAGE, &["no layout of 3 devices divides the 8 sequences"]);
    auto("1", &["model.width=65536", "model.heads=64", "model.kv_heads=64", "train.micro_batch=8"])
        .failed(RECIPE, &["the smallest (micro-batch 8", "holds at least", "too much"]);
    auto("2", &["parallel.machine=abacus"]).failed(USAGE, &["no machine has the name \"abacus\""]);
    auto("2", &["parallel.machine=none.toml"]).failed(1, &["none.toml"]);
    assert!(!place.path("runs/t").exists(), "a run that cannot be planned leaves no directory");
}

#[test]
fn memory_that_binds_makes_micro_batches_smaller_or_layers_recomputed() {
    let place = Workplace::new(LLAMA);
    let machine = |memory: f64| {
        let text = format!(
            "name = \"small\"\nmatrix_flops = 1e11\nmemory_bandwidth = 1e10\nmemory = {memory:.1}\nmultiprocessors = 1\nnode = 4\n\
             network_bandwidth = 1e9\nsources = [\"made up\"]\n[all_reduce]\nbus_bandwidth = 1e9\nbase_microseconds = 5\n\
             hop_microseconds = 1\n"
        );
        fs::write(place.path("small.toml"), text).unwrap();
    };
    let plan = |words: &[&str]| {
        let all =
            [&["plan", "recipe.toml", "--devices", "1", "--machine", "small.toml", "--json"], words].concat();
        place.bessemer(&all)
    };
    machine(1e9);
    let large = plan(&[]).json()["layouts"][0].clone();
    let held = large["memory"].as_f64().unwrap();
    machine(0.9 * held);
    let found = plan(&[]).json();
    let small = &found["layouts"][0];
    assert!(small["memory"].as_f64().unwrap() <= 0.9 * held);
    let count = |layout: &Value| layout["layout"]["micro_batch"].as_u64().unwrap();
    let again = small["layout"]["recompute"] != large["layout"]["recompute"];
    assert!(count(small) < count(&large) || again, "{small}");
    // The faster layout is among the others, with the class that does not fit.
    let reason = found["others"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("over the limit (") && reason.contains("activations"), "{reason}");
    machine(7e5);
    plan(&[]).failed(RECIPE, &["holds at least", "too much", "devices may do ("]);
    // With a name that the user gives the run obeys the same machine.
    machine(0.9 * held);
    run(&place, "1", &["--set", "parallel.machine=small.toml", "--set", "train.steps=2"]);
    assert_eq!(setting(&place, "train.micro_batch").1, "plan for 1 rank, small");
}

#[test]
fn a_plan_says_why_and_draws_it() {
    let place = Workplace::new(LLAMA);
    let words = ["plan", "recipe.toml", "--devices", "16", "--svg", "plan.svg"];
    let text = place.bessemer(&words).text();
    for part in [
        "communication of the first, of one rank in a step",
        "to finish",
        "days without failures",
        "others, and what rules them out",
        "% slower: ",
        "keys of the first: --set",
    ] {
        assert!(text.contains(part), "wanted {part:?} in:\n{text}");
    }
    let picture = fs::read_to_string(place.path("plan.svg")).unwrap();
    assert!(picture.contains("time of a step") && picture.contains("memory of a rank"), "{picture}");
    let constrained = [&words[..4], &AUTO[..], &["--set", "parallel.tensor=2", "--json"]].concat();
    let value = place.bessemer(&constrained).json();
    assert_eq!(value["constraints"][0], "parallel.tensor=2");
    let layouts = value["layouts"].as_array().unwrap();
    assert!(layouts.iter().all(|layout| layout["layout"]["tensor"] == 2));
    assert!(layouts.iter().all(|layout| {
        layout["keys"]
            .as_array()
            .unwrap()
            .iter()
            .all(|key| !key.as_str().unwrap().starts_with("parallel.tensor"))
    }));
}

#[test]
fn config_shows_the_plan_of_so_many_ranks() {
    let place = Workplace::new(LLAMA);
    let show = |words: &[&str]| {
        place.bessemer(&[&["config", "show", "recipe.toml", "--origin"], &AUTO[..], words].concat()).text()
    };
    let line = |text: &str, key: &str| text.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(line(&show(&[]), "parallel.tensor").ends_with("# default"));
    let planned = show(&["--ranks", "2"]);
    assert!(line(&planned, "parallel.tensor").contains("# plan for 2 ranks, this machine ("), "{planned}");
    let given = show(&["--ranks", "2", "--set", "parallel.tensor=2"]);
    assert!(line(&given, "parallel.tensor").ends_with("# --set parallel.tensor=2"), "{given}");
}
