//! `bessemer plan`: predictions of a published table, files that are no tables.

use crate::workplace::{Finished, LLAMA, Workplace, finished};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const RECIPE: i32 = 78;

fn validate(dir: &Path, words: &[&str]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bessemer"));
    command.args(["plan", "validate"]).args(words).current_dir(dir).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    finished(command)
}

fn tables() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../plan/tests/tables")
}

#[test]
fn a_table_is_predicted_from_sixteen_of_its_rows() {
    let place = TempDir::new().unwrap();
    let table = tables().join("vtrain_multi.csv");
    let table = table.to_str().unwrap();
    let value = validate(place.path(), &[table, "--fit", table, "--json", "--svg", "picture.svg"]).json();
    let fitted = value["calibration"]["fitted"].as_array().unwrap();
    assert_eq!(fitted.len(), 16);
    let rows = value["validation"]["rows"].as_array().unwrap();
    assert!(rows.len() == 43 && rows.iter().all(|row| !fitted.contains(&row["row"])));
    let (row, mean) = (&rows[0], value["validation"]["errors"]["mean"].as_f64().unwrap());
    assert!(row["predicted"]["total"].as_f64().unwrap() > 0.0 && mean < 0.08, "{mean}");
    assert!(fs::read_to_string(place.path().join("picture.svg")).unwrap().contains("predicted, seconds"));
    let text = validate(place.path(), &[table]).text();
    assert!(text.contains("59 rows predicted, with constants that are not fitted"), "{text}");
}

