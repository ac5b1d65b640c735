//! Programs of two ranks, worked out on paper.

use bessemer_schedule::{Fill, Filler, Flow, Instruction, Pass, Place, Program, Shape, generate};
use bessemer_sim::{
    Costs, Interval, Jitter, Kind, Link, PassTimes, Sample, Samples, SimError, Step, Summary, lower_bound,
    peak_live, simulate, weight_versions,
};

const UP: Place = Place { rank: 1, chunk: 0 };
const DOWN: Place = Place { rank: 0, chunk: 0 };

fn pass(micro: usize) -> Pass {
    Pass { micro, chunk: 0, version: 0 }
}

fn send(flow: Flow, micro: usize, to: Place) -> Instruction {
    Instruction::Send { flow, micro, chunk: 0, to }
}

fn receive(flow: Flow, micro: usize, from: Place) -> Instruction {
    Instruction::Receive { flow, micro, chunk: 0, from }
}

/// Two ranks, one stage each, two micro-batches: all forwards, then all backwards.
fn two_ranks() -> Program {
    use Flow::{Activation as A, Gradient as G};
    use Instruction::{Backward, Forward};
    Program {
        name: "by hand".into(),
        stages: 2,
        updates: 1,
        routes: vec![vec![DOWN, UP]],
        route_of: vec![0, 0],
        update_of: vec![0, 0],
        lists: vec![
            vec![
                Forward(pass(0)),
                send(A, 0, UP),
                Forward(pass(1)),
                send(A, 1, UP),
                receive(G, 0, UP),
                Backward(pass(0)),
                receive(G, 1, UP),
                Backward(pass(1)),
                Instruction::Step { chunk: 0, update: 0 },
            ],
            vec![
                receive(A, 0, DOWN),
                Forward(pass(0)),
                receive(A, 1, DOWN),
                Forward(pass(1)),
                Backward(pass(0)),
                send(G, 0, DOWN),
                Backward(pass(1)),
                send(G, 1, DOWN),
                Instruction::Step { chunk: 0, update: 0 },
            ],
        ],
    }
}

fn work(program: &Program, costs: &Costs, rank: usize) -> Vec<(f64, f64)> {
    let timeline = simulate(program, costs).unwrap();
    timeline.work(program, rank).map(|(_, _, t)| (t.start, t.end)).collect()
}

fn step(rank: usize, index: usize) -> Step {
    Step { rank, index }
}

#[test]
fn without_messages_the_order_alone_counts() {
    let program = two_ranks();
    // F 1, B 2.
    let costs = Costs::per_rank(&program, &PassTimes::new(1.0, 1.0, 1.0));
    assert_eq!(work(&program, &costs, 0), [(0.0, 1.0), (1.0, 2.0), (5.0, 7.0), (7.0, 9.0)]);
    assert_eq!(work(&program, &costs, 1), [(1.0, 2.0), (2.0, 3.0), (3.0, 5.0), (5.0, 7.0)]);
    let timeline = simulate(&program, &costs).unwrap();
    // The receive lasts as long as the rank waits.
    assert_eq!(timeline.intervals[0][4], Interval { start: 2.0, end: 5.0 });
    let path = timeline.critical_path(&program);
    assert_eq!(path, [step(0, 0), step(1, 1), step(1, 3), step(1, 4), step(0, 5), step(0, 7)]);
    let s = Summary::new(&program, &costs, &timeline, 0.5);
    assert_eq!((s.makespan, s.span, s.work), (9.0, vec![9.0, 6.0], vec![6.0, 6.0]));
    assert_eq!((s.bubble, s.bubble_in_span), (vec![3.0, 3.0], vec![3.0, 0.0]));
    assert_eq!(
        (s.peak_live, s.weight_versions, s.weight_copies),
        (vec![2.0, 2.0], vec![1, 1], vec![1.0, 1.0])
    );
    assert!((s.utilisation - 12.0 / 18.0).abs() < 1e-12);
    // Rank 1 is reached after 1, works 6, and its last gradient needs 2 more on rank 0.
    assert_eq!(lower_bound(&program, &costs, &timeline), 9.0);
}

#[test]
fn a_message_takes_transfer_and_latency_and_queues_behind_the_one_before() {
    let program = two_ranks();
    let mut costs = Costs::per_rank(&program, &PassTimes::new(1.0, 1.0, 1.0));
    costs.messages.bytes = 30.0;
    // 3 of transfer and 0.5 of latency forward, nothing backward.
    costs.messages.links.insert((0, 1), Link { latency: 0.5, bandwidth: 10.0 });
    // Sent at 1: busy until 4, there at 4.5. Sent at 2: waits until 4, busy until 7, there at 7.5.
    assert_eq!(work(&program, &costs, 1), [(4.5, 5.5), (7.5, 8.5), (8.5, 10.5), (10.5, 12.5)]);
    assert_eq!(work(&program, &costs, 0), [(0.0, 1.0), (1.0, 2.0), (10.5, 12.5), (12.5, 14.5)]);
    let timeline = simulate(&program, &costs).unwrap();
    // The second message waited for the first, which was sent when the first forward was done.
    let path = timeline.critical_path(&program);
    assert_eq!(path, [step(0, 0), step(1, 3), step(1, 4), step(0, 5), step(0, 7)]);
    // The other direction has a link of its own.
    costs.messages.links.insert((1, 0), Link { latency: 2.0, bandwidth: f64::INFINITY });
    assert_eq!(work(&program, &costs, 0)[2], (12.5, 14.5));
}

