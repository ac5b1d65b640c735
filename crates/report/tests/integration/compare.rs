//! Comparisons of several runs: verdict, figures, notes, and runs that cannot be compared or read.

use crate::page::well_formed;
use bessemer_report::{ComparedRun, Comparison, RecipeDifference, RunFigures};
use bessemer_runlog::*;

fn records(name: &str, vocab_size: u64, bits_per_byte: f64, end: bool) -> Vec<Record> {
    let run = Run { name: name.into(), host: "h".into(), started_unix_s: 1_795_179_900.0, ..Run::default() };
    let mut all: Vec<Record> = vec![
        run.into(),
        Model { parameters: 1_500_000, vocab_size, ..Model::default() }.into(),
        Training { steps: 40, ..Training::default() }.into(),
    ];
    for step in 1..=40u64 {
        let loss = 4.0 - step as f64 * 0.05;
        all.push(
            Step { step, tokens: step * 100, loss, seconds: 0.5, tokens_per_s: 200.0, ..Step::default() }
                .into(),
        );
        if step % 10 == 0 {
            let loss = if step == 30 { 1.9 } else { 2.0 + 1.0 / step as f64 };
            let split = "validation".to_string();
            let eval = Eval {
                step,
                tokens: step * 100,
                split,
                loss,
                bits_per_byte,
                bytes_scored: 1000,
                ..Eval::default()
            };
            all.push(eval.into());
        }
    }
    if end {
        all.push(End { step: 40, seconds: 25.0, ..End::default() }.into());
    }
    all
}

fn run(label: &str, records: Result<Vec<Record>, String>) -> ComparedRun {
    ComparedRun { label: label.into(), records }
}

fn compare(runs: Vec<ComparedRun>) -> Comparison {
    let difference = RecipeDifference {
        key: "optim.lr".into(),
        values: runs.iter().enumerate().map(|(i, _)| Some(format!("{i}e-3"))).collect(),
    };
    Comparison::new(runs, vec![difference], Vec::new())
}

#[test]
fn the_figures_of_a_run_are_those_of_its_records() {
    let f = RunFigures::new(&records("a", 65, 2.5, true));
    assert_eq!((f.name.as_str(), f.status.as_str(), f.ended), ("a", "finished", true));
    assert_eq!((f.steps, f.steps_planned, f.tokens), (40, Some(40), 4000));
    assert_eq!((f.last_eval.as_ref().unwrap().step, f.best_eval.as_ref().unwrap().step), (40, 30));
    assert_eq!(
        (f.tokens_per_s, f.wall_seconds, f.started_at.as_str()),
        (Some(200.0), 25.0, "2026-11-20T13:05:00Z")
    );
    assert_eq!(RunFigures::new(&[]).status, "nothing recorded");
}

#[test]
fn a_comparison_names_the_best_run_and_overlays_all_curves() {
    let both =
        compare(vec![run("a", Ok(records("a", 65, 2.5, true))), run("b", Ok(records("b", 65, 2.0, false)))]);
    let verdict = "Fewest bits per byte at the last evaluation: b (2.0000); a +25.0 %.";
    assert_eq!(both.verdict().unwrap(), verdict);
    assert!(both.notes().is_empty(), "{:?}", both.notes());
    let (page, text) = (both.html(), both.text(120));
    well_formed(&page);
    for what in [verdict, "1.9000 (step 30)", "optim.lr", "0e-3", "1e-3", "still running, or crashed"] {
        assert!(page.contains(what) && text.contains(what), "{what}\n{text}");
    }
    assert_eq!(
        page.matches("<figure>").count(),
        7,
        "all but the gradient norm, which is zero here on a log scale"
    );
    // Both runs stand in the legend of every figure.
    assert_eq!(page.matches(">a</text>").count(), page.matches("<figure>").count());
    assert_eq!(page.matches(">b</text>").count(), page.matches("<figure>").count());
    assert!(text.lines().all(|l| l.chars().count() <= 120), "{text}");
}

#[test]
fn other_vocabularies_and_texts_are_said() {
    let mut other = records("b", 8192, 2.0, true);
    let notes = |records| {
        compare(vec![run("a", Ok(self::records("a", 65, 2.5, true))), run("b", Ok(records))])
            .notes()
            .join("\n")
    };
    let said = notes(other.clone());
    assert!(said.contains("different tokenizers") && said.contains("Bits per byte can"), "{said}");
    assert!(!said.contains("different text") && !said.contains("numbers of tokens"), "{said}");
    let shorter = records("b", 65, 2.0, true).into_iter().filter(|r| r.step().is_none_or(|step| step < 25));
    assert!(notes(shorter.collect()).contains("different numbers of tokens"));
    for record in &mut other {
        if let Record::Eval(e) = record {
            e.bytes_scored = 7;
        }
    }
    assert!(notes(other).contains("evaluated on different text"));
}

#[test]
fn runs_without_records_and_unreadable_ones_are_named_beside_the_others() {
    let broken = compare(vec![
        run("a", Ok(records("a", 65, f64::NAN, true))),
        run("empty", Ok(Vec::new())),
        run("<bad>\u{1b}", Err("metrics.jsonl:3: not a record".into())),
    ]);
    assert_eq!(broken.verdict(), None);
    let (page, text) = (broken.html(), broken.text(80));
    well_formed(&page);
    assert!(page.contains("&lt;bad&gt;") && page.contains("cannot be read and is left out: metrics.jsonl:3"));
    assert!(text.contains("metrics.jsonl:3: not a record") && text.contains("nothing recorded"), "{text}");
    assert!(!text.contains('\u{1b}'));
    let none = Comparison::new(vec![run("x", Err("gone".into()))], Vec::new(), Vec::new());
    well_formed(&none.html());
    assert!(none.text(80).contains("gone"));
}

#[test]
fn more_runs_than_colours_still_differ() {
    let runs = (0..20).map(|i| run(&format!("run {i}"), Ok(records("x", 65, 2.0, true)))).collect();
    let page = compare(runs).html();
    well_formed(&page);
    assert!(page.contains(">run 19</text>"));
    assert!(page.len() < 2_000_000, "{}", page.len());
}
