//! `bessemer plan`: methods whose layers may differ. What they find trains to the loss of one rank.

use crate::workplace::{Finished, Workplace};
use serde_json::Value;
use std::fs;
use std::path::Path;

const USAGE: i32 = 2;
const MODEL: &str = "architecture = \"llama\"\nlayers = 4\nwidth = 32\nheads = 4\nkv_heads = 2\ncontext = 32\n\
                     tied_embeddings = false\n";

/// A workplace with a machine whose devices have so many bytes.
fn workplace(memory: &str) -> Workplace {
    let place = Workplace::new(MODEL);
    let machines = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plan/machines");
    let text = fs::read_to_string(machines.join("a100-80gb.toml")).unwrap();
    assert!(text.contains("memory = 80e9"));
    let small = text.replace("memory = 80e9", &format!("memory = {memory}"));
    fs::write(place.path("machine.toml"), small).unwrap();
    place
}

fn plan(place: &Workplace, words: &[&str]) -> Finished {
    let all = [&["plan", "recipe.toml", "--devices", "4", "--machine", "machine.toml"], words].concat();
    place.bessemer(&all)
}

/// Loss of the last step with these keys.
fn loss(ranks: &str, keys: &[&str]) -> f64 {
    let place = Workplace::new(MODEL);
    let mut words = vec!["run", "recipe.toml", "--ranks", ranks];
    words.extend(keys.iter().flat_map(|key| ["--set", key]));
    let finished = place.bessemer(&words);
    assert_eq!(finished.code, Some(0), "{}", finished.err);
    place.records("step").last().unwrap()["loss"].as_f64().unwrap()
}

fn keys(layout: &Value) -> Vec<&str> {
    layout["keys"].as_array().unwrap().iter().map(|key| key.as_str().unwrap()).collect()
}

/// Trains a plan, and holds what its prices say of memory against the dry run.
fn expect_trains(layout: &Value, wanted: f64) {
    let found = loss("4", &keys(layout));
    assert!((found / wanted - 1.0).abs() < 1e-6, "{found} {wanted}: {}", layout["name"]);
}

fn layouts(value: &Value) -> &[Value] {
    value["layouts"].as_array().unwrap()
}

#[test]
fn plans_of_layers_train_to_the_loss_of_one_rank() {
    let wanted = loss("1", &[]);
    let mut names = Vec::new();
    for memory in ["1.2e6", "1.1e6", "1.9e6"] {
        let found = plan(&workplace(memory), &["--method", "layers", "--top", "3", "--json"]).json();
        for layout in layouts(&found) {
            expect_trains(layout, wanted);
            let (held, priced) =
                (layout["memory"].as_f64().unwrap(), layout["memory_by_prices"].as_f64().unwrap());
            // Prices do not count buffers of collectives, of which there are 4e5 bytes at most here.
            let near = (0.95 * held - 4e5..1.05 * held).contains(&priced);
            assert!(held <= memory.parse::<f64>().unwrap() && near, "{layout}");
            names.push(layout["name"].as_str().unwrap().to_owned());
        }
    }
    // Layers that differ in what they recompute and in what they shard, and stages, are among them.
    let has = |part: &str| names.iter().any(|name| name.contains(part));
    assert!(names.len() >= 4 && has("recompute attention-output in layers") && has("pipeline"), "{names:?}");
    assert!(names.iter().any(|name| name.contains("feed-forward of layers")), "{names:?}");
}

#[test]
fn plans_of_the_markov_chain_train_to_the_loss_of_one_rank() {
    let wanted = loss("1", &[]);
    for (memory, seed) in [("1.2e6", "0"), ("7e5", "1"), ("6e5", "2")] {
        let words = ["--method", "mcmc", "--seed", seed, "--proposals", "2000", "--json"];
        let place = workplace(memory);
        let found = plan(&place, &words).json();
        expect_trains(&layouts(&found)[0], wanted);
        let proposed = |kind: &str| found["proposals"][kind]["proposed"].as_u64().unwrap();
        let all = ["random", "propagated", "stages", "degrees"].map(proposed);
        assert_eq!(all.iter().sum::<u64>(), 2000);
        assert_eq!(found, plan(&place, &words).json());
    }
}

