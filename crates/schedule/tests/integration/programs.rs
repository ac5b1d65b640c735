//! Properties of every generated program over random sizes, and that what is broken on purpose is found.

use bessemer_schedule::{Costs, Join, Kind, Limits, Shape, generate, verify};
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
        Kind::BreadthFirst => shape.chunks = Some(v),
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

    /// Whatever the times, the automatic schedule is sound and keeps its limit.
    #[test]
    fn the_automatic_schedule_keeps_its_limit(
        p in 1_usize..8, m in 1_usize..30, limit in 1.0..20.0_f64, weight_share in 0.0..=1.0_f64,
        (forward, backward, weight, message) in (0.1..3.0_f64, 0.1..3.0_f64, 0.1..3.0_f64, 0.0..1.0_f64),
    ) {
        let costs = Costs { forward, backward, weight, message };
        let shape = Shape { memory_limit: Some(limit), costs, weight_share, ..Shape::new(p, m) };
        let program = generate(Kind::ZbAuto, &shape).unwrap();
        verify(&program, &Limits { live: Some(limit), weight_share, ..Limits::default() }).unwrap();
    }

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

/// Sizes of a large job take no walk that is quadratic in them: this would take minutes.
#[test]
fn large_programs_are_made() {
    for kind in Kind::ALL {
        let program = generate(kind, &Shape::new(128, 512)).unwrap();
        verify(&program, &Limits::default()).unwrap();
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let refused = |kind: Kind, change: &dyn Fn(&mut Shape), wanted: &str| {
        let mut shape = Shape::new(4, 8);
        change(&mut shape);
        let found = generate(kind, &shape).expect_err("does not fit").to_string();
        assert!(found.contains(wanted), "{kind}: wanted {wanted:?}, found {found:?}");
    };
    for kind in Kind::ALL {
        refused(kind, &|s| s.ranks = 0, "at least one rank and one micro-batch");
        refused(kind, &|s| s.micro_batches = 0, "at least one rank and one micro-batch");
        refused(kind, &|s| s.ranks = usize::MAX, "at most 16777216");
        refused(kind, &|s| s.micro_batches = 1 << 40, "at most 16777216");
        if !matches!(kind, Kind::Interleaved | Kind::BreadthFirst) {
            refused(kind, &|s| s.chunks = Some(7), "chunks on a rank");
        }
    }
    refused(Kind::Interleaved, &|s| s.chunks = Some(0), "at least one chunk");
    refused(Kind::BreadthFirst, &|s| s.chunks = Some(0), "at least one chunk");
    refused(Kind::Interleaved, &|s| s.micro_batches = 10, "take 12 micro-batches or 1f1b");
    refused(Kind::PipeDream, &|s| s.update_every = Some(3), "take 9 micro-batches");
    refused(Kind::PipeDream, &|s| s.update_every = Some(0), "take updates of 8");
    refused(Kind::PipeDream2Bw, &|s| s.update_every = Some(2), "at least as many micro-batches in an update");
    refused(Kind::PipeDream2Bw, &|s| s.micro_batches = 3, "take more micro-batches");
    refused(Kind::Chimera, &|s| s.ranks = 5, "take 6 ranks or 1f1b");
    refused(Kind::Chimera, &|s| s.micro_batches = 3, "take 4");
    refused(Kind::Chimera, &|s| s.micro_batches = 6, "take 8");
    refused(Kind::Chimera, &|s| s.pairs = 3, "pairs of pipelines that divide half the ranks");
    refused(Kind::Chimera, &|s| s.pairs = 0, "pairs of pipelines that divide half the ranks");
    refused(Kind::Chimera, &|s| s.pairs = usize::MAX, "at most 16777216");
    refused(Kind::Chimera, &|s| (s.join, s.micro_batches) = (Join::BackwardHalving, 12), "take 16");
    refused(Kind::DualPipe, &|s| s.ranks = 3, "take 4 ranks, or dualpipev");
    refused(Kind::DualPipe, &|s| s.micro_batches = 9, "take 10 micro-batches");
    refused(Kind::DualPipe, &|s| s.micro_batches = 6, "take 8 micro-batches");
    refused(Kind::DualPipeV, &|s| s.micro_batches = 7, "take 8 micro-batches");
    refused(Kind::ZbAuto, &|s| s.memory_limit = Some(0.5), "memory for at least 1 micro-batch");
    refused(Kind::ZbAuto, &|s| s.memory_limit = Some(f64::NAN), "memory for at least 1 micro-batch");
    refused(Kind::ZbAuto, &|s| s.costs.weight = 0.0, "times above 0");
    refused(Kind::ZbAuto, &|s| s.costs.message = -1.0, "a time for messages");
    refused(Kind::ZbAuto, &|s| s.weight_share = 2.0, "a weight share from 0 to 1");
    refused(Kind::Chimera, &|s| s.costs.forward = f64::NAN, "times that are numbers");
    assert!("1F1B".parse::<Kind>().expect_err("unknown").to_string().contains("gpipe, 1f1b, pipedream"));
    for kind in Kind::ALL {
        assert_eq!(kind.to_string().parse::<Kind>().unwrap(), kind);
    }
}
