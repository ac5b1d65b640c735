//! Replays of steps, worked out on paper and by another way of counting.

use bessemer_mesh::{Axis, Dim, PositionOrder, RowsContents, RowsMessage};
use bessemer_program::{Class, Collective, CollectiveKind, Node, Phase, Recorder, UnitProgram};
use bessemer_sim::replay::{
    CollectiveSeconds, CostTable, LinearSeconds, Medium, NodeCosts, Progress, RankEvent, RankWriter,
    ReplayGroup, RowSeconds, StepEvents, Traffic, on_rows, op_key, replay,
};
use bessemer_sim::{Interval, Link, SimError};
use bessemer_tensor::Buffer;
use bessemer_tensor::op::{Fill, GroupedLinear, Op};
use bessemer_units::DType;
use proptest::prelude::*;

fn compute(seconds: f64) -> RankEvent {
    RankEvent::Compute { seconds }
}

fn group(label: &str, ranks: &[usize], progress: Progress) -> ReplayGroup {
    ReplayGroup { label: label.into(), number: 0, ranks: ranks.to_vec(), progress, medium: Medium::Own }
}

/// Two ranks with one group; `a` and `b` are the numbers of two names.
fn two_ranks(progress: Progress, lists: impl Fn(usize, usize) -> [Vec<RankEvent>; 2]) -> StepEvents {
    let mut step = StepEvents::new(2);
    step.groups.push(group("tensor", &[0, 1], progress));
    let (a, b) = (step.name("a"), step.name("b"));
    step.lists = lists(a, b).to_vec();
    step
}

fn spans(intervals: &[Interval]) -> Vec<(f64, f64)> {
    intervals.iter().map(|i| (i.start, i.end)).collect()
}

/// Rank 0 starts two collectives and computes beside them; rank 1 comes later.
fn overlapped(name: usize, other: usize) -> [Vec<RankEvent>; 2] {
    let start = |name, seconds| RankEvent::Start { group: 0, seconds, name };
    let wait = |number| RankEvent::Wait { group: 0, number };
    [
        vec![compute(1.0), start(name, 4.0), compute(2.0), start(other, 1.0), wait(0), compute(1.0), wait(1)],
        vec![compute(2.0), start(name, 3.0), compute(5.0), start(other, 1.0), wait(0), compute(1.0), wait(1)],
    ]
}

#[test]
fn a_collective_begins_when_its_last_rank_has_come_and_the_one_before_is_done() {
    let step = two_ranks(Progress::Thread, overlapped);
    let found = replay(&step).unwrap();
    // "a" from 2: until 6 on rank 0, 5 on rank 1. "b": rank 0 could from 6 on, rank 1 begins it at 7.
    let begins_and_ends = |at: usize| {
        let span = found.collectives[0][at];
        (span.name, span.interval.start, span.interval.end)
    };
    assert_eq!([begins_and_ends(0), begins_and_ends(1)], [(0, 2.0, 6.0), (1, 7.0, 8.0)]);
    assert_eq!(
        spans(&found.events[0]),
        [(0.0, 1.0), (1.0, 1.0), (1.0, 3.0), (3.0, 3.0), (3.0, 6.0), (6.0, 7.0), (7.0, 8.0)]
    );
    assert_eq!(
        spans(&found.events[1]),
        [(0.0, 2.0), (2.0, 2.0), (2.0, 7.0), (7.0, 7.0), (7.0, 7.0), (7.0, 8.0), (8.0, 8.0)]
    );
    assert_eq!(found.seconds(), 8.0);
    // Rank 0 waits from 3 to 6 and from 7 to 8; rank 1 never.
    assert_eq!(found.exposed(&step, 0).into_iter().collect::<Vec<_>>(), [("tensor", 4.0)]);
    assert_eq!(found.exposed(&step, 1)["tensor"], 0.0);
}

#[test]
fn without_a_progress_thread_a_start_lasts_as_long_as_the_collective() {
    let step = two_ranks(Progress::Caller, overlapped);
    let found = replay(&step).unwrap();
    // Rank 0: 1, "a" 2 to 6, until 8; rank 1: "a" until 5, until 10, when "b" begins.
    assert_eq!(spans(&found.events[0])[1..4], [(1.0, 6.0), (6.0, 8.0), (8.0, 11.0)]);
    assert_eq!(spans(&found.events[1])[1..4], [(2.0, 5.0), (5.0, 10.0), (10.0, 11.0)]);
    assert_eq!(found.seconds(), 12.0);
    assert_eq!(found.exposed(&step, 0)["tensor"], 8.0);
}

