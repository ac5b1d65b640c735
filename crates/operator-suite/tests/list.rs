//! The list of cases names those of the sources, and exceptions of a device are checked.
#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test is a failed test")]

use bessemer_operator_suite::{CASES, Devices, Exception, check_exceptions, run};
use bessemer_tensor::Backend;
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::op::Op;
use std::collections::BTreeSet;
use std::path::Path;

/// Names of the functions of the shape of a case in the sources of the suite, with their modules.
fn written() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().unwrap().to_str().unwrap().to_string();
        let file = if path.is_dir() { path.join("mod.rs") } else { path };
        for function in std::fs::read_to_string(file).unwrap().split("\npub(crate) fn ").skip(1) {
            let (name, rest) = function.split_once('(').unwrap();
            let (arguments, rest) = rest.split_once(')').unwrap();
            let arguments = arguments.trim().trim_end_matches(',');
            if matches!(arguments, "suite: &Suite<'_>" | "_: &Suite<'_>") && rest.starts_with(" {") {
                names.insert(format!("{module}::{name}"));
            }
        }
    }
    names
}

#[test]
fn every_case_is_in_the_list() {
    let listed: BTreeSet<String> = CASES.iter().map(|c| c.name.to_string()).collect();
    assert_eq!(listed.len(), CASES.len(), "a case is listed twice");
    let different: Vec<_> = written().symmetric_difference(&listed).cloned().collect();
    assert!(different.is_empty(), "in the sources or in the list, not in both: {different:?}");
}

#[test]
fn every_operator_has_a_case() {
    let tested: BTreeSet<&str> = CASES.iter().flat_map(|c| c.operators).copied().collect();
    assert_eq!(tested, Op::NAMES.iter().copied().collect::<BTreeSet<_>>());
}

/// Computes nothing.
struct Nothing;

impl Devices for Nothing {
    fn reference(&self) -> Box<dyn Backend> {
        Box::new(NullBackend::default())
    }

    fn variants(&self) -> Vec<&'static str> {
        vec!["nothing"]
    }

    fn backend(&self, _: usize, _: usize) -> Box<dyn Backend> {
        self.reference()
    }

    fn exceptions(&self) -> &'static [Exception] {
        &[
            Exception {
                case: "attention_golden::every_mask_gives_what_pytorch_gives",
                reason: "computes nothing",
            },
            Exception { case: "attention::places_outside_the_cache_are_refused", reason: "" },
        ]
    }
}

#[test]
fn an_exception_passes_while_its_case_fails() {
    run("attention_golden::every_mask_gives_what_pytorch_gives", &Nothing);
}

#[test]
#[should_panic(expected = "no reason")]
fn an_exception_needs_a_reason() {
    check_exceptions(&Nothing);
}
