//! Predictions of published steps that were not fitted. Bounds are those of docs/planner.md, with a small margin.

use bessemer_plan::{
    Band, Calibration, GivenColumns, Group, LeftOutBy, Machine, Measurement, Table, TableReader, Validation,
    choose, choose_at_most, errors, leave_groups_out, read_table, validate,
};

const VTRAIN: &str = include_str!("../tables/vtrain_multi.csv");
const SINGLE: &str = include_str!("../tables/vtrain_single.csv");
const FSDP: &str = include_str!("../tables/llm_foundry_fsdp.csv");
const B200: &str = include_str!("../tables/simumax_b200.csv");
const SC21_1: &str = include_str!("../tables/sc21_table1.csv");
const SC21_2: &str = include_str!("../tables/sc21_table2.csv");
const KORTHIKANTI: &str = include_str!("../tables/korthikanti_2022.csv");
const MEGASCALE: &str = include_str!("../tables/megascale.csv");
const MT_NLG: &str = include_str!("../tables/mt_nlg.csv");

fn read(text: &str, machine: &str, only: bool) -> Table {
    let machine = Machine::named(machine).unwrap();
    let given = GivenColumns::default();
    read_table(text, &TableReader { machine: Some(&machine), only, given: &given }).unwrap()
}

fn table(text: &str) -> Vec<Measurement> {
    read(text, "a100-80gb", false).steps
}

/// Predicts a table from at most 16 rows of another, or of the same.
fn predict(table: &[Measurement], sample: &[Measurement]) -> Validation {
    let fitted = choose(sample);
    validate(table, &fitted, &Calibration::of(&fitted)).unwrap()
}

#[test]
fn clusters_of_a100_from_sixteen_rows() {
    let steps = table(VTRAIN);
    let validation = predict(&steps, &steps);
    assert_eq!(validation.rows.len(), 59 - 16);
    assert!(validation.errors.mean < 0.057 && validation.errors.median < 0.025, "{:?}", validation.errors);
    assert!(validation.null > 0.15, "a constant rate is no rival: {}", validation.null);
    assert!(validation.in_band * 5 > validation.rows.len() * 4, "{}", validation.in_band);
    let count = validation.groups.len() as f64;
    let tau = validation.groups.iter().map(|group| group.tau).sum::<f64>() / count;
    let regret = validation.groups.iter().map(|group| group.regret).sum::<f64>() / count;
    assert!(count == 3.0 && tau > 0.75 && regret < 0.02, "tau {tau}, regret {regret}");
    // Each tensor degree of the two larger models is among the fitted rows, but for rows 34 and 74, the only ones of their degree.
    let degree = |step: &Measurement| (step.job.model.width, step.job.layout.tensor);
    for wanted in
        steps.iter().filter(|step| step.job.model.width > 3072 && ![34, 74].contains(&step.row)).map(degree)
    {
        assert!(choose(&steps).iter().any(|step| degree(step) == wanted), "{wanted:?}");
    }
}

/// Each model and each tensor degree in turn is predicted from the other rows. Numbers of nodes leave out the rows of models again.
#[test]
fn clusters_of_a100_by_groups_that_are_left_out() {
    let steps = table(VTRAIN);
    let groups = leave_groups_out(&steps, 16);
    assert_eq!(groups.len(), 3 + 5);
    assert!(groups.iter().all(|group| !matches!(group.by, LeftOutBy::Nodes(_))));
    for group in &groups {
        assert!(group.fitted.len() == 16 && group.errors.mean < 0.16, "{}: {:?}", group.by, group.errors);
        let left_out = |row: &usize| match group.by {
            LeftOutBy::Tensor(ranks) => {
                steps.iter().any(|step| step.row == *row && step.job.layout.tensor == ranks)
            }
            LeftOutBy::Model([width, _]) => {
                steps.iter().any(|step| step.row == *row && step.job.model.width == width)
            }
            LeftOutBy::Nodes(_) => true,
        };
        assert!(!group.fitted.iter().any(left_out), "{}", group.by);
    }
    let choices: Vec<&Group> = groups.iter().flat_map(|group| &group.jobs).collect();
    let mean =
        |of: fn(&Group) -> f64| choices.iter().map(|group| of(group)).sum::<f64>() / choices.len() as f64;
    let worst = choices.iter().map(|group| group.regret).fold(0.0, f64::max);
    let held = choices.iter().filter(|group| group.regret <= group.expected.high).count();
    assert!(mean(|group| group.regret) < 0.03 && worst < 0.105 && mean(|group| group.tau) > 0.72);
    assert!(held * 10 >= choices.len() * 7, "{held} of {}", choices.len());
}