#[test]
fn a_collective_that_is_waited_for_comes_behind_those_that_are_under_way() {
    let step = two_ranks(Progress::Thread, |a, b| {
        let list = |first: f64| {
            vec![
                compute(first),
                RankEvent::Start { group: 0, seconds: 10.0, name: a },
                RankEvent::Collective { group: 0, seconds: 1.0, name: b },
                compute(1.0),
            ]
        };
        [list(1.0), list(3.0)]
    });
    // "a" from 3 to 13, "b" to 14.
    assert_eq!(replay(&step).unwrap().seconds(), 15.0);
}

#[test]
fn groups_of_different_ranks_do_not_wait_for_each_other() {
    let mut step = StepEvents::new(3);
    step.groups = vec![
        group("tensor", &[0, 1], Progress::Thread),
        group("shard", &[1, 2], Progress::Thread),
        group("alone", &[2], Progress::Caller),
    ];
    let name = step.name("x");
    let run = |group: usize, seconds: f64| RankEvent::Collective { group, seconds, name };
    step.lists = vec![
        vec![run(0, 1.0)],
        vec![run(0, 1.0), run(1, 2.0)],
        vec![run(2, 0.5), compute(0.25), run(1, 2.0)],
    ];
    let found = replay(&step).unwrap();
    assert_eq!(spans(&found.events[1]), [(0.0, 1.0), (1.0, 3.0)]);
    assert_eq!(spans(&found.events[2]), [(0.0, 0.5), (0.5, 0.75), (0.75, 3.0)]);
    let exposed = found.exposed(&step, 2);
    assert_eq!((exposed["alone"], exposed["shard"]), (0.5, 2.25));
}

#[test]
fn a_message_keeps_its_link_busy_and_arrives_later() {
    let mut step = StepEvents::new(2);
    let send = |tag: u64| RankEvent::Send { to: 1, tag, busy: 3.0, latency: 0.5, medium: Medium::Own };
    let receive = |tag: u64| RankEvent::Receive { from: 0, tag };
    step.lists = vec![
        vec![compute(1.0), send(7), compute(1.0), send(8), RankEvent::Receive { from: 1, tag: 7 }],
        vec![
            RankEvent::Send { to: 0, tag: 7, busy: 1.0, latency: 0.0, medium: Medium::Own },
            receive(7),
            compute(1.0),
            receive(8),
            compute(1.0),
        ],
    ];
    let found = replay(&step).unwrap();
    // Sent at 1: busy until 4, there at 4.5. Sent at 2: waits until 4, busy until 7, there at 7.5. The other direction is free.
    assert_eq!(spans(&found.events[1])[1..], [(0.0, 4.5), (4.5, 5.5), (5.5, 7.5), (7.5, 8.5)]);
    assert_eq!(spans(&found.events[0])[4], (2.0, 2.0));
    assert_eq!(found.exposed(&step, 1)["messages"], 6.5);
}

/// Two groups of ranks 0, 1 and 1, 2, whose collectives meet on rank 1.
fn meeting(medium: [Medium; 2], later: f64) -> StepEvents {
    let mut step = StepEvents::new(3);
    let of = |label, ranks: &[usize], medium| ReplayGroup { medium, ..group(label, ranks, Progress::Thread) };
    step.groups = vec![of("shard", &[0, 1], medium[0]), of("pipeline", &[1, 2], medium[1])];
    let name = step.name("x");
    let start = |group: usize, seconds: f64| RankEvent::Start { group, seconds, name };
    let wait = |group: usize| RankEvent::Wait { group, number: 0 };
    step.lists = vec![
        vec![start(0, 4.0), wait(0)],
        vec![start(0, 4.0), compute(later), start(1, 2.0), wait(1), wait(0)],
        vec![start(1, 2.0), wait(1)],
    ];
    step
}

