//! The table of the reference (event simulation without communication): the judge of the orders.

use crate::timing::{Span, makespan, spans};
use crate::{Costs, Instruction, Join, Kind, Limits, Program, Shape, generate, verify};

/// Spans with T_F, T_B, T_W and the time of a pair, each of one pass.
fn timed(program: &Program, f: f64, b: f64, w: f64, pair: f64) -> Vec<Span> {
    let cost = |instruction: &Instruction| match instruction {
        Instruction::Forward(_) => f,
        Instruction::Backward(_) => b + w,
        Instruction::BackwardInput(_) => b,
        Instruction::BackwardWeight(_) => w,
        Instruction::Together { .. } => pair,
        _ => 0.0,
    };
    spans(program, cost, 0.0).expect("fits together").expect("finishes")
}

/// Makespan and largest span.
fn measure(kind: Kind, shape: &Shape, share: f64) -> (f64, f64) {
    let spans = timed(&generate(kind, shape).unwrap(), share, share, share, 3.0 * share);
    (makespan(&spans), spans.iter().map(|s| s.last - s.first).fold(0.0, f64::max))
}

#[test]
fn makespans_of_one_direction() {
    assert_eq!(measure(Kind::GPipe, &Shape::new(4, 8), 1.0).0, 33.0);
    assert_eq!(measure(Kind::OneFOneB, &Shape::new(4, 8), 1.0).0, 33.0);
    assert_eq!(measure(Kind::Interleaved, &Shape::new(4, 8), 0.5).0, 28.5);
    assert_eq!(measure(Kind::BreadthFirst, &Shape::new(4, 8), 0.5).0, 28.5);
    // Four chunks, which take a quarter each, and micro-batches that the ranks do not divide.
    let shape = Shape { chunks: Some(4), ..Shape::new(4, 10) };
    assert_eq!(measure(Kind::BreadthFirst, &shape, 0.25).0, 30.0 + 9.0 / 4.0);
    assert_eq!(measure(Kind::ZbH1, &Shape::new(4, 8), 1.0).0, 27.0);
}

#[test]
fn makespans_of_zero_bubble() {
    assert_eq!(measure(Kind::ZbH2, &Shape::new(4, 8), 1.0), (27.0, 24.0));
    assert_eq!(measure(Kind::ZbV, &Shape::new(4, 12), 0.5), (37.5, 36.0));
}

#[test]
fn makespans_of_chimera() {
    for (f, full, four, eight) in [(1.0, 1.0, 10.0, 22.0), (1.0, 2.0, 16.0, 36.0)] {
        for costs in [1.0, 2.0] {
            let of = |d| {
                let mut shape = Shape::new(d, d);
                shape.costs = crate::Costs { forward: 1.0, backward: costs, weight: 0.0, message: 0.0 };
                let program = generate(Kind::Chimera, &shape).unwrap();
                makespan(&timed(&program, f, full, 0.0, 0.0))
            };
            assert_eq!((of(4), of(8)), (four, eight), "planned at 1:{costs}, timed at 1:{full}");
        }
    }
}

#[test]
fn makespans_of_dualpipe() {
    let dual = generate(Kind::DualPipe, &Shape::new(8, 20)).unwrap();
    assert_eq!(makespan(&timed(&dual, 1.0, 1.0, 1.0, 3.0)), 66.0);
    assert_eq!(makespan(&timed(&dual, 1.0, 1.0, 1.0, 2.0)), 52.0);
    assert!((makespan(&timed(&dual, 1.0, 1.1, 0.9, 3.0)) - 66.6).abs() < 1e-9);
    assert!((makespan(&timed(&dual, 1.0, 0.8, 1.2, 3.0)) - 66.0).abs() < 1e-9);
    let vee = generate(Kind::DualPipeV, &Shape::new(4, 20)).unwrap();
    assert_eq!(makespan(&timed(&vee, 0.5, 0.5, 0.5, 1.5)), 63.0);
}

#[test]
fn peaks_of_live_activations() {
    let table: [(Kind, usize, usize, &[f64]); 10] = [
        (Kind::GPipe, 4, 8, &[8.0; 4]),
        (Kind::OneFOneB, 4, 8, &[4.0, 3.0, 2.0, 1.0]),
        (Kind::Interleaved, 4, 8, &[5.5, 4.5, 3.5, 2.5]),
        (Kind::BreadthFirst, 4, 8, &[8.0; 4]),
        (Kind::ZbH1, 4, 8, &[4.0, 3.5, 3.0, 2.5]),
        (Kind::ZbH2, 4, 8, &[7.0, 6.0, 5.0, 4.0]),
        (Kind::ZbV, 4, 12, &[4.0; 4]),
        (Kind::Chimera, 8, 8, &[5.0, 6.0, 7.0, 8.0, 8.0, 7.0, 6.0, 5.0]),
        (Kind::DualPipe, 8, 20, &[9.0; 8]),
        (Kind::DualPipeV, 4, 20, &[4.5; 4]),
    ];
    for (kind, ranks, micro_batches, peaks) in table {
        let program = generate(kind, &Shape::new(ranks, micro_batches)).unwrap();
        let report = verify(&program, &Limits::default()).unwrap();
        assert_eq!(report.peak_live, peaks, "{kind}");
    }
}

