//! Constants from measured steps.

use crate::job;
use bessemer_plan::{
    Band, Calibration, Efficiency, Job, Layout, MOST_FITTED, Machine, Measurement, choose, choose_at_most,
    step_time,
};

/// Steps of a stack with these constants, in many layouts.
fn steps(efficiency: &Efficiency) -> Vec<Measurement> {
    let machine = Machine { memory: 1e15, ..Machine::named("a100-80gb").unwrap() };
    let mut steps = Vec::new();
    for (tensor, pipeline) in [(1, 1), (2, 2), (4, 1), (8, 1), (8, 4), (4, 8), (16, 1)] {
        for micro_batch in [1, 2, 4, 8] {
            let layout =
                Layout { tensor, pipeline, data: 256 / tensor / pipeline, micro_batch, ..job().layout };
            let job = Job { layout, global_batch: 2048, ..job() };
            let seconds = step_time(&job, &machine, efficiency).total;
            steps.push(Measurement { row: steps.len() + 1, job, machine: machine.clone(), seconds });
        }
    }
    steps
}

fn stack() -> Efficiency {
    Efficiency {
        product_share: 0.6,
        all_reduce_factor: 1.6,
        data_network: 0.1,
        pipeline_network: 0.5,
        tensor_network: 0.15,
        step_seconds: 0.2,
        stream_bytes: 40.0,
        ..Efficiency::default()
    }
}

#[test]
fn a_stack_is_found_from_sixteen_of_its_steps() {
    let table = steps(&stack());
    let fitted = choose(&table);
    assert_eq!(fitted.len(), MOST_FITTED);
    let calibration = Calibration::of(&fitted);
    for step in table.iter().filter(|step| !fitted.contains(step)) {
        let before = step_time(&step.job, &step.machine, &Efficiency::default()).total / step.seconds - 1.0;
        let after = calibration.predict(&step.job, &step.machine).total / step.seconds - 1.0;
        assert!(after.abs() < 0.02, "row {}: {after} (before {before})", step.row);
    }
    // A row that alone tells of a constant, as that of 16 tensor-parallel ranks, cannot be told from the others.
    let near = Calibration::leave_one_out(&fitted).iter().filter(|error| error.abs() < 0.05).count();
    assert!(near >= 13, "{near}");
}

#[test]
fn a_stack_that_is_known_stays_as_it_is() {
    let table = steps(&Efficiency::default());
    assert_eq!(Calibration::without_band(&table).efficiency, Efficiency::default());
}

#[test]
fn one_wild_measurement_changes_little() {
    let mut table = steps(&stack());
    let clean = Calibration::of(&table);
    table[5].seconds *= 3.0;
    let wild = Calibration::of(&table);
    let (a, b) = (clean.efficiency.product_share, wild.efficiency.product_share);
    assert!((a / b - 1.0).abs() < 0.02, "{a} {b}");
}

#[test]
fn the_choice_does_not_look_at_times_and_is_always_the_same() {
    let table = steps(&stack());
    let rows = |table: &[Measurement]| choose(table).iter().map(|step| step.row).collect::<Vec<_>>();
    let mut slow = table.clone();
    for step in &mut slow {
        step.seconds *= step.row as f64;
    }
    assert_eq!(rows(&table), rows(&slow));
    assert_eq!(rows(&table[..5]), [1, 2, 3, 4, 5]);
    assert!(choose(&[]).is_empty());
}

#[test]
fn a_band_comes_from_the_fitted_steps_and_holds_the_others() {
    let mut table = steps(&Efficiency::default());
    // Noise that no constant explains, always the same.
    for step in &mut table {
        step.seconds *= 1.0 + 0.05 * (step.row as f64 * 2.4).sin();
    }
    let fitted = choose(&table);
    let calibration = Calibration::of(&fitted);
    let band = calibration.band;
    assert!(band.steps == fitted.len() && band.low < 1.0 && band.high > 1.0, "{band:?}");
    assert!(band.low > 0.8 && band.high < 1.25, "{band:?}");
    let others: Vec<&Measurement> = table.iter().filter(|step| !fitted.contains(step)).collect();
    let held = others
        .iter()
        .filter(|step| band.holds(calibration.predict(&step.job, &step.machine).total, step.seconds));
    assert!(held.count() * 10 > others.len() * 6, "{band:?}");
    // Too few steps say nothing.
    assert_eq!(Calibration::of(&fitted[..3]).band, Band::OTHERS);
    assert_eq!(Calibration::none().band, Band::OTHERS);
}

#[test]
fn steps_near_the_limit_of_memory_are_not_chosen() {
    let mut table = steps(&stack());
    for step in &mut table {
        step.machine.memory = 1e9;
    }
    assert!(choose(&table).is_empty());
    for step in &mut table {
        step.machine.memory = 1e15;
    }
    assert_eq!(choose_at_most(&table, 3).len(), 3);
}

#[test]
fn nothing_fitted_predicts_by_the_first_constants() {
    let step = &steps(&stack())[3];
    let predicted = Calibration::none().predict(&step.job, &step.machine);
    assert_eq!(predicted, step_time(&step.job, &step.machine, &Efficiency::default()));
}

/// A design of experiments: every tensor degree and both numbers of stages of each are near a chosen step, also with half as many steps.
#[test]
fn chosen_steps_cover_the_degrees() {
    let table = steps(&stack());
    for most in [MOST_FITTED, 7] {
        let chosen = choose_at_most(&table, most);
        let mut degrees: Vec<usize> = chosen.iter().map(|step| step.job.layout.tensor).collect();
        degrees.sort_unstable();
        degrees.dedup();
        assert_eq!(degrees, [1, 2, 4, 8, 16], "{most}");
    }
}

/// Layouts of one degree that no fitted step has: their times are less certain, and a choice among them may cost more.
#[test]
fn a_choice_in_a_degree_that_was_not_fitted_may_cost_more() {
    let table = steps(&stack());
    let regret = |fitted: &[Measurement]| {
        let calibration = Calibration::without_band(fitted);
        let layouts: Vec<(&Job, &Machine, f64)> = table
            .iter()
            .map(|step| (&step.job, &step.machine, calibration.predict(&step.job, &step.machine).total))
            .collect();
        let chosen = (0..layouts.len()).min_by(|a, b| layouts[*a].2.total_cmp(&layouts[*b].2)).unwrap();
        let regret = calibration.regret(&layouts, chosen).unwrap();
        assert!(0.0 <= regret.low && regret.low <= regret.expected && regret.expected <= regret.high);
        assert!((0.0..=1.0).contains(&regret.fastest) && regret.layouts == layouts.len());
        assert_eq!(Some(regret), calibration.regret(&layouts, chosen), "draws are always the same");
        assert_eq!(calibration.regret(&layouts[..1], 0), None);
        // A slow layout costs at least what it is expected to be slower.
        let slow = (0..layouts.len()).max_by(|a, b| layouts[*a].2.total_cmp(&layouts[*b].2)).unwrap();
        assert!(calibration.regret(&layouts, slow).unwrap().low > 0.3);
        regret
    };
    let all = regret(&choose(&table));
    let without: Vec<Measurement> =
        table.iter().filter(|step| step.job.layout.tensor <= 2).cloned().collect();
    let few = regret(&choose(&without));
    assert!(few.high > 1.5 * all.high && few.expected > 1.5 * all.expected, "{few:?} {all:?}");
}