#[test]
fn completed_annotations_train_to_the_loss_of_one_rank() {
    let wanted = loss("1", &[]);
    let place = workplace("80e9");
    let degrees = ["parallel.tensor=2", "parallel.pipeline=2"];
    let megatron = [
        "attention.out.weight shard(1)",
        "attention.qkv.weight shard(0)",
        "mlp.down.weight shard(1)",
        "mlp.gate_up.weight shard(0)",
    ];
    for (annotations, completed) in [
        // Weights alone, activations alone: Megatron's layout of the layers.
        (
            &[
                "parallel.annotate.'layers.*.attention.qkv.weight'='shard(0)'",
                "parallel.annotate.'layers.*.mlp.down.weight'='shard(1)'",
            ][..],
            &megatron[..],
        ),
        (
            &[
                "parallel.annotate.'layers.*.attention.mixed'='shard(1)'",
                "parallel.annotate.'layers.*.mlp.hidden'='shard(1)'",
            ],
            &megatron,
        ),
        (
            &[
                "parallel.annotate.'layers.1.mlp.hidden'='shard(1)'",
                "parallel.annotate.'embed.tokens'='shard(0)'",
            ],
            &["attention.qkv.weight replicate"],
        ),
    ] {
        let given: Vec<&str> = degrees.iter().chain(annotations).copied().collect();
        let sets: Vec<&str> = given.iter().flat_map(|key| ["--set", key]).collect();
        let found = plan(&place, &[&["--method", "annotations", "--json"], &sets[..]].concat()).json();
        let parameters = found["parameters"].as_array().unwrap();
        for part in completed {
            let (name, layout) = part.split_once(' ').unwrap();
            let of = parameters.iter().filter(|of| of["name"] == name);
            let layers: usize =
                of.filter(|of| of["layout"] == layout).map(|of| of["layers"].as_array().unwrap().len()).sum();
            assert_eq!(layers, 4, "{part}: {parameters:?}");
        }
        let layout = &layouts(&found)[0];
        let all: Vec<&str> = given.iter().copied().chain(keys(layout)).collect();
        let found = loss("4", &all);
        assert!((found / wanted - 1.0).abs() < 1e-6, "{found} {wanted}: {all:?}");
    }
}

#[test]
fn annotations_that_contradict_each_other_are_named_with_their_costs() {
    let place = workplace("80e9");
    let annotate = |name: &str, layout: &str| format!("parallel.annotate.'{name}'='{layout}'");
    let (one, other) =
        (annotate("layers.*.mlp.hidden", "shard(1)"), annotate("layers.3.mlp.down.weight", "replicate"));
    let words = ["--method", "annotations", "--set", "parallel.tensor=2", "--set", &one];
    plan(&place, &[&words[..], &["--set", &other]].concat()).failed(
        USAGE,
        &[
            "layers.3.mlp.down.weight is replicate by \"layers.3.mlp.down.weight\"",
            "linear wants it shard(1) from \"layers.*.mlp.hidden\"",
            "without \"layers.3.mlp.down.weight\" a step takes",
            "without \"layers.*.mlp.hidden\" a step takes",
            "s on 4 a100-80gb",
        ],
    );
    plan(&place, &["--method", "annotations"]).failed(USAGE, &["there is none"]);
    let text = plan(&place, &words).text();
    assert!(text.contains("layers.0-3.mlp.gate_up.weight") && text.contains("by linear, from"), "{text}");
    plan(&place, &["--method", "layers", "--set", &one])
        .failed(USAGE, &["parallel.annotate sets the layout of single layers"]);
    let wrong = annotate("layers.*.mlp.hiden", "shard(1)");
    plan(&place, &["--method", "annotations", "--set", &wrong])
        .failed(USAGE, &["activations: layers.0.attention"]);
}

#[test]
fn methods_stand_beside_each_other() {
    let place = workplace("2.5e6");
    let found = plan(&place, &["--compare", "--json"]).json();
    let methods = found["methods"].as_array().unwrap();
    let of = |name: &str| methods.iter().find(|row| row["method"] == name).unwrap();
    for row in methods {
        assert!(row["search_seconds"].as_f64().unwrap() >= 0.0);
        // What a method finds is simulated again from its keys, by the programs of the ranks. On devices that wait for their hosts all
        // the time, which these programs do not count, the two differ; both are there.
        if let Some(own) = row["own_seconds"].as_f64() {
            let seconds = row["seconds"].as_f64().unwrap();
            assert!(own > 0.0 && seconds > 0.0, "{row}");
        }
    }
    let seconds = |name: &str| of(name)["own_seconds"].as_f64();
    let best = seconds("layers").unwrap();
    let plain = ["data parallelism alone", "ZeRO-3 alone", "rule of thumb"];
    assert!(plain.iter().filter_map(|name| seconds(name)).all(|plain| best <= plain * 1.02), "{methods:?}");
    assert!(of("annotations")["refusal"].as_str().unwrap().contains("there is none"));
    let text = plan(&place, &["--compare"]).text();
    for part in [
        "own price",
        "simulated",
        "exhaustive ",
        "layers ",
        "mcmc ",
        "alpa ",
        "rule of thumb",
        "keys, layers: --set",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}