/// The failure of a choice of rows that covers no layout of two tensor ranks of the largest model: they were predicted fastest, and took
/// half as long again.
#[test]
fn two_tensor_ranks_of_the_largest_model_are_not_chosen() {
    let steps = table(VTRAIN);
    let calibration = Calibration::without_band(&choose(&steps));
    let best = steps.iter().find(|step| step.row == 43).unwrap();
    let predicted = |tensor: usize, pipeline: usize, micro_batch: usize| {
        let mut job = best.job;
        job.layout.tensor = tensor;
        job.layout.pipeline = pipeline;
        job.layout.data = 512 / tensor / pipeline;
        job.layout.micro_batch = micro_batch;
        job.check().unwrap();
        calibration.predict(&job, &best.machine).total
    };
    let two =
        [(2, 2), (4, 2), (4, 3), (8, 2), (8, 3), (8, 4)].map(|(stages, batch)| predicted(2, stages, batch));
    assert!(two.iter().all(|time| *time > 1.05 * predicted(4, 4, 2)), "{two:?}");
}

#[test]
fn one_node_of_a100_from_sixteen_rows() {
    let steps = table(SINGLE);
    let validation = predict(&steps, &steps);
    assert_eq!(validation.rows.len(), 960 - 16);
    assert!(validation.errors.mean < 0.055 && validation.null > 0.4, "{:?}", validation.errors);
    assert!(validation.in_band * 5 > validation.rows.len() * 4, "{}", validation.in_band);
}

#[test]
fn papers_from_rows_of_another_cluster() {
    let sample = table(VTRAIN);
    let only = |text: &str, keep: fn(&Measurement) -> bool| -> Vec<Measurement> {
        table(text).into_iter().filter(keep).collect()
    };
    for (name, steps, mean, shape) in [
        ("Korthikanti", table(KORTHIKANTI), 0.06, 0.056),
        ("SC21 table 1", table(SC21_1), 0.04, 0.035),
        ("SC21 table 2, pipelines", only(SC21_2, |step| step.job.layout.tensor > 1), 0.025, 0.02),
        ("MegaScale, Megatron-LM", only(MEGASCALE, |step| !step.job.layout.overlap), 0.035, 0.02),
        ("MegaScale", only(MEGASCALE, |step| step.job.layout.overlap), 0.035, 0.035),
        ("MT-NLG", table(MT_NLG), 0.21, 0.02),
    ] {
        let errors = predict(&steps, &sample).errors;
        assert!(errors.mean < mean && errors.shape < shape, "{name}: {errors:?}");
    }
}

#[test]
fn fsdp_from_sixteen_rows_of_each_machine() {
    for (machine, bound) in [("a100-40gb", 0.027), ("a100-80gb", 0.037), ("h100-80gb", 0.03)] {
        let steps = read(FSDP, machine, true).steps;
        let validation = predict(&steps, &steps);
        assert!(validation.errors.mean < bound, "{machine}: {:?}", validation.errors);
        assert!(
            validation.roomy.is_none_or(|errors| errors.mean < 0.035),
            "{machine}: {:?}",
            validation.roomy
        );
        assert!(validation.null > 0.1, "{machine}: {}", validation.null);
    }
}

