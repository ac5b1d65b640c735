//! Bubbles filled: by hand, for any program and units, and in the setting of the PipeFisher paper.

use bessemer_schedule::{Fill, Filler, Instruction, Kind, Limits, Place, Program, Shape, generate, verify};
use bessemer_sim::fill::{
    FillOptions, Filled, KfacFactor, KfacStage, Need, Operands, Unit, When, curvature_number, fill,
    kfac_units, verify_fill,
};
use bessemer_sim::{Costs, PassTimes, SimError, Step, simulate};
use proptest::prelude::*;
use std::collections::BTreeMap;

const UP: Place = Place { rank: 1, chunk: 0 };
const DOWN: Place = Place { rank: 0, chunk: 0 };

/// Two ranks, two micro-batches, all forwards, then all backwards; F 1, B 2. Rank 0 waits from 2 to 5, rank 1 from 0 to 1
/// and from 7 to the end at 9.
fn two_ranks() -> (Program, Costs) {
    let program = generate(Kind::GPipe, &Shape::new(2, 2)).unwrap();
    let costs = Costs::per_rank(&program, &PassTimes::new(1.0, 1.0, 1.0));
    (program, costs)
}

fn unit(place: Place, filler: Filler, time: f64, after: Vec<Need>) -> Unit {
    let number = (time * 100.0) as usize;
    Unit { places: vec![place], filler, number, time, when: When::Spread, after }
}

fn exact() -> FillOptions {
    FillOptions { margin: 0.0 }
}

/// Rank, step, start and end of a unit.
fn at(filled: &Filled, units: &[Unit], number: usize) -> Vec<(usize, usize, f64, f64)> {
    let unit = &units[number];
    let mut found = Vec::new();
    for (step, (program, timeline)) in filled.programs.iter().zip(&filled.timelines).enumerate() {
        for place in &unit.places {
            let fill = Fill { filler: unit.filler, chunk: place.chunk, unit: unit.number };
            for (i, t) in program.lists[place.rank].iter().zip(&timeline.intervals[place.rank]) {
                if *i == Instruction::Fill(fill) {
                    found.push((place.rank, step, t.start, t.end));
                }
            }
        }
    }
    found
}

fn position(program: &Program, rank: usize, what: Instruction) -> usize {
    program.lists[rank].iter().position(|i| *i == what).unwrap()
}

fn after_forward(program: &Program, rank: usize, micro: usize) -> Need {
    Need::Instruction(Step { rank, index: position(program, rank, Instruction::forward(micro, 0)) })
}

#[test]
fn two_ranks_by_hand() {
    let (program, costs) = two_ranks();
    let units = [
        unit(DOWN, Filler::Curvature, 1.0, vec![after_forward(&program, 0, 0)]),
        unit(DOWN, Filler::Invert, 2.0, vec![Need::Unit(0)]),
        unit(UP, Filler::Curvature, 0.9, vec![after_forward(&program, 1, 0)]),
        unit(UP, Filler::Invert, 1.5, vec![Need::Unit(2)]),
        unit(UP, Filler::Copy, 0.5, vec![]),
    ];
    let filled = fill(&program, &costs, &units, &exact()).unwrap();
    assert_eq!(filled.interval(), 2);
    assert_eq!(filled.step_of, [0, 0, 0, 1, 0]);
    assert_eq!(at(&filled, &units, 0), [(0, 0, 2.0, 3.0)]);
    assert_eq!(at(&filled, &units, 1), [(0, 0, 3.0, 5.0)]);
    // Ready at 2, and the next bubble is the last.
    assert_eq!(at(&filled, &units, 2), [(1, 0, 7.0, 7.9)]);
    // 1.1 are left of this step's last bubble, and the next step's first has 1.
    assert_eq!(at(&filled, &units, 3), [(1, 1, 7.0, 8.5)]);
    assert_eq!(at(&filled, &units, 4), [(1, 0, 0.0, 0.5)]);
    assert_eq!(filled.steps, [9.0, 9.0]);
    assert_eq!((filled.forced, filled.lengthening()), (0, 0.0));
    assert!((filled.utilisation_before - 12.0 / 18.0).abs() < 1e-12);
    assert!((filled.utilisation_after - (24.0 + 5.9) / 36.0).abs() < 1e-12);
    // Rank 0 has 3 to do in two steps.
    assert!((filled.serial_step - 10.5).abs() < 1e-12);
    for (rank, list) in filled.programs[0].lists.iter().enumerate() {
        let text: Vec<String> = list.iter().map(ToString::to_string).collect();
        let wanted = [
            "F0 sendA0>1 F1 sendA1>1 curvature100 invert200 recvG0<1 B0 recvG1<1 B1 reduce0 step0 gather0",
            "copy50 recvA0<0 F0 recvA1<0 F1 B0 sendG0>0 B1 sendG1>0 reduce0 curvature90 step0 gather0",
        ];
        assert_eq!(text.join(" "), wanted[rank]);
    }
}

