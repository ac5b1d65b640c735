//! The report as a whole: well-formed, harmless, and complete whatever the records hold.

use bessemer_report::plot::{
    Bar, BarChart, Cell, Key, Lane, Lanes, LineChart, Mark, Panel, Part, Rule, Scale, Series, standalone,
};
use bessemer_report::terminal::lanes;
use bessemer_report::{ReportInput, StepTimeline, render, write};
use bessemer_runlog::*;
use std::path::Path;

/// Checks that tags are balanced, attributes quoted and free of `<`, and text free of bare `<` and `&`. Returns the
/// names of the elements.
pub(crate) fn well_formed(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut open: Vec<String> = Vec::new();
    let mut rest = text;
    loop {
        let Some(start) = rest.find('<') else {
            assert!(!rest.contains('>') && open.is_empty(), "open at the end: {open:?}");
            return names;
        };
        check_entities(&rest[..start]);
        assert!(!rest[..start].contains('>'), "bare > in {:?}", &rest[..start]);
        rest = &rest[start..];
        let end = rest.find('>').unwrap_or_else(|| panic!("a tag without end: {:.60}", rest));
        let tag = &rest[1..end];
        rest = &rest[end + 1..];
        if tag.starts_with('!') || tag.starts_with('?') {
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "closing tag of something else");
            continue;
        }
        let (tag, empty) = tag.strip_suffix('/').map_or((tag, false), |t| (t, true));
        let name = tag.split_whitespace().next().unwrap().to_string();
        check_attributes(tag[name.len()..].trim());
        if name == "style" {
            let end = rest.find("</style>").unwrap();
            assert!(!rest[..end].contains('<'));
            rest = &rest[end + 8..];
        } else if !empty && name != "meta" {
            open.push(name.clone());
        }
        names.push(name);
    }
}

fn check_entities(text: &str) {
    for part in text.split('&').skip(1) {
        let entity = part.split(';').next().unwrap();
        assert!(["amp", "lt", "gt", "quot", "#39"].contains(&entity) && part.contains(';'), "&{part}");
    }
}

fn check_attributes(mut text: &str) {
    while !text.is_empty() {
        let (name, rest) = match text.find(['=', ' ']) {
            Some(i) if text.as_bytes()[i] == b'=' => (&text[..i], &text[i + 1..]),
            _ => {
                assert_eq!(text, "open", "an attribute without value");
                return;
            }
        };
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "-:".contains(c)), "{name}");
        assert!(!name.starts_with("on"), "an event handler");
        let value = rest.strip_prefix('"').unwrap_or_else(|| panic!("not quoted: {text}"));
        let end = value.find('"').unwrap();
        assert!(!value[..end].contains("NaN") && !value[..end].contains("inf"), "{name}={}", &value[..end]);
        check_entities(&value[..end]);
        text = value[end + 1..].trim_start();
    }
}

const HOSTILE: &str = "</title></style></pre><script>alert(1)</script><img src=x onerror=\"alert('2')\"> & \u{0}\u{1b}[2J \u{202e}";

fn hostile() -> String {
    HOSTILE.to_string()
}