#[test]
fn b200_from_eight_rows() {
    let table = read(B200, "b200-180gb", false);
    let fitted = choose_at_most(&table.steps, 8);
    let validation = validate(&table.steps, &fitted, &Calibration::of(&fitted)).unwrap();
    assert_eq!((validation.rows.len(), fitted.len()), (13, 8));
    assert!(validation.errors.mean < 0.05 && validation.errors.shape < 0.03, "{:?}", validation.errors);
    assert_eq!(table.left_out.len(), 8, "{:?}", table.left_out);
    assert!(table.left_out.iter().all(|row| row.reason.contains("experts")));
    // Nothing of the memory is fitted.
    let ratios: Vec<f64> = table.memory.iter().map(|row| row.expected / row.measured).collect();
    let memory = errors(&ratios).unwrap();
    assert!(ratios.len() == 21 && memory.mean < 0.02 && memory.max < 0.04, "{memory:?}");
}

#[test]
fn the_band_of_other_stacks_is_that_of_the_tables() {
    let tables = [
        table(VTRAIN),
        table(SINGLE),
        read(FSDP, "a100-40gb", true).steps,
        read(FSDP, "a100-80gb", true).steps,
        read(FSDP, "h100-80gb", true).steps,
        read(B200, "b200-180gb", false).steps,
        table(SC21_1),
        table(SC21_2),
        table(KORTHIKANTI),
        table(MEGASCALE),
        table(MT_NLG),
    ];
    // Each table counts as much as every other one.
    let none = Calibration::none();
    let mut ratios: Vec<(f64, f64)> = tables
        .iter()
        .flat_map(|table| {
            let weight = 1.0 / table.len() as f64;
            table.iter().map(move |step| (step, weight))
        })
        .map(|(step, weight)| (step.seconds / none.predict(&step.job, &step.machine).total, weight))
        .collect();
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let quantile = |share: f64| {
        let mut sum = 0.0;
        ratios
            .iter()
            .find(|(_, weight)| {
                sum += weight;
                sum >= share * tables.len() as f64
            })
            .unwrap()
            .0
    };
    let (low, high) = (quantile(0.1), quantile(0.9));
    assert!((low - Band::OTHERS.low).abs() < 0.01 && (high - Band::OTHERS.high).abs() < 0.01, "{low} {high}");
}

/// Sixteen rows (or so many) in an order that a seed shuffles; rows near the limit of memory are not among them.
fn drawn(table: &[Measurement], most: usize, seed: u64) -> Vec<Measurement> {
    let mut rows: Vec<Measurement> = table.iter().filter(|step| !step.crowded()).cloned().collect();
    let mut state = seed;
    for last in (1..rows.len()).rev() {
        // Knuth's MMIX generator.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        rows.swap(last, (state >> 33) as usize % (last + 1));
    }
    rows.truncate(most);
    rows
}

