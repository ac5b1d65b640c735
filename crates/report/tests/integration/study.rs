//! The page of a study.

use bessemer_report::{render_coord_check, render_study, write_coord_check, write_study};
use bessemer_runlog::coord_check::{
    COORD_CHECK_FORMAT, COORD_CHECK_VERSION, CoordCheck, CoordKind, CoordParametrisation, CoordRun,
    CoordSettings, Coordinates,
};
use bessemer_runlog::study::{
    STUDY_FORMAT, STUDY_VERSION, Study, StudyMethod, StudyRun, StudySettings, StudyStart, StudyText,
    StudyVerdict,
};

fn run(seed: u64, losses: Vec<f64>, final_loss: Option<f64>, verdict: StudyVerdict) -> StudyRun {
    StudyRun {
        seed,
        gradient_norms: losses.iter().map(|l| l / 2.0).collect(),
        diverged_at: final_loss.is_none().then_some(losses.len() as u64 + 1),
        losses,
        final_loss,
        verdict,
        start: StudyStart {
            activation_std: vec![1.0, 1.5, 2.5],
            stream_gradient: vec![0.1, 0.2],
            parameter_gradient: vec![0.3, 0.4],
            norm_factor: if seed == 0 { vec![0.5, 0.5] } else { Vec::new() },
        },
    }
}

fn study(methods: usize) -> Study {
    let falling = |i: usize| (0..40).map(|s| 4.0 - 0.04 * (s * (i + 1) % 60) as f64).collect();
    let method = |i: usize| StudyMethod {
        name: format!("method-{i}"),
        title: format!("Method <{i}>"),
        parameters: 1,
        runs: vec![
            run(0, falling(i), Some(2.5 + 0.125 * i as f64), StudyVerdict::Learnt),
            run(1, vec![4.0, 9e9], None, StudyVerdict::Diverged),
        ],
    };
    Study {
        format: STUDY_FORMAT.into(),
        version: STUDY_VERSION,
        settings: StudySettings {
            layers: 2,
            width: 8,
            heads: 2,
            context: 4,
            batch: 3,
            steps: 40,
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
        },
        text: StudyText {
            name: "a & b.txt".into(),
            unit: "character".into(),
            symbols: 65,
            train: 1_003_854,
            validation: 111_540,
            unigram_nats: 3.3091,
            bigram_nats: 2.4519,
        },
        methods: (0..methods).map(method).collect(),
    }
}

#[test]
fn every_method_has_a_row_a_verdict_and_six_curves() {
    let page = render_study(&study(7));
    for i in 0..7 {
        assert_eq!(page.matches(&format!(">method-{i}</text>")).count(), 6, "legends");
        assert!(page.contains(&format!("method-{i} – Method &lt;{i}&gt;")));
    }
    assert!(page.contains("1 learnt, 1 diverged") && page.contains("2.500 ± 0.000"));
    assert!(page.contains("2.500, not finite at step 3"));
    assert!(page.contains("a &amp; b.txt") && page.contains("4.1744 nats"));
    assert_eq!(page.matches("<svg").count(), 6);
    assert!(!page.contains("http-equiv=\"refresh\"") && !page.contains("<script"));
    assert_eq!(page, render_study(&study(7)), "the same study, the same page");
}

#[test]
fn a_study_without_results_is_a_page_too() {
    let mut empty = study(1);
    empty.methods[0].runs.clear();
    for s in [study(0), empty] {
        let page = render_study(&s);
        assert!(page.contains("</html>") && !page.contains("NaN"));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.html");
    write_study(&path, &study(2)).unwrap();
    assert_eq!(std::fs::read_to_string(path).unwrap(), render_study(&study(2)));
}

fn coord_check() -> CoordCheck {
    let settings = CoordSettings {
        widths: vec![64, 256],
        base_width: 64,
        head_dim: 16,
        layers: 2,
        context: 4,
        batch: 3,
        steps: 2,
        lr: 1e-2,
        beta1: 0.9,
        beta2: 0.999,
        bound: 0.2,
    };
    let one = |name: &str, exponent: f64| {
        let run = |width: u64, seed: u64| {
            let value = (1 + seed) as f64 * (width as f64).powf(exponent);
            let coordinates =
                |kind| Coordinates { kind, size: vec![value; 3], change: vec![0.0, value, value] };
            CoordRun {
                width,
                seed,
                losses: vec![4.0; 3],
                diverged_at: None,
                coordinates: CoordKind::ALL.map(coordinates).to_vec(),
            }
        };
        let runs = [64, 256].into_iter().flat_map(|w| [run(w, 0), run(w, 1)]).collect();
        let mut p = CoordParametrisation {
            name: name.into(),
            title: format!("Title <{name}>"),
            runs,
            findings: Vec::new(),
        };
        p.judge(&settings);
        p
    };
    let parametrisations = vec![one("mup", 0.0), one("standard", 0.5)];
    CoordCheck {
        format: COORD_CHECK_FORMAT.into(),
        version: COORD_CHECK_VERSION,
        settings,
        text: study(0).text,
        parametrisations,
    }
}

#[test]
fn a_coordinate_check_has_slopes_verdicts_and_a_curve_a_kind_and_measure() {
    let page = render_coord_check(&coord_check());
    assert!(page.contains("Title &lt;mup&gt;: flat everywhere"));
    assert!(page.contains("residual stream: grows"));
    assert_eq!((page.matches("0.50 ± 0.00").count(), page.matches("0.00 ± 0.00").count()), (18, 18));
    assert_eq!(page.matches("<svg").count(), 12);
    assert_eq!(page.matches(">standard</text>").count(), 12, "legends");
    assert!(!page.contains("NaN") && !page.contains("<script") && page.contains("a &amp; b.txt"));
    let mut empty = coord_check();
    empty.parametrisations.iter_mut().for_each(|p| p.runs.clear());
    assert!(render_coord_check(&empty).contains("</html>"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.html");
    write_coord_check(&path, &coord_check()).unwrap();
    assert_eq!(std::fs::read_to_string(path).unwrap(), page);
}
