//! Comparisons of several runs: verdict, figures, notes, and runs that cannot be compared or read.

use crate::page::well_formed;
use bessemer_report::{ComparedRun, Comparison, RecipeDifference, RecordedRecipe, RunFigures};
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

fn run(label: &str, records: Vec<Record>) -> ComparedRun {
    ComparedRun { label: label.into(), records, recipe: RecordedRecipe::Known }
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
    let both = compare(vec![run("a", records("a", 65, 2.5, true)), run("b", records("b", 65, 2.0, false))]);
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
        compare(vec![run("a", self::records("a", 65, 2.5, true)), run("b", records)]).notes().join("\n")
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
fn runs_without_records_and_failed_ones_are_named_beside_the_others() {
    let mut failed = records("b", 65, 2.0, false);
    let message = Some("step 40: the loss is not finite".to_string());
    failed.push(End { step: 40, reason: EndReason::Failed, message, ..End::default() }.into());
    let broken = compare(vec![
        run("a", records("a", 65, f64::NAN, true)),
        run("empty", Vec::new()),
        run("<bad>\u{1b}", failed),
    ]);
    assert!(broken.verdict().is_some_and(|v| v.contains("bad")));
    let (page, text) = (broken.html(), broken.text(80));
    well_formed(&page);
    assert!(page.contains("&lt;bad&gt;") && page.contains("failed: step 40: the loss is not finite"));
    assert!(text.contains("failed: step 40: the loss") && text.contains("nothing recorded"), "{text}");
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn a_recipe_that_was_never_recorded_is_unknown_and_not_equal() {
    let known = run("a", records("a", 65, 2.0, true));
    let unknown = ComparedRun { recipe: RecordedRecipe::Unknown, ..known.clone() };
    let text = |runs: Vec<ComparedRun>| Comparison::new(runs, Vec::new(), Vec::new()).text(80);
    assert!(text(vec![known.clone(), known.clone()]).contains("The recipes do not differ."));
    assert!(text(vec![known.clone(), unknown.clone()]).contains("cannot be compared"));
    let two = text(vec![known.clone(), known.clone(), unknown.clone()]);
    assert!(two.contains("The recipes that are known do not differ."), "{two}");
    let difference = RecipeDifference { key: "optim.lr".into(), values: vec![Some("1".into()), None, None] };
    let text = Comparison::new(vec![known.clone(), known, unknown], vec![difference], Vec::new()).text(80);
    let row = text.lines().find(|l| l.contains("optim.lr")).unwrap();
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["optim.lr", "1", "–", "unknown"]);
}

#[test]
fn more_runs_than_colours_still_differ() {
    let runs = (0..20).map(|i| run(&format!("run {i}"), records("x", 65, 2.0, true))).collect();
    let page = compare(runs).html();
    well_formed(&page);
    assert!(page.contains(">run 19</text>"));
    assert!(page.len() < 2_000_000, "{}", page.len());
}

/// What a tuned model has learned and forgotten stands beside that of other runs: before and after, with intervals.
#[test]
fn scores_of_tasks_and_components_are_rows() {
    let with = |name: &str, loss: [f64; 2], accuracy: f64| {
        let mut all = records(name, 300, 2.0, true);
        for (step, loss) in [(0, loss[0]), (30, loss[1])] {
            let components =
                vec![EvalComponent { name: "runs/base".into(), loss, bits_per_byte: 1.0, tokens_scored: 9 }];
            let eval = Eval { step, split: "validation".into(), loss: 2.0, components, ..Eval::default() };
            all.push(eval.into());
        }
        let task = |step, value| Task {
            step,
            tokens: 1,
            task: "logic".into(),
            metric: "acc".into(),
            value,
            stderr: Some(0.01),
            interval: None,
            larger_is_better: true,
            documents: 100,
            signature: String::new(),
            worst: None,
        };
        all.extend([task(30, accuracy).into(), task(10, 0.5).into()]);
        all
    };
    let (a, b) = (with("a", [3.0, 3.25], 0.75), records("b", 300, 2.0, true));
    let comparison = compare(vec![run("a", a), run("b", b)]);
    let text = comparison.text(120);
    let row = |name: &str| text.lines().find(|line| line.trim_start().starts_with(name)).unwrap().to_owned();
    let (loss, task) = (row("loss on runs/base"), row("logic acc"));
    assert!(loss.contains("3.0000 → 3.2500") && loss.trim_end().ends_with('–'), "{loss}");
    assert!(task.contains("0.5000 → 0.7500 (0.7304 to 0.7696)"), "{task}");
    assert!(comparison.html().contains("3.0000 → 3.2500"));
}