/// A run in which every text is hostile and every number hard.
fn hostile_records() -> Vec<Record> {
    let dropped = || Dropped { reason: hostile(), documents: u64::MAX, bytes: u64::MAX };
    let mut records: Vec<Record> = vec![
        Run {
            name: hostile(),
            program: hostile(),
            command: vec![hostile()],
            seed: u64::MAX,
            started_unix_s: f64::NAN,
            started_at: hostile(),
            host: hostile(),
            cwd: hostile(),
            commit: Some(hostile()),
            device: hostile(),
            threads: 1,
            peak_flops_per_s: Some(f64::INFINITY),
            mfu_convention: Some(hostile()),
        }
        .into(),
        Model { name: hostile(), parameters: u64::MAX, flops_per_token: f64::NAN, ..Default::default() }
            .into(),
        Training { optimizer: hostile(), schedule: hostile(), ..Default::default() }.into(),
        Stage { name: hostile(), seconds: f64::NAN, ..Default::default() }.into(),
        Stage { name: hostile(), seconds: -1.0, ..Default::default() }.into(),
        Corpus {
            documents_kept: 1,
            dropped: vec![dropped()],
            sources: vec![CorpusSource { name: hostile(), bytes_kept: 1 << 60, ..Default::default() }],
            split_documents: [(hostile(), 1)].into(),
            ..Default::default()
        }
        .into(),
        Tokenizer { fingerprint: hostile(), pretokenizer: hostile(), ..Default::default() }.into(),
        Shards { split: hostile(), ..Default::default() }.into(),
        Baseline { name: hostile(), split: hostile(), bits_per_byte: f64::NAN, ..Default::default() }.into(),
        Baseline { name: hostile(), split: hostile(), bits_per_byte: 1e300, ..Default::default() }.into(),
        Sample { step: 1, prompt: hostile(), text: hostile().repeat(3), temperature: Some(f64::NAN) }.into(),
        Task {
            step: 1,
            task: hostile(),
            metric: hostile(),
            value: f64::NAN,
            stderr: Some(f64::INFINITY),
            ..Default::default()
        }
        .into(),
        Warning { step: Some(1), topic: hostile(), message: hostile() }.into(),
    ];
    let hard = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e308, -1e308, 5e-324, 1.0];
    for (i, x) in hard.iter().enumerate() {
        let step = i as u64;
        records.push(
            Step {
                step,
                tokens: step,
                loss: *x,
                experts: [("load_max".to_owned(), 1.5)].into(),
                losses: [("z_loss".to_string(), *x)].into(),
                loss_scale: None,
                lr: *x,
                grad_norm: *x,
                tokens_per_s: *x,
                mfu: Some(*x),
                memory_bytes: Some(u64::MAX),
                seconds: *x,
                data_seconds: Some(*x),
                data_bytes: Some(4096),
                data_hit_share: Some(*x),
                scored: Some(80),
                preferences: Default::default(),
                unscored_samples: Some(0),
                eta_s: Some(*x),
            }
            .into(),
        );
        let eval = Eval {
            step,
            split: hostile(),
            loss: *x,
            perplexity: *x,
            bits_per_byte: *x,
            ..Default::default()
        };
        records.push(Eval { tokens_scored: 1, bytes_scored: u64::MAX, ..eval }.into());
    }
    records.push(
        End {
            reason: EndReason::Failed,
            message: Some(hostile()),
            seconds: f64::NAN,
            ended_at: hostile(),
            ..Default::default()
        }
        .into(),
    );
    records
}

#[test]
fn hostile_text_and_numbers_give_a_well_formed_page_without_scripts() {
    let corpus = serde_json::json!({ "sources": [{ "name": HOSTILE, "licence": HOSTILE, "kept": { "bytes": u64::MAX } }, { "kept": { "bytes": u64::MAX } }, { "kept": { "bytes": -1 } }, 7],
        "remarks": [HOSTILE, 5], "emails_replaced": 3 });
    let page = render(&ReportInput {
        records: hostile_records(),
        corpus: Some(corpus),
        recipe: hostile(),
        ..ReportInput::default()
    });
    let names = well_formed(&page);
    for bad in ["script", "img", "a", "link", "iframe", "object", "foreignObject"] {
        assert!(!names.iter().any(|n| n == bad), "{bad}");
    }
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    // Nothing is fetched: the only addresses are names of XML vocabularies.
    assert!(
        page.match_indices("http").all(|(i, _)| page[i..].starts_with("http://www.w3.org/2000/svg")
            || page[i..].starts_with("http-equiv"))
    );
    assert!(!page.contains("url(") && !page.contains("@import"));
}