#[test]
fn collectives_on_one_port_share_it_and_others_do_not() {
    let ends = |medium, later| {
        let step = meeting(medium, later);
        let found = replay(&step).unwrap();
        found.collectives.iter().map(|of| of[0].interval.end).collect::<Vec<f64>>()
    };
    let (node, network) = (Medium::Node, Medium::Network);
    for apart in [[Medium::Own; 2], [node, network], [node, Medium::Own]] {
        assert_eq!(ends(apart, 1.0), [4.0, 3.0], "{apart:?}");
    }
    // Alone until 1, at half speed until 5, when 2 of the second are done; 1 of the first is left then.
    assert_eq!(ends([network; 2], 1.0), [6.0, 5.0]);
    assert_eq!(ends([node; 2], 0.0), [6.0, 4.0]);
    assert_eq!(ends([node; 2], 4.0), [4.0, 6.0]);
}

#[test]
fn messages_share_ports_by_direction_and_queue_on_their_link() {
    let send =
        |to: usize, tag: u64| RankEvent::Send { to, tag, busy: 2.0, latency: 0.5, medium: Medium::Network };
    let receive = |from: usize, tag: u64| RankEvent::Receive { from, tag };
    let ends = |lists: Vec<Vec<RankEvent>>| {
        let mut step = StepEvents::new(lists.len());
        step.lists = lists;
        let ends = |list: &Vec<Interval>| list.last().map_or(0.0, |last| last.end);
        replay(&step).unwrap().events.iter().map(ends).collect::<Vec<f64>>()
    };
    // To two receivers from one sender: at half speed. There and back: at full speed. Two on one link: one after the other.
    assert_eq!(
        ends(vec![vec![send(1, 1), send(2, 1)], vec![receive(0, 1)], vec![receive(0, 1)]])[1..],
        [4.5, 4.5]
    );
    assert_eq!(ends(vec![vec![send(1, 1), receive(1, 1)], vec![send(0, 1), receive(0, 1)]]), [2.5, 2.5]);
    assert_eq!(ends(vec![vec![send(1, 1), send(1, 2)], vec![receive(0, 1), receive(0, 2)]])[1], 4.5);
    // Two senders to one receiver, the second one later: alone until 1, then both at half speed.
    let late = vec![compute(1.0), send(2, 1)];
    assert_eq!(ends(vec![vec![send(2, 1)], late, vec![receive(0, 1), receive(1, 1)]])[2], 4.5);
}

/// Ranks 4 and 6 of eight: their collectives have the others in them, who come when they do.
#[test]
fn some_ranks_stand_for_others() {
    let mut step = StepEvents::of_some(8, vec![6, 4]);
    step.groups =
        vec![group("pipeline", &[4, 6], Progress::Caller), group("tensor", &[6, 7], Progress::Caller)];
    let name = step.name("x");
    let run = |group: usize, seconds: f64| RankEvent::Collective { group, seconds, name };
    let send = RankEvent::Send { to: 6, tag: 1, busy: 1.0, latency: 0.0, medium: Medium::Node };
    step.lists =
        vec![vec![run(0, 1.0), send], vec![run(1, 3.0), run(0, 1.0), RankEvent::Receive { from: 4, tag: 1 }]];
    assert_eq!((step.ranks(), step.list_of(6), step.list_of(7)), (&[4, 6][..], Some(1), None));
    assert_eq!(replay(&step).unwrap().seconds(), 5.0);
    let send = RankEvent::Send { to: 7, tag: 1, busy: 1.0, latency: 0.0, medium: Medium::Node };
    step.lists = vec![vec![send], vec![]];
    refused(&step, &["rank 4, event 0", "rank 7", "that has a list"]);
    step.lists = vec![vec![RankEvent::Receive { from: 7, tag: 1 }], vec![]];
    refused(&step, &["rank 4, event 0", "rank 7", "no list"]);
}

fn refused(step: &StepEvents, wanted: &[&str]) {
    let found = replay(step).unwrap_err().to_string();
    assert!(wanted.iter().all(|w| found.contains(w)), "{found}: wanted {wanted:?}");
}

