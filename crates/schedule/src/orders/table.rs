//! The table of the reference (event simulation without communication): the judge of the orders.

use crate::timing::{Span, makespan, spans};
use crate::{Instruction, Kind, Program, Shape, generate};

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
    assert_eq!(measure(Kind::ZbH1, &Shape::new(4, 8), 1.0).0, 27.0);
}