#[test]
fn a_unit_needs_room_for_its_margin() {
    let (program, costs) = two_ranks();
    // Exactly as long as the bubble: only without a margin.
    let units = [unit(DOWN, Filler::Copy, 3.0, vec![])];
    assert_eq!(fill(&program, &costs, &units, &exact()).unwrap().forced, 0);
    let filled = fill(&program, &costs, &units, &FillOptions::default()).unwrap();
    assert_eq!((filled.forced, filled.interval()), (1, 1));
    // In the longest bubble all the same, where it does no harm because its time is exact.
    assert_eq!(at(&filled, &units, 0), [(0, 0, 2.0, 5.0)]);
    let units = [unit(DOWN, Filler::Copy, 4.0, vec![]), unit(DOWN, Filler::Copy, 3.5, vec![])];
    let filled = fill(&program, &costs, &units, &exact()).unwrap();
    assert_eq!((filled.forced, filled.interval(), filled.step_of.as_slice()), (2, 2, &[0, 1][..]));
    assert_eq!(filled.steps, [10.0, 9.5]);
    assert!((filled.lengthening() - 1.0 / 9.0).abs() < 1e-12);
}

#[test]
fn work_of_every_step_and_of_the_update() {
    let (program, costs) = two_ranks();
    let units = [
        Unit { when: When::Update, ..unit(DOWN, Filler::Precondition, 0.5, vec![]) },
        Unit { when: When::Update, ..unit(UP, Filler::Precondition, 0.25, vec![]) },
        Unit { when: When::EveryStep, ..unit(UP, Filler::Copy, 0.75, vec![]) },
        unit(UP, Filler::Invert, 2.2, vec![]),
        unit(UP, Filler::Invert, 2.1, vec![]),
        unit(DOWN, Filler::Copy, 0.1, vec![]),
    ];
    let filled = fill(&program, &costs, &units, &exact()).unwrap();
    assert_eq!((filled.plain_step, filled.base_step), (9.0, 9.5));
    assert_eq!((filled.forced, filled.interval()), (0, 2));
    // The last bubble of rank 1: from 7 until the update must begin, at 9.25.
    assert_eq!(at(&filled, &units, 3), [(1, 0, 7.0, 9.2)]);
    assert_eq!(at(&filled, &units, 4), [(1, 1, 7.0, 9.1)]);
    assert_eq!(at(&filled, &units, 2), [(1, 0, 0.0, 0.75), (1, 1, 0.0, 0.75)]);
    assert_eq!(at(&filled, &units, 0), [(0, 0, 9.0, 9.5), (0, 1, 9.0, 9.5)]);
    assert_eq!(filled.steps, [9.5, 9.5]);
}

