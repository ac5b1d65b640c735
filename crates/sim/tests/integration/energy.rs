//! Plans of clocks: what waits fills its slack, what is waited for keeps its clock, and dependencies hold.

use bessemer_schedule::{Instruction, Kind, Limits, Program, Shape, generate, verify};
use bessemer_sim::energy::{Clock, ClockControl, Options, Plan, Profile, Recorder, plan};
use bessemer_sim::{Costs, PassTimes, peak_live, simulate};
use proptest::prelude::*;

fn made(kind: Kind, p: usize, m: usize) -> Program {
    generate(kind, &Shape::new(p, m)).unwrap()
}

fn even(program: &Program) -> Costs {
    Costs::per_rank(program, &PassTimes::new(1.0, 1.0, 1.0))
}

/// Two clocks: full, and half as fast at a quarter of the power.
fn two_clocks(idle: f64) -> Profile {
    Profile::new(idle, vec![Clock::even(1000.0, 1.0, 100.0), Clock::even(500.0, 2.0, 25.0)]).unwrap()
}

/// What must hold of any plan.
#[track_caller]
fn check(plan: &Plan, original: &Program, costs: &Costs, profile: &Profile, options: &Options) {
    verify(&plan.program, &Limits::default()).unwrap();
    // The same instructions on every rank.
    for (a, b) in plan.program.lists.iter().zip(&original.lists) {
        let sorted = |list: &[Instruction]| {
            let mut all: Vec<String> = list.iter().map(|i| i.to_string()).collect();
            all.sort();
            all
        };
        assert_eq!(sorted(a), sorted(b));
    }
    let full = simulate(original, costs).unwrap().makespan(original);
    assert!((plan.before.makespan - full).abs() < 1e-9);
    assert!(plan.after.makespan <= full * (1.0 + options.slowdown) + 1e-6, "{:?}", plan.after);
    assert!(plan.after.energy <= plan.before.energy * (1.0 + 1e-12), "{:?} {:?}", plan.before, plan.after);
    let (now, before) = (peak_live(&plan.program, 0.5), peak_live(original, 0.5));
    assert!(now.iter().zip(&before).all(|(a, b)| a <= b), "{now:?} {before:?}");
    // Energy anew, from the timeline alone.
    let mut energy = 0.0;
    for rank in 0..original.ranks() {
        let mut busy = 0.0;
        for (index, i, t) in plan.timeline.work(&plan.program, rank) {
            energy += profile.effect(plan.clocks[rank][index], i).watts * t.length();
            busy += t.length();
            let full = costs.time(rank, i);
            assert!((t.length() - full * profile.effect(plan.clocks[rank][index], i).time).abs() < 1e-9);
        }
        energy += profile.idle_watts * (plan.after.makespan - busy);
    }
    assert!((energy - plan.after.energy).abs() < 1e-6 * energy.max(1.0), "{energy} {:?}", plan.after);
}

#[test]
fn a_faster_rank_runs_slower_until_its_slack_is_filled() {
    // GPipe on two ranks, the second twice as fast: rank 0 works 0-2-4, waits for gradients, works until the end.
    let program = made(Kind::GPipe, 2, 2);
    let costs = Costs::by_rank(&program, &[PassTimes::new(2.0, 2.0, 2.0), PassTimes::new(1.0, 1.0, 1.0)]);
    // Rank 1: F0 2-3, F1 4-5, B 5-7, 7-9. Rank 0: F 0-2-4, B 7-11-15.
    let profile = two_clocks(0.0);
    let options = Options { reorder: false, ..Options::default() };
    let plan = plan(&program, &costs, &profile, &options).unwrap();
    check(&plan, &program, &costs, &profile, &options);
    let clock = |rank: usize, name: &str| {
        let index = plan.program.lists[rank].iter().position(|i| i.to_string() == name).unwrap();
        plan.clocks[rank][index]
    };
    // The way F0 F1 (rank 0), F1 B0 or B1 (rank 1), B, B (rank 0) has no slack: only F0 of rank 1 has, one unit, and the
    // later of its backwards, which ends at 9 and is wanted at 11.
    let lowered: Vec<&str> = ["F0", "F1", "B0", "B1"].into_iter().filter(|n| clock(1, n) == 1).collect();
    assert_eq!(lowered, ["F0", "B1"]);
    assert!(["F0", "F1", "B0", "B1"].into_iter().all(|n| clock(0, n) == 0));
    assert_eq!(plan.after.makespan, 15.0);
    // 12 + 6 at 100 watts; 3 of them now take twice as long at a quarter.
    assert_eq!((plan.before.energy, plan.after.energy), (1800.0, 1650.0));
    assert!((plan.saving() - 150.0 / 1800.0).abs() < 1e-12);
}

#[test]
fn nothing_is_lowered_where_it_saves_nothing() {
    // Idle costs 75 watts: a unit at full clock is 25 above idle for 1, at half clock 50 below it. Lower is better; at
    // equal energy above idle it is not.
    let program = made(Kind::OneFOneB, 4, 8);
    let clocks = vec![Clock::even(1000.0, 1.0, 100.0), Clock::even(500.0, 2.0, 87.5)];
    let profile = Profile::new(75.0, clocks).unwrap();
    let plan = plan(&program, &even(&program), &profile, &Options::default()).unwrap();
    assert!(plan.clocks.iter().flatten().all(|c| *c == 0));
    assert_eq!((plan.after, plan.saving(), plan.moves), (plan.before, 0.0, 0));
}