#[test]
fn a_rank_of_its_own_speed() {
    let program = two_ranks();
    let times = [PassTimes::new(2.0, 2.0, 1.0), PassTimes::new(1.0, 0.5, 0.5)];
    let costs = Costs::by_rank(&program, &times);
    assert_eq!(work(&program, &costs, 1), [(2.0, 3.0), (4.0, 5.0), (5.0, 6.0), (6.0, 7.0)]);
    assert_eq!(work(&program, &costs, 0), [(0.0, 2.0), (2.0, 4.0), (6.0, 9.0), (9.0, 12.0)]);
    assert_eq!(costs, Costs::per_stage(&program, &times));
}

#[test]
fn the_optimizer_is_the_ranks_own_business_and_a_reduce_is_not() {
    let mut program = two_ranks();
    let mut costs = Costs::per_rank(&program, &PassTimes::new(1.0, 1.0, 1.0));
    for chunks in &mut costs.chunks {
        chunks[0].step = 0.25;
        chunks[0].reduce = 0.5;
    }
    assert_eq!(work(&program, &costs, 1)[4], (7.0, 7.25));
    assert_eq!(work(&program, &costs, 0)[4], (9.0, 9.25));
    // Both ranks hold both stages: each stage's reduce waits for the later of them.
    let other = |rank| Place { rank, chunk: 1 };
    program.routes.push(vec![other(1), other(0)]);
    costs = Costs { chunks: costs.chunks.iter().map(|c| vec![c[0]; 2]).collect(), ..costs };
    for (rank, list) in program.lists.iter_mut().enumerate() {
        let at = list.len() - 1;
        // Stage 0 before stage 1 on both.
        for chunk in if rank == 0 { [1, 0] } else { [0, 1] } {
            list.insert(at, Instruction::Reduce { chunk, update: 0 });
        }
    }
    assert_eq!(work(&program, &costs, 0)[4..], [(9.0, 9.5), (9.5, 10.0), (10.0, 10.25)]);
    assert_eq!(work(&program, &costs, 1)[4..], [(9.0, 9.5), (9.5, 10.0), (10.0, 10.25)]);
}

#[test]
fn fillers_take_their_time_where_they_stand() {
    let mut program = two_ranks();
    let fill = Instruction::Fill(Fill { filler: Filler::Invert, chunk: 0, unit: 0 });
    program.lists[0].insert(4, fill);
    let mut costs = Costs::per_rank(&program, &PassTimes::new(1.0, 1.0, 1.0));
    costs.chunks[0][0].fill[2] = 2.5;
    // In the bubble of 3: nothing else moves.
    assert_eq!(work(&program, &costs, 0), [(0.0, 1.0), (1.0, 2.0), (2.0, 4.5), (5.0, 7.0), (7.0, 9.0)]);
    costs.chunks[0][0].fill[2] = 4.0;
    assert_eq!(work(&program, &costs, 0)[3], (6.0, 8.0));
}

#[test]
fn the_parts_of_a_backward_hold_what_they_need() {
    let mut program = two_ranks();
    for list in &mut program.lists {
        let split = |i: &Instruction| match i {
            Instruction::Backward(p) => vec![Instruction::BackwardInput(*p)],
            Instruction::Step { .. } => (0..2).map(|m| Instruction::BackwardWeight(pass(m))).collect(),
            other => vec![*other],
        };
        *list = list.iter().flat_map(split).collect();
    }
    assert_eq!(peak_live(&program, 0.5), [2.0, 2.0]);
    // A third micro-batch's forward while both are pending.
    program.lists[0].insert(8, Instruction::Forward(pass(1)));
    assert_eq!(peak_live(&program, 0.5), [2.0, 2.0]);
    assert_eq!(peak_live(&program, 0.75), [2.5, 2.0]);
}

#[test]
fn versions_are_kept_for_those_who_still_read_them() {
    use Instruction::{Backward, Forward};
    let at = |micro, version| Pass { micro, chunk: 0, version };
    let step = |update| Instruction::Step { chunk: 0, update };
    let mut program = two_ranks();
    program.route_of = vec![0; 4];
    // Stashing: micro-batch 1 still needs version 0 when version 1 is there.
    program.lists[0] = vec![
        Forward(at(0, 0)),
        Forward(at(1, 0)),
        Backward(at(0, 0)),
        step(0),
        Forward(at(2, 1)),
        Backward(at(1, 0)),
        step(1),
        Backward(at(2, 1)),
        step(2),
    ];
    // Nobody reads an older one.
    program.lists[1] = vec![Forward(at(0, 0)), Backward(at(0, 0)), step(0), Forward(at(1, 1))];
    assert_eq!(weight_versions(&program), [2, 1]);
    // A forward that comes later and reads an older version keeps it, too.
    program.lists[1].extend([step(1), Forward(at(2, 0)), Forward(at(3, 1))]);
    assert_eq!(weight_versions(&program), [2, 3]);
}