#[test]
fn ranks_that_wait_for_each_other_are_named_with_what_they_wait_for() {
    let mut step = StepEvents::new(2);
    step.groups = vec![group("tensor", &[0, 1], Progress::Thread), group("shard", &[0, 1], Progress::Thread)];
    let (x, y) = (step.name("x"), step.name("y"));
    let run = |group: usize, name: usize| RankEvent::Collective { group, seconds: 1.0, name };
    step.lists = vec![vec![run(0, x), run(1, y)], vec![run(1, y), run(0, x)]];
    refused(
        &step,
        &[
            "rank 0 waits at event 0 for \"x\" (collective 0 of tensor), which rank 1 has not started",
            "rank 1 waits at event 0 for \"y\" (collective 0 of shard), which rank 0 has not started",
        ],
    );
    let receive = RankEvent::Receive { from: 0, tag: 3 };
    step.lists = vec![vec![compute(1.0)], vec![receive]];
    refused(&step, &["rank 1 waits at event 0 for message 3 of rank 0, which has not sent it"]);
    // A wait for a collective that only one rank has started.
    let start = RankEvent::Start { group: 0, seconds: 1.0, name: y };
    step.lists = vec![vec![run(0, x), start, RankEvent::Wait { group: 0, number: 1 }], vec![run(0, x)]];
    refused(&step, &["rank 0 waits at event 2 for \"y\" (collective 1 of tensor), which rank 1"]);
}

#[test]
fn events_that_cannot_be_are_refused_with_rank_and_place() {
    let step = |lists: [Vec<RankEvent>; 2]| two_ranks(Progress::Thread, move |_, _| lists.clone());
    let start = |name: usize| RankEvent::Start { group: 0, seconds: 1.0, name };
    refused(
        &step([vec![start(0), start(1)], vec![start(0), start(0)]]),
        &["collective 1 of tensor", "\"a\"", "\"b\""],
    );
    // Also where the others have gone on.
    let run = |name: usize| RankEvent::Collective { group: 0, seconds: 1.0, name };
    refused(&step([vec![run(0)], vec![run(1)]]), &["collective 0 of tensor", "\"a\"", "\"b\""]);
    refused(
        &step([vec![RankEvent::Wait { group: 0, number: 0 }], vec![]]),
        &["rank 0, event 0", "not started"],
    );
    refused(&step([vec![compute(1.0), compute(-1.0)], vec![]]), &["rank 0, event 1", "-1"]);
    refused(&step([vec![compute(f64::NAN)], vec![]]), &["NaN"]);
    let send = |to: usize| RankEvent::Send { to, tag: 1, busy: 0.0, latency: 0.0, medium: Medium::Own };
    refused(&step([vec![send(2)], vec![]]), &["rank 0, event 0", "rank 2", "wanted a rank of the job"]);
    refused(&step([vec![send(1), send(1)], vec![]]), &["event 1", "a second time"]);
    let receive = RankEvent::Receive { from: 0, tag: 1 };
    refused(&step([vec![send(1)], vec![receive, receive]]), &["rank 1, event 1", "a second time"]);
    let missing = RankEvent::Start { group: 4, seconds: 1.0, name: 0 };
    refused(&step([vec![missing], vec![]]), &["group 4", "(none)"]);
    for ranks in [&[0, 5][..], &[1, 1][..]] {
        let mut step = StepEvents::new(2);
        step.groups.push(group("tensor", ranks, Progress::Thread));
        assert!(matches!(replay(&step), Err(SimError::Group { .. })), "{ranks:?}");
    }
}

/// A rank that stands for a ring: what it sends comes to itself as it would from its neighbour, beside other traffic of both of its ports.
#[test]
fn a_rank_that_stands_for_a_ring_sends_to_itself() {
    for medium in [Medium::Own, Medium::Network] {
        let send = |to: usize| RankEvent::Send { to, tag: 7, busy: 2.0, latency: 0.5, medium };
        let of = |rank: usize, ranks: usize| {
            let from = (rank + ranks - 1) % ranks;
            vec![
                compute(1.0),
                send((rank + 1) % ranks),
                compute(0.25),
                RankEvent::Receive { from, tag: 7 },
                compute(1.0),
            ]
        };
        let mut ring = StepEvents::new(3);
        ring.lists = (0..3).map(|rank| of(rank, 3)).collect();
        let mut one = StepEvents::of_some(3, vec![0]);
        one.lists = vec![of(0, 1)];
        let (ring, one) = (replay(&ring).unwrap(), replay(&one).unwrap());
        assert_eq!(one.seconds(), 1.0 + 2.0 + 0.5 + 1.0);
        assert_eq!(vec![one.events[0].clone(); 3], ring.events);
    }
}

/// What happens next in a step whose order over all ranks is known: so that nothing can stop.
#[derive(Debug, Clone, Copy)]
enum Happening {
    Compute {
        rank: usize,
        eighths: u32,
    },
    /// All ranks of a group start a collective; they wait for it a few happenings later, or at once.
    Collective {
        group: usize,
        eighths: u32,
        blocks: bool,
    },
    Message {
        from: usize,
        to: usize,
        eighths: u32,
    },
}