/// Tables that are predicted from rows of their own, and how many of these.
fn of_own() -> [(&'static str, Vec<Measurement>, usize); 6] {
    [
        ("clusters", table(VTRAIN), 16),
        ("one node", table(SINGLE), 16),
        ("FSDP A100-40", read(FSDP, "a100-40gb", true).steps, 16),
        ("FSDP A100-80", read(FSDP, "a100-80gb", true).steps, 16),
        ("FSDP H100", read(FSDP, "h100-80gb", true).steps, 16),
        ("B200", read(B200, "b200-180gb", false).steps, 8),
    ]
}

/// Tables of papers, predicted from those of clusters; the last one from that of FSDP on H100.
fn of_papers() -> [(&'static str, Vec<Measurement>); 6] {
    [
        ("Korthikanti", table(KORTHIKANTI)),
        ("SC21 table 1", table(SC21_1)),
        ("SC21 table 2", table(SC21_2)),
        ("MegaScale", table(MEGASCALE)),
        ("MT-NLG", table(MT_NLG)),
        ("Core H100", read(include_str!("../tables/megatron_core_h100.csv"), "h100-80gb", false).steps),
    ]
}

fn percent(value: f64) -> f64 {
    100.0 * value
}

/// Errors of docs/planner.md, and those of twelve draws of rows: what a change of the model is judged by.
#[test]
#[ignore = "prints figures"]
fn figures_of_own_rows() {
    for (name, steps, most) in &of_own() {
        let fitted = choose_at_most(steps, *most);
        let line = |fitted: &[Measurement]| {
            let found = validate(steps, fitted, &Calibration::without_band(fitted)).unwrap();
            let count = found.groups.len().max(1) as f64;
            let mean =
                |of: fn(&bessemer_plan::Group) -> f64| found.groups.iter().map(of).sum::<f64>() / count;
            (found.errors, mean(|group| group.regret), mean(|group| group.tau))
        };
        let (errors, regret, tau) = line(&fitted);
        let draws: Vec<_> = (0..12).map(|seed| line(&drawn(steps, *most, seed))).collect();
        let mean =
            |of: &dyn Fn(&(bessemer_plan::Errors, f64, f64)) -> f64| draws.iter().map(of).sum::<f64>() / 12.0;
        println!(
            "{name:<14} mean {:5.2} median {:5.2} shape {:5.2} bias {:5.2} regret {:5.2} tau {tau:.3} | draws: mean {:5.2} median {:5.2} regret {:5.2} tau {:.3}",
            percent(errors.mean),
            percent(errors.median),
            percent(errors.shape),
            percent(errors.bias),
            percent(regret),
            percent(mean(&|draw| draw.0.mean)),
            percent(mean(&|draw| draw.0.median)),
            percent(mean(&|draw| draw.1)),
            mean(&|draw| draw.2),
        );
    }
}

/// Errors of the papers' tables, with those of each row.
#[test]
#[ignore = "prints figures"]
fn figures_of_papers() {
    let of_own = of_own();
    for (name, steps) in &of_papers() {
        let sample = if *name == "Core H100" { &of_own[4].1 } else { &of_own[0].1 };
        let calibration = Calibration::without_band(&choose(sample));
        let mut parts = [Vec::new(), Vec::new()];
        let mut rows = String::new();
        for step in steps {
            let predicted = calibration.predict(&step.job, &step.machine).total;
            let other = match *name {
                "SC21 table 2" => step.job.layout.tensor == 1,
                "MegaScale" => step.job.layout.overlap,
                _ => false,
            };
            parts[usize::from(other)].push(predicted / step.seconds);
            rows += &format!(" {}:{:+.1}", step.row, percent(predicted / step.seconds - 1.0));
        }
        for ratios in &parts {
            if let Some(errors) = errors(ratios) {
                println!(
                    "{name:<14} mean {:5.2} shape {:5.2} |{rows}",
                    percent(errors.mean),
                    percent(errors.shape)
                );
            }
        }
    }
}

/// Constants, and each row by part.
#[test]
#[ignore = "prints figures"]
fn figures_by_part() {
    let (of_own, papers) = (of_own(), of_papers());
    for (name, sample, steps) in [
        ("clusters", &of_own[0].1, &of_own[0].1),
        ("H100", &of_own[4].1, &of_own[4].1),
        ("SC21 1", &of_own[0].1, &papers[1].1),
        ("SC21 2", &of_own[0].1, &papers[2].1),
        ("MegaScale", &of_own[0].1, &papers[3].1),
        ("Core", &of_own[4].1, &papers[5].1),
    ] {
        let calibration = Calibration::without_band(&choose(sample));
        println!("{name}: {:?}", calibration.efficiency);
        for step in steps {
            let layout = step.job.layout;
            let time = calibration.predict(&step.job, &step.machine);
            println!(
                "row {:>3}{} {}x{} s{} n{} t{} d{} p{} b{:<2} m{:<3} measured {:7.3} predicted {:+6.1} % | compute {:.2} tensor {:.2} messages {:.2} bubble {:.2} last {:.2} data {:.2} optimizer {:.2}",
                step.row,
                if calibration.fitted.contains(&step.row) { "*" } else { " " },
                step.job.model.layers,
                step.job.model.width,
                step.job.seq,
                step.job.devices(),
                layout.tensor,
                layout.data,
                layout.pipeline,
                layout.micro_batch,
                step.job.micro_batches(),
                step.seconds,
                percent(time.total / step.seconds - 1.0),
                time.compute,
                time.tensor,
                time.messages,
                time.bubble,
                time.last_stage,
                time.data,
                time.optimizer
            );
        }
    }
}
