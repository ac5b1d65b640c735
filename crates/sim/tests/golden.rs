//! The golden values of the schedules, exactly: event simulation without communication, T_F = T_B = T_W = 1 unless said.
//! Every value comes from published schedules that were reproduced by an independent simulation, not from this program.

#![allow(clippy::unwrap_used)]

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