#[test]
fn schedules_with_bubbles_save_and_take_no_longer() {
    let profile = Profile::model(0.2);
    for kind in [Kind::OneFOneB, Kind::Interleaved, Kind::ZbH1, Kind::Chimera, Kind::DualPipe] {
        let (p, m) = (4, 8);
        let program = made(kind, p, m);
        let costs = even(&program);
        let mut last = 0.0;
        for (slowdown, reorder) in [(0.0, false), (0.0, true), (0.009, true)] {
            let options = Options { slowdown, reorder, pending_share: 0.5 };
            let plan = plan(&program, &costs, &profile, &options).unwrap();
            check(&plan, &program, &costs, &profile, &options);
            assert!(plan.after.makespan < 1.01 * plan.before.makespan);
            assert!(plan.saving() > 0.01, "{kind}: {}", plan.saving());
            if reorder && slowdown == 0.0 {
                assert!(plan.saving() >= last, "{kind}: {} after {last}", plan.saving());
            }
            last = plan.saving();
        }
    }
}

#[test]
fn bubbles_come_behind_work_that_nothing_waits_for() {
    // Two units of Chimera: between them some backwards are waited for and some are not.
    let program = made(Kind::Chimera, 8, 16);
    let profile = Profile::model(0.2);
    let of = |reorder| {
        let options = Options { reorder, ..Options::default() };
        let plan = plan(&program, &even(&program), &profile, &options).unwrap();
        check(&plan, &program, &even(&program), &profile, &options);
        plan
    };
    let (kept, moved) = (of(false), of(true));
    assert!(moved.moves > 0 && moved.saving() > kept.saving() + 0.01, "{} {}", kept.saving(), moved.saving());
    // In balanced GPipe everything is waited for: every rank's forwards and backwards follow one another on the way.
    let program = made(Kind::GPipe, 4, 8);
    let plan = plan(&program, &even(&program), &profile, &Options::default()).unwrap();
    assert!(plan.clocks.iter().flatten().all(|c| *c == 0));
}

#[test]
fn a_control_is_asked_when_the_clock_changes_and_only_then() {
    let program = made(Kind::OneFOneB, 4, 8);
    let profile = Profile::model(0.2);
    let plan = plan(&program, &even(&program), &profile, &Options::default()).unwrap();
    let mut recorder = Recorder::default();
    for rank in 0..4 {
        for index in 0..plan.program.lists[rank].len() {
            plan.apply(&profile, rank, index, &mut recorder).unwrap();
        }
        recorder.release(rank).unwrap();
    }
    for rank in 0..4 {
        let of_rank: Vec<Option<f64>> =
            recorder.settings.iter().filter(|s| s.0 == rank).map(|s| s.1).collect();
        assert!(of_rank.windows(2).all(|w| w[0] != w[1]), "{of_rank:?}");
        assert!(of_rank[0].is_some() && of_rank.last() == Some(&None));
        let used: std::collections::BTreeSet<usize> =
            plan.timeline.work(&plan.program, rank).map(|(index, ..)| plan.clocks[rank][index]).collect();
        let asked: std::collections::BTreeSet<i64> = of_rank.iter().flatten().map(|m| *m as i64).collect();
        assert_eq!(asked, used.into_iter().map(|c| profile.clocks[c].mhz as i64).collect());
    }
}

#[test]
fn profiles_that_cannot_be_are_refused() {
    let full = Clock::even(1000.0, 1.0, 100.0);
    let text = |idle, clocks| Profile::new(idle, clocks).unwrap_err().to_string();
    assert!(text(0.0, vec![]).contains("at least one clock"));
    assert!(text(-1.0, vec![full]).contains("idle power"));
    assert!(text(0.0, vec![Clock::even(1000.0, 1.1, 100.0)]).contains("wanted 1 there"));
    assert!(text(0.0, vec![full, full]).contains("highest to the lowest"));
    assert!(text(0.0, vec![full, Clock::even(500.0, 0.9, 50.0)]).contains("at least as long"));
    assert!(text(0.0, vec![full, Clock::even(500.0, f64::NAN, 50.0)]).contains("at least as long"));
    assert!(text(0.0, vec![full, Clock::even(500.0, 2.0, f64::INFINITY)]).contains("watts"));
    assert!(text(0.0, vec![Clock::even(0.0, 1.0, 1.0)]).contains("above 0 MHz"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_plan_keeps_dependencies_time_and_memory(
        kind in 0..Kind::ALL.len(),
        half in 1..=3usize,
        times in proptest::collection::vec(1..=12u32, 18),
        slowdown in 0..=1u32,
    ) {
        let (p, kind) = (2 * half, Kind::ALL[kind]);
        let Ok(program) = generate(kind, &Shape::new(p, 2 * p)) else { return Ok(()) };
        let time = |i: usize| f64::from(times[i]) / 4.0;
        let ranks: Vec<PassTimes> =
            (0..p).map(|r| PassTimes::new(time(3 * r), time(3 * r + 1), time(3 * r + 2))).collect();
        let costs = Costs::by_rank(&program, &ranks);
        let options = Options { slowdown: f64::from(slowdown) * 0.009, ..Options::default() };
        let profile = Profile::model(0.1);
        let plan = plan(&program, &costs, &profile, &options).unwrap();
        check(&plan, &program, &costs, &profile, &options);
        prop_assert!(plan.after.makespan < 1.01 * plan.before.makespan);
    }
}
