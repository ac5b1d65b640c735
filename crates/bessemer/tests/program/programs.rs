//! `bessemer program show`: what a rank runs, as text and as JSON; bad arguments.

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

#[test]
fn a_rank_that_is_not_there_is_refused() {
    let refused = show(&["--ranks", "2", "--rank", "2"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("--rank 2: wanted one below --ranks 2"), "{}", refused.err);
}