#[test]
fn any_part_of_a_run_can_be_missing() {
    well_formed(&render(&ReportInput::default()));
    let records = hostile_records();
    for i in 0..records.len() {
        well_formed(&render(&ReportInput { records: vec![records[i].clone()], ..Default::default() }));
        let mut without = records.clone();
        without.remove(i);
        well_formed(&render(&ReportInput { records: without, ..Default::default() }));
    }
    for corpus in [
        "null",
        "5",
        "[]",
        "{}",
        "{\"sources\": 5}",
        "{\"sources\": [{\"licence\": 5, \"kept\": {\"bytes\": 1}}], \"remarks\": {}}",
    ] {
        let corpus = Some(serde_json::from_str(corpus).unwrap());
        well_formed(&render(&ReportInput { corpus, ..Default::default() }));
    }
}

fn eval(bits_per_byte: f64) -> Record {
    Eval {
        step: 10,
        split: "validation".into(),
        loss: 1.5,
        perplexity: 4.48,
        bits_per_byte,
        tokens_scored: 100,
        bytes_scored: 300,
        ..Default::default()
    }
    .into()
}

#[test]
fn the_head_says_whether_the_baseline_is_beaten_and_by_how_much() {
    let baseline = Baseline {
        name: "byte 5-gram".into(),
        split: "validation".into(),
        bits_per_byte: 2.0,
        ..Default::default()
    };
    let page = |bits| {
        render(&ReportInput { records: vec![eval(bits), baseline.clone().into()], ..Default::default() })
    };
    assert!(page(1.5).contains("The model beats the baseline: on validation text it needs 1.5000 bits per byte, 25.0 % fewer than byte 5-gram (2.0000)."));
    assert!(page(2.5).contains("does not beat the baseline") && page(2.5).contains("25.0 % more than"));
    assert!(page(f64::NAN).contains("The model&#39;s loss is not finite"));
    assert!(page(1.5).contains(">1.5000</b><span>bits per byte</span>"));
    // No comparison across splits.
    let other = Baseline { split: "train".into(), ..baseline };
    assert!(
        !render(&ReportInput { records: vec![eval(1.5), other.into()], ..Default::default() })
            .contains("baseline")
    );
}

#[test]
fn the_baseline_in_the_loss_chart_is_in_nats_per_token() {
    let baseline = Baseline {
        name: "gram".into(),
        split: "validation".into(),
        bits_per_byte: 2.0,
        ..Default::default()
    };
    let page = render(&ReportInput { records: vec![eval(1.5), baseline.into()], ..Default::default() });
    // 2 bits per byte * ln 2 * 300 bytes / 100 tokens = 4.1589 nats per token.
    assert!(
        page.contains("gram: 4.159."),
        "the description of the loss chart names the height of the baseline"
    );
}

#[test]
fn a_page_of_a_long_run_stays_small() {
    let steps = (1..=200_000u64).map(|i| {
        let loss = 2.0 + 8.0 / (1.0 + i as f64 / 100.0) + (i as f64 * 1.7).sin() * 0.1;
        Step {
            step: i,
            tokens: i * 8192,
            loss,
            lr: 1e-3,
            grad_norm: loss,
            tokens_per_s: 1e4 + loss,
            seconds: 0.8,
            ..Default::default()
        }
        .into()
    });
    let page = render(&ReportInput { records: steps.collect(), ..Default::default() });
    well_formed(&page);
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
}

#[test]
fn the_z_loss_has_a_curve_where_there_is_one() {
    let step = |i: u64, z_loss: Option<f64>| {
        let losses = z_loss.map(|value| ("z_loss".to_string(), value)).into_iter().collect();
        Step { step: i, loss: 2.0, losses, ..Default::default() }.into()
    };
    let page = |z_loss: Option<f64>| {
        render(&ReportInput { records: (1..9).map(|i| step(i, z_loss)).collect(), ..Default::default() })
    };
    assert!(page(Some(1e-3)).contains("z-loss (log scale) over steps"));
    assert!(!page(None).contains("z-loss"));
}