#[test]
fn an_evaluation_micro_batch_goes_through_the_stages() {
    let program = generate(Kind::OneFOneB, &Shape::new(3, 3)).unwrap();
    let costs = Costs::per_rank(&program, &PassTimes::new(1.0, 1.0, 1.0));
    let place = |rank| Place { rank, chunk: 0 };
    let units: Vec<Unit> = (0..3)
        .map(|rank| Unit {
            number: 7,
            ..unit(
                place(rank),
                Filler::Evaluate,
                0.5,
                (rank > 0).then(|| Need::Unit(rank - 1)).into_iter().collect(),
            )
        })
        .collect();
    let filled = fill(&program, &costs, &units, &exact()).unwrap();
    let times: Vec<(usize, f64, f64)> =
        (0..3).map(|u| at(&filled, &units, u)[0]).map(|(_, step, start, end)| (step, start, end)).collect();
    let begin = |(step, start, _): (usize, f64, f64)| step as f64 * filled.base_step + start;
    let end = |(step, _, end): (usize, f64, f64)| step as f64 * filled.base_step + end;
    assert!(times.windows(2).all(|pair| end(pair[0]) <= begin(pair[1]) + 1e-9), "{times:?}");
    assert_eq!(filled.steps, vec![filled.plain_step; filled.interval()]);
    // The simulator waits too: rank 1 right at the beginning, where the program has nothing for it.
    let mut early = program;
    early.lists[0].insert(2, Instruction::Fill(Fill { filler: Filler::Evaluate, chunk: 0, unit: 7 }));
    early.lists[1].insert(0, Instruction::Fill(Fill { filler: Filler::Evaluate, chunk: 0, unit: 7 }));
    let timeline = simulate(&early, &filled.costs).unwrap();
    assert_eq!(timeline.intervals[0][2].end, 1.5);
    assert_eq!((timeline.intervals[1][0].start, timeline.intervals[1][0].end), (1.5, 2.0));
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let (program, costs) = two_ranks();
    let plain = |rank| unit(Place { rank, chunk: 0 }, Filler::Copy, 0.5, vec![]);
    let says = |units: &[Unit], what: &str| {
        let e = fill(&program, &costs, units, &exact()).unwrap_err().to_string();
        assert!(e.contains(what), "{e}");
    };
    says(&[plain(2)], "there is no chunk 0 on a rank 2");
    says(&[plain(0), plain(0)], "unit 1: copy50 is there twice");
    says(&[Unit { places: vec![], ..plain(0) }], "has no place");
    says(&[Unit { places: vec![DOWN, UP], ..plain(0) }], "different stages");
    says(&[Unit { after: vec![Need::Unit(0)], ..plain(0) }], "waits for it");
    says(&[Unit { after: vec![Need::Unit(4)], ..plain(0) }], "unit 4, which is not there");
    says(&[plain(1), Unit { after: vec![Need::Unit(0)], ..plain(0) }], "of another rank");
    let elsewhere = Need::Instruction(Step { rank: 1, index: 0 });
    says(&[Unit { after: vec![elsewhere], ..plain(0) }], "instruction 0 of rank 1");
    let often = Unit { when: When::EveryStep, number: 1, ..plain(0) };
    says(&[plain(0), Unit { after: vec![Need::Unit(0)], ..often }], "not done as often");
    says(&[Unit { time: f64::NAN, ..plain(0) }], "the time of unit 0");
    let asynchronous = generate(Kind::PipeDream, &Shape::new(2, 4)).unwrap();
    let costs = Costs::per_rank(&asynchronous, &PassTimes::new(1.0, 1.0, 1.0));
    let e = fill(&asynchronous, &costs, &[], &exact()).unwrap_err();
    assert!(matches!(e, SimError::Unit { .. }) && e.to_string().contains("flush"), "{e}");
    assert!(kfac_units(&program, &[KfacStage::default()], Operands::AsMade).is_err());
}

