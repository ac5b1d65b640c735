//! `bessemer plan`: predictions of a published table, files that are no tables.

use crate::workplace::{Finished, finished};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const FAILED: i32 = 1;
const USAGE: i32 = 2;

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
    assert!(text.contains("59 rows predicted, with constants that were fitted to nothing"), "{text}");
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
    fs::write(place.path().join("bytes.csv"), [0xff, 0xfe, 0x00]).unwrap();
    let table = tables().join("sc21_table1.csv");
    let table = table.to_str().unwrap();
    for (words, code, said) in [
        (vec!["none.csv"], FAILED, "none.csv: No such file"),
        (vec!["."], FAILED, "wanted a regular file"),
        (vec!["empty.csv"], FAILED, "empty.csv: line 1: there is no line of column names"),
        (vec!["odd.csv"], FAILED, "odd.csv: line 2: 3 cells under 2 names"),
        (vec!["bytes.csv"], FAILED, "bytes.csv: "),
        (vec![table, "--fit", "none.csv"], FAILED, "none.csv: No such file"),
        (vec![table, "--machine", "abacus"], USAGE, "known are a100-80gb, a100-40gb, h100-80gb"),
        (vec![table, "--machine", "machine.toml"], USAGE, "missing field"),
        (vec![table, "--fit", table], FAILED, "every row of the table was fitted"),
        (vec![table, "--svg", "none/picture.svg"], FAILED, "--svg none/picture.svg"),
    ] {
        let finished = validate(place.path(), &words);
        assert_eq!(finished.code, Some(code), "{words:?}: {}", finished.err);
        assert!(finished.err.contains(said), "{words:?}: {}", finished.err);
    }
}
