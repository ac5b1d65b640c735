//! The golden values of the schedules, exactly: event simulation without communication, T_F = T_B = T_W = 1 unless said.
//! Every value comes from published schedules that were reproduced by an independent simulation, not from this program.

use bessemer_schedule::{Kind, Program, Shape, generate};
use bessemer_sim::{Costs, PassTimes, Summary, simulate};

fn run(program: &Program, times: &PassTimes) -> Summary {
    let costs = Costs::per_rank(program, times);
    let timeline = simulate(program, &costs).unwrap();
    Summary::new(program, &costs, &timeline, 0.5)
}

fn made(kind: Kind, p: usize, m: usize) -> Program {
    generate(kind, &Shape::new(p, m)).unwrap()
}

/// Sums of halves and of a few tenths: equal up to the last bits.
#[track_caller]
fn same(found: f64, wanted: f64) {
    assert!((found - wanted).abs() < 1e-9, "found {found}, wanted {wanted}");
}

#[track_caller]
fn all_same(found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    for (f, w) in found.iter().zip(wanted) {
        same(*f, *w);
    }
}

const EVEN: PassTimes = PassTimes { forward: 1.0, backward_input: 1.0, backward_weight: 1.0, together: None };

#[track_caller]
fn check(s: &Summary, makespan: f64, work: f64, peak: &[f64]) {
    same(s.makespan, makespan);
    for (w, b) in s.work.iter().zip(&s.bubble) {
        same(*w, work);
        same(*b, makespan - work);
    }
    all_same(&s.peak_live, peak);
    assert!(s.weight_versions.iter().all(|v| *v == 1));
}

#[test]
fn gpipe() {
    check(&run(&made(Kind::GPipe, 4, 8), &EVEN), 33.0, 24.0, &[8.0; 4]);
}

#[test]
fn one_f_one_b() {
    check(&run(&made(Kind::OneFOneB, 4, 8), &EVEN), 33.0, 24.0, &[4.0, 3.0, 2.0, 1.0]);
}

#[test]
fn interleaved() {
    check(&run(&made(Kind::Interleaved, 4, 8), &EVEN), 28.5, 24.0, &[5.5, 4.5, 3.5, 2.5]);
}

#[test]
fn zb_h1() {
    check(&run(&made(Kind::ZbH1, 4, 8), &EVEN), 27.0, 24.0, &[4.0, 3.5, 3.0, 2.5]);
}

#[test]
fn zb_h2() {
    let s = run(&made(Kind::ZbH2, 4, 8), &EVEN);
    check(&s, 27.0, 24.0, &[7.0, 6.0, 5.0, 4.0]);
    all_same(&s.span, &[24.0; 4]);
    all_same(&s.bubble_in_span, &[0.0; 4]);
}

#[test]
fn zb_v() {
    // Chunk times of 0.5.
    let s = run(&made(Kind::ZbV, 4, 12), &EVEN);
    check(&s, 37.5, 36.0, &[4.0; 4]);
    all_same(&s.span, &[36.0; 4]);
}

#[test]
fn chimera() {
    // T_F : T_full backward = 1 : 1, then 1 : 2.
    let one = PassTimes::new(1.0, 0.5, 0.5);
    let ends = [3.0, 4.0, 4.0, 3.0];
    let eight = [5.0, 6.0, 7.0, 8.0, 8.0, 7.0, 6.0, 5.0];
    for (p, times, makespan, work, peak) in [
        (4, &one, 10.0, 8.0, &ends[..]),
        (8, &one, 22.0, 16.0, &eight[..]),
        (4, &EVEN, 16.0, 12.0, &ends[..]),
        (8, &EVEN, 36.0, 24.0, &eight[..]),
    ] {
        let mut shape = Shape::new(p, p);
        shape.costs.forward = times.forward;
        shape.costs.backward = times.backward_input;
        shape.costs.weight = times.backward_weight;
        let s = run(&generate(Kind::Chimera, &shape).unwrap(), times);
        check(&s, makespan, work, peak);
        assert!(s.weight_copies.iter().all(|c| *c == 2.0));
    }
}

#[test]
fn dualpipe() {
    let program = made(Kind::DualPipe, 8, 20);
    check(&run(&program, &EVEN), 66.0, 60.0, &[9.0; 8]);
    // Perfect overlap: a pair takes 2.
    let s = run(&program, &PassTimes { together: Some(2.0), ..EVEN });
    same(s.makespan, 52.0);
    assert!(s.work.iter().all(|w| (49.0..=51.0).contains(w)), "{:?}", s.work);
    assert!(s.bubble.iter().all(|b| *b <= 3.0 + 1e-9), "{:?}", s.bubble);
    all_same(&s.peak_live, &[9.0; 8]);
    // Where the printed form of the bubble differs from what the schedule does.
    for (w, b, bubble) in [(0.9, 1.1, 6.6), (1.2, 0.8, 6.0)] {
        let s = run(&program, &PassTimes::new(1.0, b, w));
        same(s.bubble.iter().copied().fold(0.0, f64::max), bubble);
    }
}

#[test]
fn dualpipev() {
    // Chunk times of 0.5; a pair of chunks takes 1.5.
    check(&run(&made(Kind::DualPipeV, 4, 20), &EVEN), 63.0, 60.0, &[4.5; 4]);
}
