//! `bessemer program`: what a rank runs and how long a step takes, as text and as JSON; bad arguments.

use crate::workplace::{Finished, finished};
use std::process::{Command, Stdio};

fn show(words: &[&str]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bessemer"));
    let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/../../recipes/quickstart.toml");
    command.args(["program", "show", recipe]).args(words).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    finished(command)
}

#[test]
fn a_rank_s_program_is_printed_with_its_collectives() {
    let of_two =
        ["--ranks", "2", "--set", "parallel.tensor=2", "--set", "parallel.overlap=false", "--unit", "layer"];
    let shown = show(&[&of_two[..], &["--rank", "1", "--json"]].concat()).json();
    let lists = shown.as_array().unwrap();
    let phases: Vec<&str> = lists.iter().map(|l| l["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["forward", "score", "backward"]);
    // Two all-reduces of n x d f32 values over two ranks in each direction: 2 n d (t-1)/t elements each.
    let forward = lists[0]["bytes_sent"].as_u64().unwrap();
    assert_eq!(lists[2]["bytes_sent"].as_u64().unwrap(), forward);
    let text = lists[0]["text"].as_str().unwrap();
    assert!(text.starts_with("program layers.0.forward  rank tensor=1 of 2"), "{text}");
    assert_eq!(text.matches("all_reduce").count(), 2, "{text}");
    // What the model's code has recorded talks to nobody.
    let recorded = show(&[&of_two[..], &["--after", "record", "--json"]].concat()).json();
    assert!(recorded.as_array().unwrap().iter().all(|l| l["bytes_sent"] == 0));
}

/// Layers of different layouts are printed apart; what is annotated is replicated, and sums nothing.
#[test]
fn annotations_show_in_the_programs_of_the_layers_that_they_name() {
    let words = [
        "--ranks",
        "2",
        "--set",
        "parallel.tensor=2",
        "--set",
        "parallel.overlap=false",
        "--unit",
        "layer",
        "--json",
    ];
    let annotate = ["--set", "parallel.annotate.\"layers.1.mlp.down.weight\"=replicate"];
    let shown = show(&[&words[..], &annotate].concat()).json();
    let forward = |layer: &str| {
        let lists = shown.as_array().unwrap().iter();
        let list = lists.clone().find(|l| l["unit"] == layer && l["phase"] == "forward");
        list.unwrap_or_else(|| panic!("{layer} is printed"))["text"].as_str().unwrap().to_owned()
    };
    let (plain, whole) = (forward("Layer(0)"), forward("Layer(1)"));
    assert_eq!((plain.matches("all_reduce").count(), whole.matches("all_reduce").count()), (2, 1));
    let layout = |text: &str, name: &str| {
        let (_, rest) = text.split_once(name).unwrap();
        rest.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(layout(&plain, "mlp.down.weight f32"), "S1", "{plain}");
    assert_eq!(layout(&whole, "mlp.down.weight f32"), "R", "{whole}");
    let refused = show(
        &[&words[..], &["--set", "parallel.annotate.\"layers.0.mlp.down.weight\"=\"shard(0)\""]].concat(),
    );
    assert!(refused.err.contains("layers.0.mlp.down.weight cannot be sharded so"), "{}", refused.err);
}

/// Two ranks of a mixture: how many experts each has, and what decides the parts of its exchanges.
#[test]
fn a_layer_of_experts_is_printed_with_its_exchanges() {
    let mixture =
        ["--set", "model.architecture=mixtral", "--set", "model.experts.width=256", "--unit", "layer"];
    let spread = ["--ranks", "2", "--set", "parallel.experts=2"];
    for (overlap, exchanges, products) in [("false", 2, "8 groups of"), ("true", 4, "4 groups of")] {
        let overlap = format!("parallel.overlap={overlap}");
        let text = show(&[&mixture[..], &spread, &["--set", &overlap]].concat()).text();
        let forward = text.split("\n\n").next().unwrap();
        let all = forward.matches(" over expert by mlp.experts.offsets.all").count();
        assert_eq!(all, exchanges, "{overlap}: {forward}");
        let sizes = forward.matches("B if loads are equal").count();
        // Rows of a rank for its own experts send nothing.
        assert_eq!(sizes, 2, "{overlap}: {forward}");
        let products = forward.matches(&format!("  4 experts, {products} together at most ")).count();
        assert_eq!(products, exchanges, "{overlap}: {forward}");
    }
    let alone = show(&mixture).text();
    assert!(alone.contains("  8 experts, 8 groups of ") && !alone.contains("all_to_all"), "{alone}");
}

#[test]
fn a_rank_that_is_not_there_is_refused() {
    let refused = show(&["--ranks", "2", "--rank", "2"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("--rank 2: wanted one below --ranks 2"), "{}", refused.err);
}

/// A step of a small mixture on two ranks of an A100.
fn simulate(words: &[&str]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bessemer"));
    let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/../../recipes/quickstart.toml");
    let mixture = ["--ranks", "2", "--set", "model.architecture=mixtral", "--set", "model.experts.width=256"];
    command.args(["program", "simulate", recipe]).args(mixture).args(words).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    finished(command)
}

#[test]
fn a_step_is_simulated_by_the_loads_of_its_experts() {
    let dir = tempfile::tempdir().unwrap();
    let spread = ["--set", "parallel.experts=2"];
    // All choices of the first steps at the first two experts, then as many for each.
    let model = bessemer_recipe::load::<bessemer_recipe::Recipe>(
        std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../recipes/quickstart.toml")),
        &["model.architecture=mixtral".into()],
    );
    let model = model.unwrap().value.model.resolve(Some(4096)).unwrap();
    let (layers, experts) = (model.layers, model.experts.unwrap().count);
    let mut log = bessemer_runlog::LoadLog::open(dir.path(), &vec![experts as u32; layers]).unwrap();
    for step in 1..=4u64 {
        let skewed: Vec<u32> = (0..experts).map(|expert| if expert < 2 { 1000 } else { 0 }).collect();
        let counts = if step <= 2 { skewed } else { vec![1000; experts] };
        log.append(step, &counts.repeat(layers)).unwrap();
    }
    let run = dir.path().to_str().unwrap();
    let routing = format!("balanced,zipf=0,zipf=1.2,{run}:3-4,{run}:1-2");
    let found =
        simulate(&[&spread[..], &["--routing", &routing, "--shadows", "0,2", "--json"]].concat()).json();
    let steps = found["steps"].as_array().unwrap();
    let seconds = |at: usize| steps[2 * at]["seconds"].as_f64().unwrap();
    assert_eq!((steps.len(), steps[3]["most_shadows"].as_u64()), (10, Some(2)));
    assert_eq!((seconds(0), seconds(1)), (seconds(1), seconds(3)));
    assert!(seconds(1) < seconds(2) && seconds(2) < seconds(4), "{steps:?}");
    assert!(steps[0]["shadows"].as_array().unwrap().is_empty());
    assert_eq!(steps[9]["shadows"].as_array().unwrap().len(), layers);
    let text = simulate(&[&spread[..], &["--routing", "zipf=0.6"]].concat());
    let text = text.text();
    assert!(text.starts_with("routing ") && text.contains("\nzipf=0.6 "), "{text}");

    // Another model, steps that are not there, no run, no experts over ranks.
    let other = ["--set", "model.layers=1", "--routing", run];
    for (words, wanted) in [
        (
            &[&spread[..], &other].concat()[..],
            "loads of another model: wanted experts by layer [8], found [8,",
        ),
        (
            &[&spread[..], &["--routing", &format!("{run}:9")]].concat(),
            "wanted steps from 9 to 9, found steps until 4",
        ),
        (
            &[&spread[..], &["--routing", "nowhere"]].concat(),
            "nowhere/experts.loads: no such file: wanted the directory of a run of a model with experts",
        ),
        (&[&spread[..], &["--routing", "zipf=-1"]].concat(), "wanted an exponent of at least 0"),
        (&["--routing", "zipf=1"], "wanted experts over ranks, found parallel.experts = 1"),
    ] {
        let refused = simulate(words);
        assert!(refused.code == Some(2) && refused.err.contains(wanted), "{wanted}: {}", refused.err);
    }
}