#[test]
fn a_changed_recipe_is_a_line_in_the_curves_and_a_row_that_says_what_changed() {
    let step = |step: u64| Step { step, tokens: 128 * step, loss: 3.0, ..Step::default() }.into();
    let mut records: Vec<Record> = (1..=30).map(step).collect();
    let page = |records: &[Record]| render(&ReportInput { records: records.to_vec(), ..Default::default() });
    assert!(!page(&records).contains("recipe changed"));
    let key =
        bessemer_runlog::ChangedKey { key: "optim.lr".into(), before: "1e-3".into(), now: "2e-3".into() };
    let change = bessemer_runlog::Change {
        step: 10,
        tokens: 1280,
        keys: vec![key],
        effects: vec!["from step 11 on <b>".into()],
    };
    // Twice, as after a crash behind the change.
    records.extend([Record::from(change.clone()), change.into()]);
    let changed = page(&records);
    well_formed(&changed);
    assert!(changed.contains(">recipe changed</text>") && changed.contains("recipe changed at 10."));
    assert_eq!(changed.matches("changed after step 10").count(), 1);
    assert!(changed.contains("optim.lr 1e-3 -&gt; 2e-3; from step 11 on &lt;b&gt;"));
}

#[test]
fn the_same_records_give_the_same_page() {
    let input = ReportInput { records: hostile_records(), ..Default::default() };
    assert_eq!(render(&input), render(&input));
}

#[test]
fn writing_leaves_the_page_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.html");
    let input = ReportInput { recipe: "x = 1".into(), ..Default::default() };
    write(dir.path(), "report.html", &input).unwrap();
    write(dir.path(), "report.html", &input).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), render(&input));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let error = write(dir.path(), "none/report.html", &input).unwrap_err().to_string();
    assert!(error.contains("report.html"), "{error}");
}

fn series(points: &[[f64; 2]], mark: Mark) -> Series {
    Series { name: "s".into(), color: 7, mark, points: points.to_vec() }
}

#[test]
fn charts_of_nothing_one_point_and_broken_numbers_are_well_formed() {
    let nan = f64::NAN;
    let cases: [&[[f64; 2]]; 9] = [
        &[],
        &[[1.0, 1.0]],
        &[[0.0, 0.0]],
        &[[nan, 1.0]],
        &[[1.0, nan], [2.0, f64::INFINITY]],
        &[[1.0, 2.0], [2.0, nan], [3.0, 4.0]],
        &[[1.0, 5.0], [1.0, 5.0]],
        &[[1e308, -1e308], [-1e308, 1e308]],
        &[[3.0, 5e-324], [2.0, 1.0], [1.0, 1e300]],
    ];
    for points in cases {
        for mark in [Mark::Line, Mark::Faint, Mark::Dots] {
            for scale in [Scale::Linear, Scale::Log] {
                for y in [None, Some(nan), Some(3.0), Some(-3.0)] {
                    let rules = y.map(|y| Rule { name: "r".into(), color: 0, y }).into_iter().collect();
                    let chart = LineChart {
                        title: "t".into(),
                        x_scale: scale,
                        y_scale: scale,
                        from_zero: true,
                        series: vec![series(points, mark)],
                        rules,
                        ..Default::default()
                    };
                    well_formed(&chart.svg());
                    well_formed(&standalone(&chart.svg()));
                }
            }
        }
    }
    for value in [nan, -1.0, 0.0, 1e308, f64::INFINITY] {
        let bar = Bar { label: "x".repeat(500), value, note: "字".repeat(200) };
        well_formed(&BarChart { bars: vec![bar.clone(), bar], ..Default::default() }.svg());
    }
    well_formed(&BarChart::default().svg());
}