const RANKS: usize = 4;
const GROUPS: [&[usize]; 3] = [&[0, 1], &[2, 3], &[0, 1, 2, 3]];

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        (0..RANKS, 0..40u32).prop_map(|(rank, eighths)| Happening::Compute { rank, eighths }),
        (0..GROUPS.len(), 0..40u32, any::<bool>())
            .prop_map(|(group, eighths, blocks)| Happening::Collective { group, eighths, blocks }),
        (0..RANKS, 1..RANKS, 0..40u32).prop_map(|(from, by, eighths)| Happening::Message {
            from,
            to: (from + by) % RANKS,
            eighths
        }),
    ]
}

fn seconds(eighths: u32) -> f64 {
    f64::from(eighths) / 8.0
}

/// The lists of the ranks. A rank waits for what it has started in a group before it starts the next one there.
fn lists(happenings: &[Happening], progress: Progress) -> StepEvents {
    let mut step = StepEvents::new(RANKS);
    step.groups = GROUPS.iter().map(|ranks| group("g", ranks, progress)).collect();
    let mut begun = [0; GROUPS.len()];
    let mut open = [false; GROUPS.len()];
    for (number, happening) in happenings.iter().enumerate() {
        match *happening {
            Happening::Compute { rank, eighths } => step.lists[rank].push(compute(seconds(eighths))),
            Happening::Collective { group, eighths, blocks } => {
                let (name, seconds) = (step.name(&number.to_string()), seconds(eighths));
                for rank in GROUPS[group] {
                    let list = &mut step.lists[*rank];
                    if open[group] {
                        list.push(RankEvent::Wait { group, number: begun[group] - 1 });
                    }
                    list.push(match blocks {
                        true => RankEvent::Collective { group, seconds, name },
                        false => RankEvent::Start { group, seconds, name },
                    });
                }
                begun[group] += 1;
                open[group] = !blocks;
            }
            Happening::Message { from, to, eighths } => {
                let tag = number as u64;
                step.lists[from].push(RankEvent::Send {
                    to,
                    tag,
                    busy: seconds(eighths),
                    latency: 0.5,
                    medium: Medium::Own,
                });
                step.lists[to].push(RankEvent::Receive { from, tag });
            }
        }
    }
    step
}

/// The time of the step counted along the known order, happening by happening.
fn counted(happenings: &[Happening], progress: Progress) -> f64 {
    let mut clock = [0.0f64; RANKS];
    let mut free = [[0.0f64; RANKS]; RANKS];
    let mut done = [0.0f64; GROUPS.len()];
    let mut open = [false; GROUPS.len()];
    for happening in happenings {
        match *happening {
            Happening::Compute { rank, eighths } => clock[rank] += seconds(eighths),
            Happening::Collective { group, eighths, blocks } => {
                let ranks = GROUPS[group];
                for rank in ranks.iter().filter(|_| open[group]) {
                    clock[*rank] = clock[*rank].max(done[group]);
                }
                let start = ranks.iter().map(|r| clock[*r]).fold(done[group], f64::max);
                done[group] = start + seconds(eighths);
                for rank in ranks.iter().filter(|_| blocks || progress == Progress::Caller) {
                    clock[*rank] = done[group];
                }
                open[group] = !blocks;
            }
            Happening::Message { from, to, eighths } => {
                free[from][to] = free[from][to].max(clock[from]) + seconds(eighths);
                clock[to] = clock[to].max(free[from][to] + 0.5);
            }
        }
    }
    clock.into_iter().fold(0.0, f64::max)
}