/// Everything that was promised of filled programs.
fn check(program: &Program, units: &[Unit], filled: &Filled) -> Result<(), TestCaseError> {
    verify_fill(program, units, &filled.programs).map_err(|e| TestCaseError::fail(e.to_string()))?;
    let interval = filled.interval();
    // Absolute times by unit and rank.
    let mut times: Vec<BTreeMap<usize, (f64, f64)>> = vec![BTreeMap::new(); units.len()];
    let starts: Vec<f64> = (0..interval).map(|j| filled.steps[..j].iter().sum()).collect();
    for (number, unit) in units.iter().enumerate() {
        let found = at(filled, units, number);
        let often = if unit.when == When::Spread { 1 } else { interval };
        prop_assert_eq!(found.len(), unit.places.len() * often, "unit {}", number);
        for (rank, step, start, end) in found {
            if unit.when == When::Spread {
                prop_assert_eq!(step, filled.step_of[number]);
                times[number].insert(rank, (starts[step] + start, starts[step] + end));
            }
        }
    }
    for (number, unit) in units.iter().enumerate().filter(|(_, u)| u.when == When::Spread) {
        for need in &unit.after {
            for (rank, (start, _)) in &times[number] {
                let before = match need {
                    Need::Unit(other) => times[*other].get(rank).map(|(_, end)| *end),
                    Need::Instruction(step) if step.rank == *rank => {
                        let wanted = program.lists[*rank][step.index];
                        let index = position(&filled.programs[0], *rank, wanted);
                        Some(filled.timelines[0].intervals[*rank][index].end)
                    }
                    Need::Instruction(_) => None,
                    Need::EndOfStep => Some(filled.steps[0]),
                };
                prop_assert!(
                    before.is_none_or(|end| end <= start + 1e-6),
                    "unit {} of rank {}",
                    number,
                    rank
                );
            }
        }
        // Those who meet begin and end together.
        if unit.filler != Filler::SyncCurvature {
            continue;
        }
        let mut all = times[number].values();
        let first = all.next().unwrap();
        prop_assert!(all.all(|t| (t.0 - first.0).abs() + (t.1 - first.1).abs() < 1e-6));
    }
    for filled in &filled.programs {
        verify(filled, &Limits::default()).unwrap();
        // Nothing but fillers was added.
        for (list, old) in filled.lists.iter().zip(&program.lists) {
            let rest: Vec<Instruction> =
                list.iter().filter(|i| !matches!(i, Instruction::Fill(_))).copied().collect();
            prop_assert_eq!(&rest, old);
        }
    }
    if filled.forced == 0 {
        for step in &filled.steps {
            prop_assert!((step - filled.base_step).abs() < 1e-6 * filled.base_step);
        }
    }
    Ok(())
}

fn any_program() -> impl Strategy<Value = Program> {
    (0..Kind::ALL.len(), 1..=6usize, 1..=12usize).prop_filter_map("sizes", |(k, p, m)| {
        let kind = Kind::ALL[k];
        let even = Shape::new(2 * p.div_ceil(2), 4 * p.div_ceil(2) * m.div_ceil(4));
        let program = [Shape::new(p, m), even].into_iter().find_map(|shape| generate(kind, &shape).ok())?;
        (program.updates == 1).then_some(program)
    })
}

