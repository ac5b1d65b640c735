//! Predictions of published steps that were not fitted. Bounds are those of docs/planner.md.

use bessemer_plan::{Calibration, Machine, Measurement, Validation, choose, read_table, validate};

const VTRAIN: &str = include_str!("../tables/vtrain_multi.csv");

fn table(text: &str, machine: &str, only: bool) -> Vec<Measurement> {
    read_table(text, &Machine::named(machine).unwrap(), only).unwrap().steps
}

/// Predicts a table from at most 16 rows of another, or of the same.
fn predict(table: &[Measurement], sample: &[Measurement]) -> Validation {
    let fitted = choose(sample);
    validate(table, &fitted, &Calibration::of(&fitted)).unwrap()
}

#[test]
fn clusters_of_a100_from_sixteen_rows() {
    let steps = table(VTRAIN, "a100-80gb", false);
    let validation = predict(&steps, &steps);
    assert_eq!(validation.rows.len(), 59 - 16);
    assert!(validation.errors.mean < 0.08 && validation.errors.median < 0.035, "{:?}", validation.errors);
    assert!(validation.null > 0.15, "a constant rate is no rival: {}", validation.null);
    let count = validation.groups.len() as f64;
    let tau = validation.groups.iter().map(|group| group.tau).sum::<f64>() / count;
    let regret = validation.groups.iter().map(|group| group.regret).sum::<f64>() / count;
    assert!(count == 3.0 && tau > 0.7 && regret < 0.03, "tau {tau}, regret {regret}");
}

#[test]
fn megatron_s_papers_from_rows_of_another_cluster() {
    let sample = table(VTRAIN, "a100-80gb", false);
    for (text, bound) in [
        (include_str!("../tables/korthikanti_2022.csv"), 0.04),
        (include_str!("../tables/sc21_table1.csv"), 0.05),
    ] {
        let errors = predict(&table(text, "a100-80gb", false), &sample).errors;
        assert!(errors.mean < bound, "{errors:?}");
    }
    let steps: Vec<Measurement> = table(include_str!("../tables/sc21_table2.csv"), "a100-80gb", false);
    let pipelines: Vec<Measurement> = steps.into_iter().filter(|step| step.job.layout.tensor > 1).collect();
    let errors = predict(&pipelines, &sample).errors;
    assert!(errors.mean < 0.045, "{errors:?}");
}

#[test]
fn fsdp_from_sixteen_rows_of_each_machine() {
    for (machine, bound) in [("a100-40gb", 0.035), ("a100-80gb", 0.045), ("h100-80gb", 0.035)] {
        let steps = table(include_str!("../tables/llm_foundry_fsdp.csv"), machine, true);
        let validation = predict(&steps, &steps);
        assert!(validation.errors.mean < bound, "{machine}: {:?}", validation.errors);
        assert!(validation.null > 0.1, "{machine}: {}", validation.null);
    }
}