#[test]
fn a_gap_is_not_bridged_and_a_lone_value_is_a_dot() {
    let chart = |points: &[[f64; 2]]| {
        LineChart { series: vec![series(points, Mark::Line)], ..Default::default() }.svg()
    };
    let gap = chart(&[[0.0, 1.0], [1.0, 2.0], [2.0, f64::NAN], [3.0, 2.0], [4.0, 1.0]]);
    let path = gap.lines().find(|l| l.contains("class=\"line s7\"") && l.matches('M').count() == 2);
    assert!(path.is_some(), "{gap}");
    assert_eq!(chart(&[[0.0, 1.0]]).matches("<circle").count(), 1);
}

/// Holds `text` against a file under `tests/golden`. With `BESSEMER_GOLDEN=write` in the environment the file is
/// written instead; review the change as a diff.
fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var("BESSEMER_GOLDEN").as_deref() == Ok("write") {
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        golden == text,
        "{name} differs; if that is meant, run the test with BESSEMER_GOLDEN=write\n{text}"
    );
}

#[test]
fn pictures_are_those_of_the_golden_files() {
    let raw: Vec<[f64; 2]> = (0..40)
        .map(|i| [f64::from(i) * 25.0, 2.0 + 3.0 * (-f64::from(i) / 10.0).exp() + 0.1 * f64::from(i % 3)])
        .collect();
    let chart = LineChart {
        title: "Loss over steps".into(),
        x_label: "step".into(),
        y_label: "nats per token".into(),
        series: vec![
            Series { name: "train".into(), color: 0, mark: Mark::Faint, points: raw.clone() },
            Series {
                name: "validation".into(),
                color: 1,
                mark: Mark::Dots,
                points: raw.into_iter().step_by(10).collect(),
            },
        ],
        rules: vec![Rule { name: "byte 5-gram".into(), color: 5, y: 2.4 }],
        ..Default::default()
    };
    check("line.svg", &standalone(&chart.svg()));
    let bar = |label: &str, value: f64| Bar { label: label.into(), value, note: format!("{value}") };
    let bars = BarChart {
        title: "Dropped".into(),
        color: 1,
        bars: vec![bar("duplicate", 120.0), bar("too-large", 30.0), bar("binary", 0.0)],
    };
    check("bars.svg", &standalone(&bars.svg()));
    check("lanes.svg", &standalone(&pipeline().svg()));
}

/// Two ranks, two chunks, a pair done together, and the measured run below.
fn pipeline() -> Lanes {
    let cell = |label: &str, start: f64, end: f64, color, tone, part| Cell {
        start,
        end,
        color,
        tone,
        part,
        label: label.into(),
        short: label[1..].into(),
        tip: format!("{label}: {start} to {end}"),
    };
    let whole = |label: &str, start, end, color| cell(label, start, end, color, 0, Part::Whole);
    let lane = |label: &str, note: &str, cells| Lane { label: label.into(), note: note.into(), cells };
    let key =
        |color, letter: &str, name: &str| Key { color, tone: 0, letter: letter.into(), name: name.into() };
    let first = vec![
        whole("F0", 0.0, 1.0, 0),
        whole("F1", 1.0, 2.0, 0),
        whole("B0", 3.0, 5.0, 2),
        cell("F2", 6.0, 9.0, 0, 1, Part::Upper),
        cell("B1", 6.0, 9.0, 2, 0, Part::Lower),
    ];
    let second = vec![whole("F0", 1.0, 2.0, 0), whole("B0", 2.0, 3.0, 2), whole("W100", 3.0, 3.25, 4)];
    let simulated = vec![lane("rank 0", "peak 2", first.clone()), lane("rank 1", "peak 1", second)];
    Lanes {
        title: "by hand: 2 ranks".into(),
        x_label: "ms".into(),
        panels: vec![
            Panel { title: "simulated".into(), lanes: simulated },
            Panel { title: "measured".into(), lanes: vec![lane("rank 0", "", first)] },
        ],
        keys: vec![key(0, "F", "forward"), key(2, "B", "backward"), key(0, "", "paler: later chunks")],
    }
}

