//! What holds for any sizes and times.

use bessemer_schedule::{Kind, Limits, Program, Shape, generate, verify};
use bessemer_sim::formulas::{
    chimera_bubble, dualpipe_bubble, flush_bubble, flush_bubble_rate, interleaved_bubble, zb_h1_bubble,
    zb_h2_bubble_in_span, zb_v_bubble,
};
use bessemer_sim::{
    Costs, Jitter, Link, PassTimes, Summary, Timeline, lower_bound, peak_live, simulate, weight_versions,
};
use proptest::prelude::*;

fn shape(p: usize, m: usize, chunks: Option<usize>) -> Shape {
    Shape { chunks, ..Shape::new(p, m) }
}

fn run(program: &Program, costs: &Costs) -> (Timeline, Summary) {
    let timeline = simulate(program, costs).unwrap();
    let summary = Summary::new(program, costs, &timeline, 0.5);
    (timeline, summary)
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

/// Whatever a schedule makes of p ranks and about m micro-batches.
fn any_program() -> impl Strategy<Value = Program> {
    (0..Kind::ALL.len(), 1..=8usize, 1..=20usize, 1..=3usize).prop_filter_map("sizes", |(k, p, m, v)| {
        let kind = Kind::ALL[k];
        // Sizes that suit most kinds, besides those that suit few.
        let sizes = [
            (p, m, matches!(kind, Kind::Interleaved | Kind::BreadthFirst).then_some(v)),
            (2 * p.div_ceil(2), 4 * p.div_ceil(2) * m.div_ceil(4), None),
        ];
        sizes.into_iter().find_map(|(p, m, v)| generate(kind, &shape(p, m, v)).ok())
    })
}

fn any_times() -> impl Strategy<Value = PassTimes> {
    let time = || (1..=40u32).prop_map(|t| f64::from(t) / 8.0);
    (time(), time(), time(), 0..=8u32).prop_map(|(f, b, w, gain)| {
        let sum = f + b + w;
        PassTimes { together: Some(sum * (1.0 - f64::from(gain) / 20.0)), ..PassTimes::new(f, b, w) }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn nothing_beats_the_lower_bound_and_the_critical_path_fills_the_makespan(
        program in any_program(),
        ranks in proptest::collection::vec(any_times(), 8),
        (share, seed) in (0..3u32, any::<u64>()),
        (latency, bytes) in (0..3u32, 0..3u32),
    ) {
        let mut costs = Costs::by_rank(&program, &ranks);
        costs.jitter = Jitter { share: f64::from(share) / 10.0, seed };
        costs.messages.bytes = f64::from(bytes);
        costs.messages.link = Link { latency: f64::from(latency) / 4.0, bandwidth: 4.0 };
        let (timeline, s) = run(&program, &costs);
        let bound = lower_bound(&program, &costs, &timeline);
        prop_assert!(s.makespan >= bound - 1e-9, "makespan {} below {bound}", s.makespan);
        prop_assert!(s.attainable_utilisation >= s.utilisation - 1e-9);
        // The critical path is a chain of work, one after the other, from a beginning to the end.
        let path = timeline.critical_path(&program);
        let at = |i: usize| timeline.intervals[path[i].rank][path[i].index];
        for i in 1..path.len() {
            prop_assert!(at(i).start >= at(i - 1).end - 1e-9);
        }
        let length: f64 = (0..path.len()).map(|i| at(i).length()).sum();
        prop_assert!(s.makespan >= length - 1e-9);
        prop_assert!(close(at(path.len() - 1).end - at(0).start, s.makespan));
        if bytes == 0 && latency == 0 {
            prop_assert!(close(length, s.makespan), "a gap without messages: {length} of {}", s.makespan);
        }
        for rank in 0..program.ranks() {
            prop_assert!(close(s.work[rank] + s.bubble[rank], s.makespan));
            prop_assert!(s.bubble_in_span[rank] >= -1e-9 && s.span[rank] <= s.makespan + 1e-9);
            // One thing at a time.
            let work: Vec<_> = timeline.work(&program, rank).map(|(_, _, t)| t).collect();
            prop_assert!(work.windows(2).all(|w| w[0].end <= w[1].start));
        }
        prop_assert_eq!(&timeline, &simulate(&program, &costs).unwrap());
    }

    #[test]
    fn more_time_for_anything_never_shortens_the_step(
        program in any_program(),
        ranks in proptest::collection::vec(any_times(), 8),
        (rank, part, more) in (0..8usize, 0..5usize, 1..=16u32),
    ) {
        let more = f64::from(more) / 8.0;
        let costs = Costs::by_rank(&program, &ranks);
        let (_, before) = run(&program, &costs);
        let mut slower = costs.clone();
        let rank = rank % program.ranks();
        for t in &mut slower.chunks[rank] {
            match part {
                0 => t.forward += more,
                1 => (t.backward_input, t.backward) = (t.backward_input + more, t.backward + more),
                2 => (t.backward_weight, t.backward) = (t.backward_weight + more, t.backward + more),
                3 => t.step += more,
                _ => slower.messages.link.latency = more,
            }
        }
        let (_, after) = run(&program, &slower);
        prop_assert!(after.makespan >= before.makespan - 1e-9);
    }

    #[test]
    fn the_verifier_counts_the_same_memory_and_versions(program in any_program(), share in 0..=4u32) {
        let share = f64::from(share) / 4.0;
        let report = verify(&program, &Limits { weight_share: share, ..Limits::default() }).unwrap();
        let peak = peak_live(&program, share);
        prop_assert!(peak.iter().zip(&report.peak_live).all(|(a, b)| close(*a, *b)), "{peak:?} {:?}", report.peak_live);
        prop_assert_eq!(weight_versions(&program), report.weight_versions);
    }

    #[test]
    fn all_times_doubled_is_everything_doubled(program in any_program(), times in any_times()) {
        let double = PassTimes {
            together: times.together.map(|t| 2.0 * t),
            ..PassTimes::new(2.0 * times.forward, 2.0 * times.backward_input, 2.0 * times.backward_weight)
        };
        let (_, one) = run(&program, &Costs::per_rank(&program, &times));
        let (_, two) = run(&program, &Costs::per_rank(&program, &double));
        prop_assert!(close(two.makespan, 2.0 * one.makespan));
        prop_assert_eq!(one.peak_live, two.peak_live);
    }
}

#[test]
fn the_closed_forms_hold_over_sizes_and_times() {
    let all = [(1.0, 1.0, 1.0), (1.0, 1.5, 0.5), (2.0, 3.0, 1.0), (1.0, 1.0, 0.25)];
    for p in 1..=8 {
        for m in [p, p + 1, 2 * p, 3 * p + 1, 4 * p] {
            for (f, b, w) in all {
                let t = PassTimes::new(f, b, w);
                let of = |kind, chunks| {
                    let program = generate(kind, &shape(p, m, chunks)).unwrap();
                    let costs = Costs::per_rank(&program, &t);
                    run(&program, &costs).1
                };
                for kind in [Kind::GPipe, Kind::OneFOneB] {
                    let s = of(kind, None);
                    assert!(s.bubble.iter().all(|x| close(*x, flush_bubble(p, &t))), "{kind} {p} {m}");
                    assert!(close(s.bubble_rate, flush_bubble_rate(p, m)));
                    for (rank, peak) in s.peak_live.iter().enumerate() {
                        assert_eq!(*peak, if kind == Kind::GPipe { m } else { (p - rank).min(m) } as f64);
                    }
                    // Nothing is better without splitting the backward or the stages.
                    assert!(close(s.utilisation, s.attainable_utilisation));
                }
                if m >= p {
                    for v in 1..=3 {
                        let s = of(Kind::BreadthFirst, Some(v));
                        let wanted = interleaved_bubble(p, v, &t);
                        assert!(
                            s.bubble.iter().all(|x| close(*x, wanted)),
                            "breadth-first {p} {m} {v}: {:?}",
                            s.bubble
                        );
                        assert!(s.peak_live.iter().all(|live| close(*live, m as f64)), "{p} {m} {v}");
                    }
                }
                if m.is_multiple_of(p) {
                    for v in 1..=3 {
                        let s = of(Kind::Interleaved, Some(v));
                        let wanted = interleaved_bubble(p, v, &t);
                        assert!(
                            s.bubble.iter().all(|x| close(*x, wanted)),
                            "interleaved {p} {m} {v}: {:?}",
                            s.bubble
                        );
                        // p (1 + (p - 1)/(p v)) on the first rank, where there are enough micro-batches.
                        if m > p && v > 1 {
                            let wanted = p as f64 + (p as f64 - 1.0) / v as f64;
                            assert!((s.peak_live[0] - wanted).abs() < 1e-6, "{p} {m} {v}: {:?}", s.peak_live);
                        }
                    }
                }
                // ZB-H1's form is that of equal parts, or a weight part that fits.
                if m >= 2 * p && f == b && w <= f {
                    let s = of(Kind::ZbH1, None);
                    let wanted = zb_h1_bubble(p, &t);
                    assert!(
                        s.bubble.iter().all(|x| close(*x, wanted)),
                        "zb-h1 {p} {m} {t:?}: {:?} {wanted}",
                        s.bubble
                    );
                    for (rank, peak) in s.peak_live.iter().enumerate() {
                        assert_eq!(*peak, (p - rank) as f64 + rank as f64 * 0.5);
                    }
                }
            }
        }
    }
}

#[test]
fn the_closed_forms_of_two_directions_and_of_full_zero_bubbles_hold_over_sizes() {
    let even = PassTimes::new(1.0, 1.0, 1.0);
    let of = |kind, p, m, times: &PassTimes| {
        let program = generate(kind, &shape(p, m, None)).unwrap();
        let costs = Costs::per_rank(&program, times);
        run(&program, &costs).1
    };
    let all = |found: &[f64], wanted: f64| found.iter().all(|x| close(*x, wanted));
    for p in 2..=8 {
        for m in [2 * p, 3 * p + 1, 4 * p] {
            let s = of(Kind::ZbH2, p, m, &even);
            assert!(
                all(&s.bubble_in_span, zb_h2_bubble_in_span(p, &even)),
                "zb-h2 {p} {m}: {:?}",
                s.bubble_in_span
            );
            assert_eq!(s.peak_live[0], (2 * p - 1) as f64);
            if m >= 3 * p {
                let s = of(Kind::ZbV, p, m, &even);
                assert!(all(&s.bubble_in_span, 0.0), "zb-v {p} {m}: {:?}", s.bubble_in_span);
                assert!(all(&s.peak_live, p as f64), "zb-v {p} {m}: {:?}", s.peak_live);
            }
            for (f, b, w) in
                [(1.0, 1.0, 1.0), (1.0, 1.2, 0.8), (1.0, 2.2, 0.8), (2.0, 3.0, 1.6), (1.0, 3.0, 1.0)]
            {
                let times = PassTimes::new(f, b, w);
                let s = of(Kind::ZbV, p, m, &times);
                let longest = s.bubble.iter().copied().fold(0.0, f64::max);
                assert!(close(longest, zb_v_bubble(p, &times)), "zb-v {p} {m} {f} {b} {w}: {longest}");
            }
            let s = of(Kind::DualPipeV, p, m, &even);
            // In chunk units: a chunk's times are half, and its pairs half of the rank's.
            let wanted = dualpipe_bubble(2 * p, &PassTimes::new(0.5, 0.5, 0.5));
            assert!(all(&s.bubble, wanted), "dualpipev {p} {m}: {:?} {wanted}", s.bubble);
            assert!(all(&s.peak_live, (2 * p + 1) as f64 / 2.0), "dualpipev {p} {m}: {:?}", s.peak_live);
        }
    }
    for p in [2, 4, 6, 8] {
        let s = of(Kind::Chimera, p, p, &even);
        assert!(all(&s.bubble, chimera_bubble(p, 1.0)), "chimera {p}: {:?}", s.bubble);
        assert_eq!((s.peak_live[0], s.peak_live[p / 2]), ((p / 2 + 1) as f64, p as f64));
        for m in [2 * p, 2 * p + 2, 4 * p] {
            for w in [1.0, 0.5, 0.75] {
                let t = PassTimes::new(1.0, 1.0, w);
                let s = of(Kind::DualPipe, p, m, &t);
                let wanted = dualpipe_bubble(p, &t);
                assert!(all(&s.bubble, wanted), "dualpipe {p} {m} {t:?}: {:?} {wanted}", s.bubble);
                assert!(all(&s.peak_live, (p + 1) as f64));
            }
        }
    }
}

#[test]
fn asynchronous_schedules_keep_the_versions_that_they_are_known_for() {
    for p in 1..=6 {
        let versions = |kind, m| {
            let program = generate(kind, &shape(p, m, None)).unwrap();
            run(&program, &Costs::per_rank(&program, &PassTimes::new(1.0, 1.0, 1.0))).1
        };
        let s = versions(Kind::PipeDream, 4 * p);
        let wanted: Vec<usize> = (0..p).map(|rank| p - rank).collect();
        assert_eq!(s.weight_versions, wanted);
        // No flush: only filling and draining the pipe cost, whatever the number of updates.
        assert!(s.bubble.iter().all(|b| close(*b, flush_bubble(p, &PassTimes::new(1.0, 1.0, 1.0)))));
        let s = versions(Kind::PipeDream2Bw, 4 * p);
        assert!(
            s.weight_versions.iter().all(|v| *v <= 2) && (p == 1 || s.weight_versions[0] == 2),
            "{p}: {s:?}"
        );
    }
}
