//! Properties of every generated program over random sizes, and that what is broken on purpose is found.

use bessemer_schedule::{Join, Kind, Limits, Shape, generate, verify};
use proptest::prelude::*;

/// Sizes that a kind takes, from any numbers.
fn shape(kind: Kind, p: usize, m: usize, v: usize) -> Shape {
    let mut shape = Shape::new(p, m);
    match kind {
        Kind::PipeDream => {
            shape.update_every = Some(v);
            shape.micro_batches = m.next_multiple_of(v);
        }
        Kind::PipeDream2Bw => {
            shape.update_every = Some(p + v - 1);
            shape.micro_batches = m.next_multiple_of(p + v - 1);
        }
        Kind::Interleaved => {
            shape.chunks = Some(v);
            shape.micro_batches = m.next_multiple_of(p);
        }
        Kind::Chimera => {
            shape.ranks = 2 * p;
            if v == 2 && p.is_multiple_of(2) {
                shape.pairs = 2;
            }
            if v == 3 {
                shape.join = Join::ForwardDoubling;
            }
            shape.micro_batches = match m {
                0..12 => m.next_multiple_of(2 * shape.pairs * if v == 3 { 2 } else { 1 }).min(2 * p),
                _ => m.next_multiple_of(2 * p * if v == 3 { 2 } else { 1 }),
            };
            if !shape.micro_batches.is_multiple_of(2 * shape.pairs * if v == 3 { 2 } else { 1 }) {
                shape.micro_batches = 4 * p;
            }
        }
        Kind::DualPipe => {
            shape.ranks = 2 * p;
            shape.micro_batches = 4 * p + 2 * m;
        }
        Kind::DualPipeV => shape.micro_batches = 2 * p + m,
        Kind::ZbAuto => shape.memory_limit = Some(p.div_ceil(2) as f64 + (v * p) as f64 * 0.5),
        _ => {}
    }
    shape
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop::sample::select(Kind::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_program_is_sound(kind in kinds(), p in 1_usize..9, m in 1_usize..40, v in 1_usize..4) {
        let shape = shape(kind, p, m, v);
        let program = generate(kind, &shape).unwrap_or_else(|error| panic!("{kind} {shape:?}: {error}"));
        let report = verify(&program, &Limits::default());
        let report = report.unwrap_or_else(|error| panic!("{kind} {shape:?}: {error}"));
        prop_assert_eq!(program.ranks(), shape.ranks);
        prop_assert_eq!(program.micro_batches(), shape.micro_batches);
        // Two streams that share a link may overtake each other; one stream does not.
        let one = matches!(kind, Kind::GPipe | Kind::OneFOneB | Kind::PipeDream | Kind::PipeDream2Bw | Kind::ZbH1 | Kind::ZbH2);
        prop_assert!(!one || report.out_of_order.is_none(), "{:?}", report.out_of_order);
        let versions = report.weight_versions.iter().copied().max().unwrap_or(0);
        match kind {
            Kind::PipeDream => prop_assert!(versions <= p),
            Kind::PipeDream2Bw => prop_assert!(versions <= 2),
            _ => prop_assert_eq!(versions, 1),
        }
    }
}