/// Where the text `label` of a picture begins, and the picture's width.
fn placed(svg: &str, label: &str) -> (f64, f64) {
    let number = |text: &str, after: &str| -> f64 {
        let text = text.split_once(after).unwrap_or_else(|| panic!("no {after:?} in {text}")).1;
        text.split(['"', ' ']).next().unwrap().parse().unwrap()
    };
    let line =
        svg.lines().find(|l| l.contains(&format!(">{label}<"))).unwrap_or_else(|| panic!("no {label}"));
    (number(line, " x=\""), number(svg, "viewBox=\"0 0 "))
}

#[test]
fn the_meanings_of_all_colours_are_inside_the_picture() {
    let mut picture = pipeline();
    let names =
        ["backward, input part", "backward, weight part", "reduce", "paler: later chunks", "optimizer step"];
    picture.keys.extend(names.map(|name| Key { color: 1, tone: 0, letter: "X".into(), name: name.into() }));
    let svg = picture.svg();
    for name in names {
        let label = format!("X {name}");
        let (x, width) = placed(&svg, &label);
        assert!(x + 7.0 * label.len() as f64 <= width + 7.0, "{label} at {x} of {width}");
    }
}

#[test]
fn a_step_with_passes_that_take_no_time_is_no_wider_than_the_page() {
    let cell = |start, end| Cell { start, end, ..Cell::default() };
    // One rank: forward and backward of milliseconds, then a reduction and a gather of microseconds.
    let cells =
        vec![cell(0.0, 15.0), cell(15.0, 48.0), cell(48.0, 48.002), cell(48.1, 48.9), cell(48.9, 48.901)];
    let panels = vec![Panel {
        title: String::new(),
        lanes: vec![Lane { label: "rank 0".into(), cells, note: String::new() }],
    }];
    let picture = Lanes { panels, ..Lanes::default() };
    assert_eq!(placed(&picture.svg(), "rank 0").1, 640.0);
    // Many equal passes would be wide, but not in the report.
    let cells = (0..500).map(|i| cell(f64::from(i), f64::from(i + 1))).collect();
    let panels = vec![Panel {
        title: String::new(),
        lanes: vec![Lane { label: "rank 0".into(), cells, note: String::new() }],
    }];
    let timeline = StepTimeline { picture: Some(Lanes { panels, ..Lanes::default() }), notes: Vec::new() };
    assert!(placed(&timeline.picture.clone().unwrap().svg(), "rank 0").1 > 5000.0);
    let page = render(&ReportInput { timeline: Some(timeline), ..ReportInput::default() });
    assert_eq!(placed(&page, "rank 0").1, 1100.0);
    assert!(!page.contains("style=\"min-width"));
}

#[test]
fn a_picture_of_its_own_has_a_background_and_keeps_its_colours_to_itself() {
    let svg = standalone(&pipeline().svg());
    assert!(svg.contains("svg.plot{background:var(--page)}") && svg.contains("prefers-color-scheme:dark"));
    assert!(!svg.contains(":root"), "its variables would become those of a page that takes it in");
}

#[test]
fn the_time_of_the_stages_includes_training() {
    let stage = |name: &str, seconds| Stage { name: name.into(), seconds, ..Stage::default() };
    let step = |step| Step { step, seconds: 2.0, ..Step::default() };
    let records = vec![
        stage("corpus", 1.0).into(),
        Run::default().into(),
        step(1).into(),
        step(2).into(),
        Eval { seconds: Some(3.0), ..Eval::default() }.into(),
        Save { seconds: 0.5, ..Save::default() }.into(),
        End { seconds: 10.0, ..End::default() }.into(),
    ];
    let page = render(&ReportInput { records, ..ReportInput::default() });
    for bar in [
        "corpus: 1.0 s (10.0 %)",
        "training steps: 4.0 s (40.0 %)",
        "evaluation: 3.0 s (30.0 %)",
        "checkpoints: 500.0 ms (5.0 %)",
        "everything else: 1.5 s (15.0 %)",
    ] {
        assert!(page.contains(bar), "{bar}\n{page}");
    }
}