#[test]
fn what_cannot_be_timed_is_refused_with_the_place() {
    let program = two_ranks();
    let costs = Costs::per_rank(&program, &PassTimes::new(1.0, 1.0, 1.0));
    let text = |program: &Program, costs: &Costs| simulate(program, costs).unwrap_err().to_string();

    let mut stuck = program.clone();
    stuck.lists[0].remove(1);
    let message = text(&stuck, &costs);
    assert!(
        message.contains("rank 0 waits at instruction 3")
            && message.contains("rank 1 waits at instruction 0"),
        "{message}"
    );

    let mut wrong = program.clone();
    wrong.lists[1][1] = Instruction::Forward(pass(2));
    assert!(text(&wrong, &costs).contains("rank 1, instruction 1 (F2)"));
    wrong.lists[1][1] = Instruction::Forward(Pass { micro: 0, chunk: 3, version: 0 });
    assert!(text(&wrong, &costs).contains("no chunk 3"));
    wrong.lists[1][1] = send(Flow::Gradient, 0, Place { rank: 2, chunk: 0 });
    assert!(text(&wrong, &costs).contains("no rank 2"));

    let few = Costs { chunks: costs.chunks[..1].to_vec(), ..costs.clone() };
    assert_eq!(simulate(&program, &few), Err(SimError::Missing { rank: 1, chunk: 0, have: 0 }));
    for value in [-1.0, f64::NAN, f64::INFINITY] {
        let mut bad = costs.clone();
        bad.chunks[1][0].forward = value;
        assert!(matches!(simulate(&program, &bad), Err(SimError::Value { .. })));
        let bad = Costs { jitter: Jitter { share: value, seed: 0 }, ..costs.clone() };
        assert!(matches!(simulate(&program, &bad), Err(SimError::Value { .. })));
    }
    let mut bad = costs.clone();
    bad.messages.link.bandwidth = 0.0;
    assert!(matches!(simulate(&program, &bad), Err(SimError::Value { .. })));
}

#[test]
fn measured_times_become_costs_by_their_median() {
    let program = two_ranks();
    let mut samples = Samples::default();
    assert!(samples.is_empty());
    let mut add = |rank, kind, times: &[f64]| {
        for &time in times {
            samples.add(&Sample { rank, chunk: 0, kind, time });
        }
    };
    add(0, Kind::Forward, &[1.0, 9.0, 2.0]);
    add(0, Kind::BackwardInput, &[3.0, 4.0]);
    add(0, Kind::BackwardWeight, &[5.0]);
    add(0, Kind::Together { backward: 0 }, &[7.0]);
    add(1, Kind::Forward, &[1.0]);
    add(1, Kind::Step, &[0.5]);
    add(1, Kind::Fill(Filler::Invert), &[0.75]);
    assert_eq!(samples.costs(&program), Err(SimError::Missing { rank: 1, chunk: 0, have: 0 }));
    samples.add(&Sample { rank: 1, chunk: 0, kind: Kind::Backward, time: 6.0 });
    let costs = samples.costs(&program).unwrap();
    let t = costs.chunks[0][0];
    assert_eq!((t.forward, t.backward_input, t.backward_weight, t.backward), (2.0, 3.5, 5.0, 8.5));
    assert_eq!(costs.together[&(0, 0, 0)], 7.0);
    let t = costs.chunks[1][0];
    assert_eq!((t.backward, t.step, t.fill[2]), (6.0, 0.5, 0.75));
    assert_eq!(simulate(&program, &costs).unwrap().makespan(&program), 2.0 + 2.0 + 1.0 + 6.0 + 8.5 + 8.5);
}

#[test]
fn what_mirrored_ranks_do_together_takes_as_long_as_the_last_measures() {
    let program = generate(bessemer_schedule::Kind::Chimera, &Shape::new(2, 2)).unwrap();
    let mut samples = Samples::default();
    for rank in 0..2 {
        for chunk in 0..2 {
            let mut add = |kind, time| samples.add(&Sample { rank, chunk, kind, time });
            add(Kind::Forward, 1.0);
            add(Kind::Backward, 2.0);
            // Rank 0 comes early and waits.
            add(Kind::Reduce, if rank == 0 { 1.5 } else { 0.25 });
        }
    }
    let costs = samples.costs(&program).unwrap();
    assert!(costs.chunks.iter().flatten().all(|t| t.reduce == 0.25));
}