#[test]
fn several_tables_have_a_line_and_a_panel_for_each_machine() {
    let place = TempDir::new().unwrap();
    let [fsdp, b200] = ["llm_foundry_fsdp.csv", "simumax_b200.csv"].map(|name| tables().join(name));
    let [fsdp, b200] = [fsdp.to_str().unwrap(), b200.to_str().unwrap()];
    let both = [fsdp, b200, "--fit-each", "--fit-rows", "8", "--svg", "picture.svg"];
    let text = validate(place.path(), &both).text();
    for name in ["fsdp, a100-40gb", "fsdp, a100-80gb", "fsdp, h100-80gb", "b200, b200-180gb"] {
        let line = text.lines().find(|line| line.contains(name)).unwrap();
        assert_eq!(line.split_whitespace().nth(3), Some("8"), "rows fitted: {line}");
    }
    let picture = fs::read_to_string(place.path().join("picture.svg")).unwrap();
    assert_eq!(
        (picture.matches("<g transform").count(), picture.matches("limit of memory").count() > 0),
        (4, true)
    );
    let sections = validate(place.path(), &[fsdp, b200, "--fit-each", "--json"]).json();
    assert_eq!(sections.as_array().unwrap().len(), 4);

    let text = validate(place.path(), &[b200, "--fit-each", "--fit-rows", "8"]).text();
    for said in [
        "13 rows predicted, 8 others fitted",
        "8 rows left out, mixtures of experts: [5, 7,",
        "memory of 21 rows",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let text = validate(place.path(), &[fsdp, "--machine", "h100-80gb", "--fit-each"]).text();
    assert!(
        text.contains("3 rows leave less than 5 % of the memory free: [56, 57, 58]; the others: mean"),
        "{text}"
    );
    assert!(text.contains(" by the 16 fitted rows: "), "{text}");
}

#[test]
fn docs_show_what_the_program_says() {
    let place = TempDir::new().unwrap();
    let table = tables().join("vtrain_multi.csv");
    let table = table.to_str().unwrap();
    let said = validate(place.path(), &[table, "--fit", table]).text();
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/planner.md")).unwrap();
    for name in ["mean ", "median ", "null "] {
        let line = said.lines().find(|line| line.starts_with(name)).unwrap().trim_end();
        assert!(page.lines().any(|shown| shown == line), "docs/planner.md lacks {line:?}");
    }
}

#[test]
fn files_that_are_no_tables_are_named() {
    let place = TempDir::new().unwrap();
    fs::write(place.path().join("empty.csv"), "").unwrap();
    fs::write(place.path().join("odd.csv"), "hidden,heads\n1,2,3\n").unwrap();
    fs::write(place.path().join("machine.toml"), "name = \"mine\"\n").unwrap();
    let short = "hidden,heads,layers,seq,tp,pp,gpus,micro_batch,global_batch,time_ms\n4096,32,36,2048,4,1,128,16,512,3696\n";
    fs::write(place.path().join("short.csv"), short).unwrap();
    fs::write(place.path().join("bytes.csv"), [0xff, 0xfe, 0x00]).unwrap();
    let table = tables().join("sc21_table1.csv");
    let table = table.to_str().unwrap();
    for (words, code, said) in [
        (vec!["none.csv"], FAILED, "none.csv: No such file"),
        (vec!["."], FAILED, "wanted a regular file"),
        (vec!["empty.csv"], FAILED, "empty.csv: line 1: there is no line of column names"),
        (vec!["odd.csv"], FAILED, "odd.csv: line 1: the table does not have the columns kv_heads"),
        (vec!["bytes.csv"], FAILED, "bytes.csv: "),
        (vec![table, "--fit", "none.csv"], FAILED, "none.csv: No such file"),
        (
            vec![table, "--machine", "abacus"],
            USAGE,
            "known: a100-80gb, a100-80gb-hdr4, a100-40gb, h100-80gb, b200-180gb",
        ),
        (vec![table, "--machine", "machine.toml"], USAGE, "missing field"),
        (vec![table, "--fit", table], FAILED, "every row of the table was fitted"),
        (vec![table, "--svg", "none/picture.svg"], FAILED, "--svg none/picture.svg"),
        (vec!["short.csv", "--column", "megatron"], FAILED, "no column gpu; name its machine with --machine"),
        (vec!["short.csv", "--column", "vocb=3"], USAGE, "did you mean \"vocab\"?"),
    ] {
        let finished = validate(place.path(), &words);
        assert_eq!(finished.code, Some(code), "{words:?}: {}", finished.err);
        assert!(finished.err.contains(said), "{words:?}: {}", finished.err);
    }
    let words = ["short.csv", "--column", "megatron", "--machine", "a100-80gb"];
    assert!(validate(place.path(), &words).text().contains("1 rows predicted"));
}

/// Groups that are left out, with the regret of the choice and its expected interval.
#[test]
fn groups_of_rows_are_left_out_in_turn() {
    let place = TempDir::new().unwrap();
    let table = tables().join("vtrain_multi.csv");
    let table = table.to_str().unwrap();
    let text = validate(place.path(), &[table, "--fit-each"]).text();
    for said in [
        "groups left out in turn",
        "  model 8192 x 48 ",
        "  tensor 2 ",
        "17 choices: regret ",
        "(expected 0.0 to ",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let value = validate(place.path(), &[table, "--fit-each", "--json"]).json();
    let groups = value["left_out_groups"].as_array().unwrap();
    assert_eq!((groups.len(), &groups[4]["by"]), (8, &serde_json::json!({ "tensor": 2 })));
    let expected = &groups[4]["jobs"][0]["expected"];
    assert!(expected["low"].as_f64().unwrap() <= expected["high"].as_f64().unwrap());
}

/// Loss of the last step.
fn loss(place: &Workplace) -> f64 {
    place.records("step").last().unwrap()["loss"].as_f64().unwrap()
}

#[test]
fn planned_layouts_run_and_have_the_loss_of_one_rank() {
    let alone = Workplace::new(LLAMA);
    alone.train(&[]);
    let wanted = loss(&alone);
    let place = Workplace::new(LLAMA);
    let plan = place.bessemer(&["plan", "recipe.toml", "--devices", "4", "--top", "100", "--json"]).json();
    let layouts = plan["layouts"].as_array().unwrap();
    assert_eq!(plan["refused"].as_u64(), Some(0), "{}", plan["first_refusal"]);
    assert!(layouts.len() >= 40, "{}", layouts.len());
    let times: Vec<f64> = layouts.iter().map(|layout| layout["seconds"].as_f64().unwrap()).collect();
    assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
    for layout in layouts {
        let (least, held) = (layout["least_memory"].as_f64().unwrap(), layout["memory"].as_f64().unwrap());
        assert!(least <= held, "the closed form is no lower bound: {layout}");
    }
    // One with tensor-parallel ranks, one on a grid, one with stages, one with ZeRO-3 alone.
    let is = |layout: &serde_json::Value, key: &str| layout["layout"][key].as_u64().unwrap() > 1;
    let kinds = [
        layouts.iter().find(|layout| is(layout, "tensor") && layout["layout"]["sequence"] == true),
        layouts.iter().find(|layout| layout["layout"]["grid"] == "2 x 2"),
        layouts.iter().find(|layout| is(layout, "pipeline")),
        layouts.iter().find(|layout| layout["layout"]["zero"] == 3 && layout["layout"]["data"] == 4),
    ];
    for layout in kinds.map(Option::unwrap) {
        let place = Workplace::new(LLAMA);
        let mut words = vec!["run", "recipe.toml", "--ranks", "4"];
        words.extend(
            layout["keys"].as_array().unwrap().iter().flat_map(|key| ["--set", key.as_str().unwrap()]),
        );
        let finished = place.bessemer(&words);
        assert_eq!(finished.code, Some(0), "{}", finished.err);
        let found = loss(&place);
        assert!((found / wanted - 1.0).abs() < 1e-4, "{found} {wanted}: {}", layout["keys"]);
    }
}

/// Switches of the machine that sum are named where they are faster, and make plans faster; a machine without them plans as before.
#[test]
fn sums_in_switches_are_planned_and_named() {
    let place = Workplace::new(LLAMA);
    let plan = |switches: &str| {
        let machine = format!(
            "name = 'm'\nmatrix_flops = 1e14\nmemory_bandwidth = 1e12\nmemory = 1e10\nmultiprocessors = 100\nnode = 2\n\
             network_bandwidth = 1e9\nsources = ['made up for a test']\n[all_reduce]\nbus_bandwidth = 1e10\nbase_microseconds = 20\n\
             hop_microseconds = 20\n{switches}"
        );
        std::fs::write(place.path("m.toml"), machine).unwrap();
        let words = ["plan", "recipe.toml", "--devices", "8", "--machine", "m.toml", "--top", "1"];
        let fixed =
            ["--set", "parallel.data=ddp", "--set", "parallel.tensor=2", "--set", "parallel.sequence=false"];
        let json = place
            .bessemer(&[&words[..], &fixed, &["--set", "parallel.layout=auto", "--json"]].concat())
            .json();
        let text = place.bessemer(&[&words[..], &fixed, &["--set", "parallel.layout=auto"]].concat()).text();
        (json, text)
    };
    let (forwarding, text) = plan("");
    assert!(!text.contains("sums in switches"), "{text}");
    let (summing, text) = plan(
        "[switches.node]\nbandwidth = 1e10\nbase_microseconds = 5\n\
         [switches.network]\nkind = 'trees'\nlevels = 2\nhop_microseconds = 1\nshare = 0.95\ntrees = 4\n",
    );
    assert!(
        text.contains("; sums in switches (NVLink SHARP), ") && text.contains("; sums in switches (SHARP), "),
        "{text}"
    );
    let seconds = |plan: &serde_json::Value| plan["layouts"][0]["seconds"].as_f64().unwrap();
    assert!(seconds(&summing) < seconds(&forwarding));
    let of = |plan: &serde_json::Value, axis: &str| {
        let all = plan["communication"].as_array().unwrap().clone();
        all.into_iter().find(|one| one["axis"] == axis).unwrap()["in_switches"].clone()
    };
    assert!(of(&forwarding, "replicate").is_null());
    for (axis, by) in [("tensor", "NVLink SHARP"), ("replicate", "SHARP")] {
        let sums = of(&summing, axis);
        assert_eq!(sums["switches"], serde_json::json!([by]), "{sums}");
        let [with, without, gain] =
            ["seconds", "between_devices", "gain"].map(|key| sums[key].as_f64().unwrap());
        assert!(gain > 1.0 && (without / with - gain).abs() < 1e-12, "{sums}");
    }
}

#[test]
fn what_cannot_be_planned_says_which_limit_it_meets() {
    let place = Workplace::new(LLAMA);
    let plan = |words: &[&str]| place.bessemer(&[&["plan", "recipe.toml"], words].concat());
    plan(&["--devices", "7"]).failed(USAGE, &["no layout of 7 devices divides the 8 sequences of a step"]);
    plan(&["--devices", "0"]).failed(USAGE, &["from 1 to 131072"]);
    plan(&[]).failed(USAGE, &["--devices"]);
    let large = ["--set", "model.layers=1000", "--set", "model.width=65536", "--set", "model.heads=64"];
    plan(&[&["--devices", "8"], &large[..]].concat())
        .failed(RECIPE, &["no layout fits (", "holds at least", "where a a100-80gb has 74.5 GiB"]);
    plan(&["--devices", "4", "--machine", "abacus"]).failed(USAGE, &["no machine has the name \"abacus\""]);
    plan(&["--devices", "4", "--fit", "none.csv"]).failed(FAILED, &["none.csv: No such file"]);
    plan(&["--devices", "4", "--set", "model.layers=0"]).failed(RECIPE, &["model.layers"]);
    let text = plan(&["--devices", "4", "--top", "1"]).text();
    assert!(
        text.contains("4 x a100-80gb, 8 sequences of 32 tokens a step")
            && text.contains("keys of the first: --set")
    );
}