#[test]
fn lanes_in_a_terminal_are_as_wide_as_it_is() {
    let text = lanes(&pipeline(), 61, false);
    let wanted = "\
simulated
rank 0 │F0───F1───·····B0────────·····F2──────B1─────│ peak 2
rank 1 │·····F0───B0───W·····························│ peak 1
measured
rank 0 │F0───F1───·····B0────────·····F2──────B1─────│
       0                                          9 ms
       F forward   B backward
";
    assert_eq!(text, wanted);
    for width in [0, 30, 40, 80, 200] {
        let text = lanes(&pipeline(), width, false);
        // However narrow, twenty columns for the lanes themselves and the rest of the line.
        assert!(text.lines().take(5).all(|l| l.chars().count() <= width.max(38)), "{width}\n{text}");
    }
    // Colours are closed before the lane ends.
    let coloured = lanes(&pipeline(), 61, true);
    assert!(coloured.contains("\u{1b}[48;5;27;38;5;15mF0   F1   \u{1b}[0m·····"), "{coloured:?}");
    assert!(
        coloured.lines().filter(|l| l.contains('│')).all(|l| l.contains("\u{1b}[0m│") || l.contains("·│"))
    );
    let plain = lanes(&pipeline(), 60, false);
    assert!(!plain.contains('\u{1b}'));
}

#[test]
fn lanes_of_anything_are_well_formed() {
    let cell = |start, end| Cell {
        start,
        end,
        label: hostile(),
        short: hostile(),
        tip: hostile(),
        ..Cell::default()
    };
    for (start, end) in
        [(0.0, 0.0), (f64::NAN, 1.0), (-1e300, 1e300), (2.0, 1.0), (0.0, f64::INFINITY), (1e-300, 2e-300)]
    {
        let lane = Lane { label: hostile(), note: hostile(), cells: vec![cell(start, end), cell(0.0, 1.0)] };
        let picture = Lanes {
            title: hostile(),
            x_label: hostile(),
            panels: vec![Panel { title: hostile(), lanes: vec![lane, Lane::default()] }],
            keys: vec![Key { color: 99, tone: 99, letter: hostile(), name: hostile() }],
        };
        let names = well_formed(&picture.svg());
        assert!(!names.contains(&"script".to_string()));
        assert!(!lanes(&picture, 80, false).contains('\u{1b}'));
    }
    well_formed(&Lanes::default().svg());
    lanes(&Lanes::default(), 80, true);
}

#[test]
fn tasks_show_their_last_score_with_its_interval_beside_the_first() {
    let task = |step, value| -> Record {
        let stderr = Some(0.05);
        let (task, metric) = ("logic".into(), "acc".into());
        Task { step, task, metric, value, stderr, larger_is_better: true, documents: 200, ..Task::default() }
            .into()
    };
    let page = render(&ReportInput { records: vec![task(10, 0.5), task(20, 0.7)], ..Default::default() });
    for part in ["<h2>Tasks</h2>", "acc ↑", "0.7000 ± 0.0980", "0.5000 at step 10"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!render(&ReportInput::default()).contains("<h2>Tasks</h2>"));
    let of = |task: &str, metric: &str, value, worst: Option<&str>| -> Record {
        let worst = worst.map(str::to_owned);
        Task { step: 20, task: task.into(), metric: metric.into(), value, worst, ..Task::default() }.into()
    };
    let records = vec![
        of("bias type=age", "acc", 0.75, None),
        of("bias type=<race>", "acc", 0.5, None),
        of("bias by type", "acc gap", 0.25, Some("<race>")),
    ];
    let page = render(&ReportInput { records, ..Default::default() });
    let wanted = "acc of bias by type: worst group &lt;race&gt; with 0.5000, largest gap 0.2500";
    assert!(page.contains(wanted), "{page}");
}