fn any_stage() -> impl Strategy<Value = KfacStage> {
    let time = || (0..=12u32).prop_map(|t| f64::from(t) / 16.0);
    let factor = (any::<bool>(), time(), time(), time());
    let layer = proptest::collection::vec(factor, 1..=3);
    proptest::collection::vec((layer, time()), 0..=2).prop_map(|layers| {
        let mut stage = KfacStage::default();
        for (layer, (factors, precondition)) in layers.into_iter().enumerate() {
            stage.precondition.push(precondition);
            stage.factors.extend(factors.into_iter().map(|(outputs, curvature, sync, invert)| KfacFactor {
                layer,
                outputs,
                curvature,
                sync,
                invert,
            }));
        }
        stage
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_work_fits_into_any_program(
        program in any_program(),
        stages in proptest::collection::vec(any_stage(), 12),
        (forward, backward, weight) in (1..=8u32, 1..=8u32, 1..=8u32),
        (late, message) in (any::<bool>(), 0..3u32),
    ) {
        let [f, b, w] = [forward, backward, weight].map(|t| f64::from(t) / 2.0);
        let mut costs = Costs::per_rank(&program, &PassTimes::new(f, b, w));
        costs.messages.link.latency = f64::from(message) / 8.0;
        let stages: Vec<KfacStage> = stages.into_iter().cycle().take(program.stages).collect();
        let operands = if late { Operands::AfterBackward } else { Operands::AsMade };
        let units = kfac_units(&program, &stages, operands).unwrap();
        let filled = fill(&program, &costs, &units, &FillOptions::default()).unwrap();
        check(&program, &units, &filled)?;
        prop_assert!(filled.utilisation_after <= 1.0 + 1e-9);
        // A function of its arguments.
        prop_assert_eq!(&fill(&program, &costs, &units, &FillOptions::default()).unwrap(), &filled);
        // As much slower as the margin says, and no step is longer.
        let mut slow = filled.costs.clone();
        for unit in units.iter().filter(|u| u.when == When::Spread) {
            for place in &unit.places {
                let fill = Fill { filler: unit.filler, chunk: place.chunk, unit: unit.number };
                slow.units.insert((place.rank, fill), unit.time * 1.05);
            }
        }
        if filled.forced == 0 {
            for program in &filled.programs {
                let step = simulate(program, &slow).unwrap().makespan(program);
                prop_assert!((step - filled.base_step).abs() < 1e-6 * step, "{} {}", step, filled.base_step);
            }
        }
    }
}

/// The paper's setting: BERT-Base's 12 layers on 4 stages, 4 micro-batches (of 32 sequences of 128 tokens), costs by
/// floating-point operations, a backward pass twice as long as a forward pass.
fn paper(kind: Kind) -> Filled {
    let program = generate(kind, &Shape::new(4, 4)).unwrap();
    // One forward pass takes 1. A rank of Chimera holds two stages, each of which is passed by half of the micro-batches.
    let costs = Costs::per_rank(&program, &PassTimes::new(1.0, 1.0, 1.0));
    let stages = vec![KfacStage::transformer(3, 768, 32 * 128, 1.0); 4];
    let units = kfac_units(&program, &stages, Operands::AsMade).unwrap();
    let filled = fill(&program, &costs, &units, &FillOptions::default()).unwrap();
    check(&program, &units, &filled).unwrap();
    filled
}

/// Units of a rank, on paper, with d/t = 768/4096 and a layer's forward pass of 24 t d^2: curvature of a micro-batch
/// 2 (19 + 21) t d^2 over 24 t d^2, inversion 8/3 (67 + 69) d^3, sums 3 (19 + 21) d^2, directions 96 d^3. In Chimera each
/// rank holds two stages, that is twice the inversions, sums and directions, and half the micro-batches of each.
#[test]
fn the_setting_of_the_paper() {
    let ratio = 768.0 / 4096.0;
    let (curvature, invert) = (4.0 * 80.0 / 24.0, 8.0 / 3.0 * 136.0 / 24.0 * ratio);
    let (sync, direction) = (120.0 / 24.0 / 4096.0, 96.0 / 24.0 * ratio);
    for (kind, step, copies, interval, after) in [
        (Kind::GPipe, 21.0, 1.0, 3, 0.834),
        (Kind::OneFOneB, 21.0, 1.0, 3, 0.834),
        (Kind::Chimera, 16.0, 2.0, 6, 0.952),
    ] {
        let filled = paper(kind);
        let same = |found: f64, wanted: f64| {
            assert!((found - wanted).abs() < 1e-9 * wanted, "{kind}: found {found}, wanted {wanted}");
        };
        assert_eq!((filled.interval(), filled.forced), (interval, 0), "{kind}");
        same(filled.plain_step, step);
        same(filled.base_step, step + copies * direction);
        filled.steps.iter().for_each(|s| same(*s, step + copies * direction));
        same(filled.utilisation_before, 12.0 / step);
        let refresh = curvature + copies * (invert + sync);
        let k = interval as f64;
        let work = k * (12.0 + copies * direction) + refresh;
        same(filled.utilisation_after, work / (k * (step + copies * direction)));
        assert!((filled.utilisation_after - after).abs() < 5e-4, "{kind}: {}", filled.utilisation_after);
        same(filled.serial_step, step + copies * direction + refresh / k);
        // No plan of the same work can do with fewer steps than its time over the bubbles'.
        assert!(k >= refresh / (step - 12.0));
    }
}

#[test]
fn numbers_of_units() {
    let program = generate(Kind::Chimera, &Shape::new(4, 4)).unwrap();
    let stage = KfacStage::transformer(1, 8, 16, 1.0);
    assert_eq!((stage.factors.len(), stage.precondition.len()), (10, 4));
    let units = kfac_units(&program, &vec![stage; 4], Operands::AsMade).unwrap();
    let of = |filler| units.iter().filter(move |u| u.filler == filler);
    // Each micro-batch passes each stage once; every holder inverts; sums are made together.
    assert_eq!(of(Filler::Curvature).count(), 4 * 4 * 10);
    assert_eq!(of(Filler::SyncCurvature).count(), 4 * 10);
    assert!(of(Filler::SyncCurvature).all(|u| u.places.len() == 2));
    assert_eq!(of(Filler::Invert).count(), 4 * 2 * 10);
    assert_eq!(of(Filler::Precondition).count(), 4 * 2 * 4);
    assert!(of(Filler::Curvature).any(|u| u.number == curvature_number(10, 3, 2)));
}
