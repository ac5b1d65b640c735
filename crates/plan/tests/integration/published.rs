//! Predictions of published steps that were not fitted. Bounds are those of docs/planner.md, with a little room.

use bessemer_plan::{
    Band, Calibration, Machine, Measurement, Table, Validation, choose, choose_at_most, errors, read_table,
    validate,
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
    read_table(text, &Machine::named(machine).unwrap(), only).unwrap()
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
    assert!(validation.errors.mean < 0.08 && validation.errors.median < 0.035, "{:?}", validation.errors);
    assert!(validation.null > 0.15, "a constant rate is no rival: {}", validation.null);
    assert!(validation.in_band * 5 > validation.rows.len() * 4, "{}", validation.in_band);
    let count = validation.groups.len() as f64;
    let tau = validation.groups.iter().map(|group| group.tau).sum::<f64>() / count;
    let regret = validation.groups.iter().map(|group| group.regret).sum::<f64>() / count;
    assert!(count == 3.0 && tau > 0.7 && regret < 0.03, "tau {tau}, regret {regret}");
}

#[test]
fn one_node_of_a100_from_sixteen_rows() {
    let steps = table(SINGLE);
    let validation = predict(&steps, &steps);
    assert_eq!(validation.rows.len(), 960 - 16);
    assert!(validation.errors.mean < 0.05 && validation.null > 0.4, "{:?}", validation.errors);
    assert!(validation.in_band * 5 > validation.rows.len() * 4, "{}", validation.in_band);
}

#[test]
fn papers_from_rows_of_another_cluster() {
    let sample = table(VTRAIN);
    let only = |text: &str, keep: fn(&Measurement) -> bool| -> Vec<Measurement> {
        table(text).into_iter().filter(keep).collect()
    };
    for (name, steps, mean, shape) in [
        ("Korthikanti", table(KORTHIKANTI), 0.04, 0.02),
        ("SC21 table 1", table(SC21_1), 0.05, 0.03),
        ("SC21 table 2, pipelines", only(SC21_2, |step| step.job.layout.tensor > 1), 0.065, 0.03),
        ("MegaScale, Megatron-LM", only(MEGASCALE, |step| !step.job.layout.overlap), 0.13, 0.035),
        ("MegaScale", only(MEGASCALE, |step| step.job.layout.overlap), 0.1, 0.035),
        ("MT-NLG", table(MT_NLG), 0.3, 0.02),
    ] {
        let errors = predict(&steps, &sample).errors;
        assert!(errors.mean < mean && errors.shape < shape, "{name}: {errors:?}");
    }
}

#[test]
fn fsdp_from_sixteen_rows_of_each_machine() {
    for (machine, bound) in [("a100-40gb", 0.035), ("a100-80gb", 0.035), ("h100-80gb", 0.038)] {
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