/// Bubble of the longest span of the automatic schedule, which keeps its limit.
fn automatic(p: usize, m: usize, costs: Costs, limit: f64) -> f64 {
    let mut shape = Shape::new(p, m);
    (shape.memory_limit, shape.costs) = (Some(limit), costs);
    let program = generate(Kind::ZbAuto, &shape).unwrap();
    verify(&program, &Limits { live: Some(limit), ..Limits::default() }).unwrap();
    let cost = |instruction: &Instruction| match instruction {
        Instruction::Forward(_) => costs.forward,
        Instruction::BackwardInput(_) => costs.backward,
        Instruction::BackwardWeight(_) => costs.weight,
        _ => 0.0,
    };
    let spans = spans(&program, cost, costs.message).unwrap().unwrap();
    let span = spans.iter().map(|s| s.last - s.first).fold(0.0, f64::max);
    span - m as f64 * (costs.forward + costs.backward + costs.weight)
}

#[test]
fn automatic_schedule_reaches_zero_bubble() {
    for (p, m) in [(2, 6), (4, 12), (8, 24)] {
        assert_eq!(automatic(p, m, Costs::default(), 2.0 * p as f64), 0.0);
        // That of ZB-H1 with the memory of 1F1B.
        assert!(automatic(p, m, Costs::default(), p as f64) <= (p - 1) as f64);
    }
}

#[test]
fn automatic_schedule_uses_more_memory_for_less_bubble() {
    for times in [(1.0, 1.0, 1.0, 0.0), (1.0, 1.1, 0.9, 0.05), (1.0, 1.2, 0.7, 0.1), (1.0, 0.8, 1.3, 0.0)] {
        let costs = Costs { forward: times.0, backward: times.1, weight: times.2, message: times.3 };
        let bubbles: Vec<f64> =
            [1.0, 2.0, 4.0, 5.0, 6.0, 8.0].map(|limit| automatic(4, 12, costs, limit)).into();
        assert!(bubbles.is_sorted_by(|less, more| more <= &(less + 1e-9)), "{times:?}: {bubbles:?}");
        assert!(bubbles[4] < 0.6 * bubbles[2] && bubbles[5] < 0.25 * bubbles[2], "{times:?}: {bubbles:?}");
    }
}

#[test]
fn chimera_with_more_micro_batches_than_ranks() {
    for d in [2, 4, 6, 8] {
        for units in [1, 2, 3, 8] {
            let of = |join, full: f64, n: usize| {
                let mut shape = Shape::new(d, n);
                shape.join = join;
                shape.costs = Costs { forward: 1.0, backward: full, weight: 0.0, message: 0.0 };
                let program = generate(Kind::Chimera, &shape).unwrap();
                let peaks = verify(&program, &Limits::default()).unwrap().peak_live;
                (makespan(&timed(&program, 1.0, full, 0.0, 0.0)) - n as f64 * (1.0 + full), peaks)
            };
            let (n, doubled) = (units * d, 2 * units * d);
            let (bubble, peaks) = of(Join::Concatenate, 1.0, n);
            assert_eq!(bubble, (d - 2) as f64, "{d} ranks, {units} units");
            assert_eq!(peaks, of(Join::Concatenate, 1.0, d).1);
            // A backward that takes twice a forward leaves gaps in the middle of every unit ...
            assert!(of(Join::Concatenate, 2.0, n).0 <= (units * 2 * (d - 2)) as f64);
            // ... which are gone where two go forward in a row, for twice the activations.
            let (bubble, peaks_doubled) = of(Join::ForwardDoubling, 2.0, doubled);
            assert_eq!(bubble, 1.5 * (d - 2) as f64, "{d} ranks, {units} units");
            assert_eq!(peaks_doubled, peaks.iter().map(|peak| 2.0 * peak).collect::<Vec<_>>());
        }
    }
}

#[test]
fn chimera_with_more_pipelines() {
    for (d, f, bubble) in [(8, 1, 12.0), (8, 2, 4.0), (8, 4, 0.0), (16, 1, 28.0), (16, 4, 4.0)] {
        let program = generate(Kind::Chimera, &Shape { pairs: f, ..Shape::new(d, d) }).unwrap();
        assert_eq!((program.routes.len(), program.chunks(0)), (2 * f, 2 * f));
        assert_eq!(
            makespan(&timed(&program, 1.0, 2.0, 0.0, 0.0)) - 3.0 * d as f64,
            bubble,
            "{d} ranks, {f} pairs"
        );
    }
}

#[test]
fn v_with_less_memory() {
    for p in 4..17 {
        for m in [p, 2 * p + 1, 3 * p] {
            let of = |kind| {
                let program = generate(kind, &Shape::new(p, m)).unwrap();
                let peaks = verify(&program, &Limits::default()).unwrap().peak_live;
                let bubble = makespan(&timed(&program, 0.5, 0.5, 0.5, 0.0)) - 3.0 * m as f64;
                (peaks.into_iter().fold(0.0, f64::max), bubble)
            };
            assert_eq!(
                of(Kind::VHalf),
                ((p + 2) as f64 / 2.0, 1.5 * p as f64 - 3.5),
                "{p} ranks, {m} micro-batches"
            );
            let (peak, bubble) = of(Kind::VMin);
            assert!(
                peak <= (p + 4) as f64 / 3.0 && bubble <= 2.0 * p as f64 - 3.5,
                "{p} ranks, {m}: {peak}, {bubble}"
            );
        }
    }
}

#[test]
fn zero_bubble_from_as_few_micro_batches_as_said() {
    for p in 2..10 {
        for m in [2 * p - 1, 2 * p, 3 * p] {
            assert_eq!(measure(Kind::ZbH2, &Shape::new(p, m), 1.0).1, 3.0 * m as f64);
            assert_eq!(measure(Kind::ZbV, &Shape::new(p, m), 0.5).1, 3.0 * m as f64);
        }
    }
}