fn with(happening: Happening, change: impl Fn(u32) -> u32) -> Happening {
    match happening {
        Happening::Compute { rank, eighths } => Happening::Compute { rank, eighths: change(eighths) },
        Happening::Collective { group, eighths, blocks } => {
            Happening::Collective { group, eighths: change(eighths), blocks }
        }
        Happening::Message { from, to, eighths } => Happening::Message { from, to, eighths: change(eighths) },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_replay_is_what_counting_along_a_known_order_gives(
        happenings in proptest::collection::vec(happening(), 0..60),
        blocking in any::<bool>(),
    ) {
        let progress = if blocking { Progress::Caller } else { Progress::Thread };
        let step = lists(&happenings, progress);
        let found = replay(&step).unwrap();
        prop_assert_eq!(found.seconds(), counted(&happenings, progress));
        // Between the busiest rank and everything one after the other.
        let sum = |rank: usize| -> f64 {
            let own = |e: &RankEvent| if let RankEvent::Compute { seconds } = e { *seconds } else { 0.0 };
            step.lists[rank].iter().map(own).sum()
        };
        let busiest = (0..RANKS).map(sum).fold(0.0, f64::max);
        let all: f64 = happenings.iter().map(|h| match h {
            Happening::Compute { eighths, .. } | Happening::Collective { eighths, .. } => seconds(*eighths),
            Happening::Message { eighths, .. } => seconds(*eighths) + 0.5,
        }).sum();
        prop_assert!(busiest <= found.seconds() && found.seconds() <= all + 1e-9);
    }

    #[test]
    fn more_work_or_bytes_are_never_faster_and_a_thread_for_progress_is_never_slower(
        happenings in proptest::collection::vec(happening(), 1..60),
        (at, more) in (any::<proptest::sample::Index>(), 1..40u32),
    ) {
        let time = |of: &[Happening], progress| replay(&lists(of, progress)).unwrap().seconds();
        let mut slower = happenings.clone();
        let at = at.index(slower.len());
        slower[at] = with(slower[at], |eighths| eighths + more);
        for progress in [Progress::Thread, Progress::Caller] {
            prop_assert!(time(&slower, progress) >= time(&happenings, progress));
        }
        prop_assert!(time(&happenings, Progress::Thread) <= time(&happenings, Progress::Caller));
    }
}

/// Costs that are easy to sum: an operator a second, copies of 1 s and a byte of 2 s.
fn table(link: Option<Link>) -> CostTable {
    let fill = |first_only: bool| {
        let cols = if first_only { 4 } else { 2 };
        let dst = Buffer { id: 3, len: 3 * cols, dtype: DType::F32 }.matrix(3, cols);
        Op::from(Fill { dst, value: 0.0 })
    };
    CostTable {
        ops: [(op_key(&fill(true)), 100.0), (op_key(&fill(false)), 10.0)].into(),
        copy: LinearSeconds { fixed: 1.0, per_byte: 2.0 },
        counted: [].into(),
        collectives: [(CollectiveKind::AllReduce, LinearSeconds { fixed: 0.5, per_byte: 0.25 })].into(),
        handoff: 0.125,
        send: LinearSeconds { fixed: 0.0, per_byte: 1.0 },
        receive: LinearSeconds { fixed: 3.0, per_byte: 0.0 },
        spare_cores: false,
        link,
    }
}

/// Two operators, of which the first runs only once an update, and a sum of four rows of two values between them.
fn unit(overlapped: bool) -> UnitProgram {
    let mut recorder = Recorder::new("layers.0.");
    let plain = |rows: usize, cols: usize| [Dim::plain(rows), Dim::plain(cols)];
    let begun = recorder.value("begun", Class::Local, DType::F32, plain(3, 4));
    let made = recorder.value("made", Class::Local, DType::F32, plain(3, 2));
    let sum = recorder.value("sum", Class::Local, DType::F32, plain(4, 2));
    recorder.launch_first(Fill { dst: begun, value: 0.0 });
    recorder.launch(Fill { dst: made, value: 1.0 });
    let mut unit = recorder.finish();
    let collective = Collective {
        id: 5,
        kind: CollectiveKind::AllReduce,
        axis: Axis::Tensor,
        order: PositionOrder::Consecutive,
        columns: Vec::new(),
        messages: Vec::new(),
        by_counts: None,
        name: "layers.0.sum".into(),
        dim: 0,
        src: sum,
        dst: sum,
        rows: 0..4,
        versions: Vec::new(),
    };
    let wait = Node::Wait { id: 5, src: sum, dst: sum, versions: Vec::new() };
    match overlapped {
        true => {
            unit.lists[0].insert(1, Node::Start(collective));
            unit.lists[0].push(wait);
        }
        false => unit.lists[0].insert(1, Node::Collective(collective)),
    }
    unit
}

/// The events of two ranks that run the unit; rank 1 begins an update.
fn written(link: Option<Link>, overlapped: bool, progress: Progress) -> StepEvents {
    let mut step = StepEvents::new(2);
    for rank in 0..2 {
        let mut costs = table(link);
        let mut writer = RankWriter::new(&mut step, &mut costs, rank);
        let group = writer.group("tensor", 0, vec![0, 1], progress);
        let (unit, phase) = (unit(overlapped), Phase::Forward);
        let costs = writer.unit_costs(&unit, (None, phase), rank == 1, &|_| (group, 2)).unwrap();
        writer.unit(&unit, phase, &costs);
        writer.finish();
    }
    step
}

#[test]
fn a_unit_costs_its_operators_copies_and_collectives() {
    // 32 bytes: copied in 65 s before and after; 8.5 s of the processor.
    let step = written(None, false, Progress::Thread);
    let name = 0;
    assert_eq!(
        step.lists[0],
        [compute(73.5), RankEvent::Collective { group: 0, seconds: 0.0, name }, compute(65.0 + 10.0)]
    );
    assert_eq!(step.lists[1][0], compute(100.0 + 73.5));
    assert_eq!(replay(&step).unwrap().seconds(), 173.5 + 75.0);
    // 32 bytes there and back between two ranks are 2 rounds and 32 bytes sent: 2 * 3 + 32 / 2 s, 8.5 of them with work.
    let link = Link { latency: 3.0, bandwidth: 2.0 };
    let step = written(Some(link), true, Progress::Thread);
    assert_eq!(
        step.lists[0],
        [
            compute(73.5),
            RankEvent::Start { group: 0, seconds: 13.5 + 0.125, name },
            compute(10.0),
            RankEvent::Wait { group: 0, number: 0 },
            compute(65.0)
        ]
    );
    assert_eq!(replay(&step).unwrap().seconds(), 173.5 + 13.625 + 65.0);
    // With a core of its own a progress thread takes no time of the rank.
    let mut spare = CostTable { spare_cores: true, ..table(None) };
    let traffic = Traffic::even(CollectiveKind::AllReduce, 32, 2);
    let CollectiveSeconds { processor, link: beside, .. } = spare.collective(&step.groups[0], traffic);
    assert_eq!((processor, beside), (0.0, 8.5));
    // Nothing is handed over where the rank runs its collectives itself.
    let step = written(Some(link), true, Progress::Caller);
    assert_eq!(step.lists[0][1], RankEvent::Start { group: 0, seconds: 13.5, name });
    assert_eq!(replay(&step).unwrap().seconds(), 173.5 + 13.5 + 10.0 + 65.0);
}

#[test]
fn a_message_costs_copies_work_and_the_link() {
    let mut step = StepEvents::new(2);
    for rank in 0..2 {
        let mut costs = table(Some(Link { latency: 0.5, bandwidth: 4.0 }));
        let mut writer = RankWriter::new(&mut step, &mut costs, rank);
        match rank {
            0 => writer.send(1, 9, 8),
            _ => writer.receive(0, 9, 8),
        }
        writer.finish();
    }
    // A copy of 8 bytes takes 17 s.
    assert_eq!(
        step.lists,
        [
            vec![
                compute(17.0 + 8.0),
                RankEvent::Send { to: 1, tag: 9, busy: 2.0, latency: 0.5, medium: Medium::Own }
            ],
            vec![RankEvent::Receive { from: 0, tag: 9 }, compute(3.0 + 17.0)]
        ]
    );
    assert_eq!(replay(&step).unwrap().seconds(), 25.0 + 2.5 + 20.0);
}

/// Rows of experts: between two numbers of them that were measured, and beyond.
#[test]
fn counted_rows_are_on_the_line_through_measured_ones() {
    let matrix = |rows, cols, dtype| Buffer { id: 1, len: rows * cols, dtype }.matrix(rows, cols);
    let op = |rows, outputs| {
        let (x, out) = (matrix(rows, 4, DType::F32), matrix(rows, outputs, DType::F32));
        let (weight, offsets) = (matrix(2 * outputs, 4, DType::F32), matrix(1, 3, DType::U32));
        Op::from(GroupedLinear { x, weight, offsets, out })
    };
    let key = op_key(&on_rows(&op(9, 3), 0).unwrap());
    let line = RowSeconds { rows: [2, 8], seconds: [3.0, 6.0] };
    let mut costs = CostTable { counted: [(key, line)].into(), ..CostTable::default() };
    for (rows, seconds) in [(0, 2.0), (2, 3.0), (4, 4.0), (8, 6.0), (16, 10.0)] {
        assert_eq!(costs.op(&op(rows, 3)).unwrap(), seconds, "{rows} rows");
    }
    assert!(costs.op(&op(2, 5)).unwrap_err().to_string().contains("grouped_linear"));
}

#[test]
fn an_operator_that_was_not_measured_is_named() {
    let mut step = StepEvents::new(1);
    let mut costs = CostTable::default();
    let mut writer = RankWriter::new(&mut step, &mut costs, 0);
    let error =
        writer.unit_costs(&unit(false), (None, Phase::Forward), true, &|_| (0, 1)).unwrap_err().to_string();
    assert!(error.contains("fill") && error.contains("3x4 F32"), "{error}");
}

#[test]
fn measured_times_make_lines_that_never_fall() {
    let line = LinearSeconds::through([100, 1100], [2.0, 7.0]);
    assert_eq!((line.of(0), line.of(100), line.of(1100)), (1.5, 2.0, 7.0));
    // A longer one that was faster, and a short one that took nothing.
    assert_eq!(LinearSeconds::through([100, 200], [2.0, 1.0]), LinearSeconds { fixed: 2.0, per_byte: 0.0 });
    assert_eq!(LinearSeconds::through([100, 200], [0.0, 100.0]).fixed, 0.0);
}

/// Rank 0 sends 16 bytes to rank 1 of a group of ranks 3 and 4, which answers nothing; then both compute, then the receiver waits.
#[test]
fn a_permutation_is_a_message_that_is_waited_for_where_the_list_says() {
    let mut recorder = Recorder::new("layers.0.");
    let plain = |rows: usize, cols: usize| [Dim::plain(rows), Dim::plain(cols)];
    let x = recorder.value("x", Class::Local, DType::F32, plain(2, 2));
    let y = recorder.value("y", Class::Local, DType::F32, plain(2, 2));
    let made = recorder.value("made", Class::Local, DType::F32, plain(3, 2));
    recorder.launch(Fill { dst: made, value: 1.0 });
    let recorded = recorder.finish();
    let unit = |rank: usize| {
        let (src, dst) = if rank == 0 { (x, x.rows(0, 0)) } else { (y.rows(0, 0), y) };
        let message = RowsMessage { to: 1, rows_of: 0, contents: RowsContents::Whole };
        let collective = Collective {
            id: 2,
            kind: CollectiveKind::Permute,
            axis: Axis::Context,
            dim: 0,
            order: PositionOrder::Consecutive,
            columns: Vec::new(),
            by_counts: None,
            messages: vec![Some(message), None],
            name: "layers.0.x".into(),
            src,
            dst,
            rows: 0..0,
            versions: Vec::new(),
        };
        let mut unit = recorded.clone();
        unit.lists[0].insert(0, Node::Start(collective));
        unit.lists[0].push(Node::Wait { id: 2, src, dst, versions: Vec::new() });
        unit
    };
    let link = Link { latency: 7.0, bandwidth: 1.0 };
    let seconds = |progress| {
        let mut step = StepEvents::new(5);
        for rank in [3, 4] {
            let mut costs = table(Some(link));
            let mut writer = RankWriter::new(&mut step, &mut costs, rank);
            let group = writer.group("context", 0, vec![3, 4], progress);
            let (unit, phase) = (unit(rank - 3), Phase::Forward);
            let costs = writer.unit_costs(&unit, (None, phase), false, &|_| (group, 2)).unwrap();
            writer.unit(&unit, phase, &costs);
            writer.finish();
        }
        let kinds = |rank: usize| -> Vec<&str> {
            let name = |e: &RankEvent| match e {
                RankEvent::Send { to: 4, .. } => "send",
                RankEvent::Receive { from: 3, .. } => "receive",
                RankEvent::Compute { .. } => "compute",
                other => panic!("{other:?}"),
            };
            step.lists[rank].iter().map(name).collect()
        };
        (kinds(3), kinds(4), replay(&step).unwrap().events[4].clone())
    };
    let (sender, receiver, events) = seconds(Progress::Thread);
    assert_eq!(
        (sender, receiver),
        (vec!["compute", "send", "compute"], vec!["compute", "receive", "compute"])
    );
    // A copy of 16 bytes, 33 s, and as long to hand it over, 16 s; on the link 16 s and 7 s.
    assert_eq!(events[1].end, 33.0 + 16.0 + 16.0 + 7.0);
    // Without a thread the receiver waits before it computes.
    assert_eq!(seconds(Progress::Caller).1, ["receive", "compute"]);
}
