//! Sums within switches: against published rates, closed forms, and the algorithms between devices.

use bessemer_plan::{
    Axis, Efficiency, Job, Layout, Machine, NetworkSwitch, NodeSwitch, Spread, Transformer, ZeroStage,
    collective_choice, collective_seconds, step_time,
};
use bessemer_program::CollectiveKind;

const SHARP: &str =
    "[switches.network]\nkind = \"trees\"\nlevels = 2\nhop_microseconds = 1\nshare = 0.95\ntrees = 8\n";
const SLOTS: &str = "[switches.network]\nkind = \"slots\"\nslots = 512\nslot_bytes = 1024\nhop_microseconds = 5\nshare = 1\nnodes = 32\n";

fn h100(more: &str) -> Machine {
    Machine::parse(&format!("{}\n{more}", include_str!("../../machines/h100-80gb.toml"))).unwrap()
}

fn only_forwarding(machine: &Machine) -> Machine {
    Machine { switches: Default::default(), ..machine.clone() }
}

/// Constants that leave rates as they are.
fn plain() -> Efficiency {
    Efficiency { all_reduce_factor: 1.0, data_network: 1.0, tensor_network: 1.0, ..Efficiency::default() }
}

/// Bus bandwidth as `nccl-tests` prints it: of an all-reduce of 4 GB inside a node, 2 (n - 1)/n bytes a second.
fn bus(machine: &Machine, ranks: usize) -> f64 {
    let bytes = 4e9;
    let spread = Spread::consecutive(ranks, machine.node);
    let seconds =
        collective_seconds(CollectiveKind::AllReduce, bytes, Axis::Tensor, spread, machine, &plain());
    2.0 * (ranks as f64 - 1.0) / ranks as f64 * bytes / seconds / 1e9
}

/// H100: measured by users with NCCL_ALGO=NVLS (NVIDIA/nccl issue 1455), 480 for eight devices also by NCCL's authors (nccl-tests issue
/// 212), who find 370 by a ring. B200: "830+" (NVIDIA/nccl issue 1807).
#[test]
fn nvlink_sharp_has_the_published_rates() {
    let h100 = h100("");
    for (ranks, published) in
        [(2, 370.0), (3, 370.0), (4, 370.0), (5, 420.0), (6, 440.0), (7, 460.0), (8, 480.0)]
    {
        let error = bus(&h100, ranks) / published - 1.0;
        assert!(error.abs() < 0.03, "{ranks} devices: {} GB/s, {published} published", bus(&h100, ranks));
    }
    let b200 = Machine::named("b200-180gb").unwrap();
    assert!((bus(&b200, 8) / 830.0 - 1.0).abs() < 0.01, "{}", bus(&b200, 8));
    // The second generation of NVSwitch sums nothing.
    assert_eq!(Machine::named("a100-80gb").unwrap().switches, Default::default());
    let by = |ranks| {
        let spread = Spread::consecutive(ranks, 8);
        let kind = CollectiveKind::AllReduce;
        collective_choice(kind, 4e9, Axis::Tensor, spread, &h100, &plain()).switches
    };
    // A ring of few sends less than the switch has devices send.
    assert!(by(2).is_empty() && by(3).is_empty());
    assert_eq!(by(8), [NodeSwitch::NAME]);
}

/// Figures of a tree of one and three levels, 64 MiB at 200 GB/s and 5 us; the gain of bandwidth is below 2.
#[test]
fn trees_and_slots_have_their_closed_forms() {
    let tree = |levels| NetworkSwitch::Trees {
        levels,
        hop_microseconds: 5.0,
        share: 1.0,
        trees: 2,
        buffer_bytes: None,
        least_bytes: Some(1024.0),
        nodes: Some(64),
    };
    let bytes = 67108864.0;
    let sum = |tree: NetworkSwitch, nodes, bytes, sharing| {
        tree.seconds(CollectiveKind::AllReduce, nodes, bytes, sharing, 200e9)
    };
    for (levels, microseconds) in [(1, 345.5), (3, 365.5)] {
        assert!((sum(tree(levels), 8, bytes, 1).unwrap() * 1e6 - microseconds).abs() < 0.05);
    }
    // Two trees: of three sums one waits. Too many nodes, too few bytes, no sum.
    assert_eq!(sum(tree(1), 8, bytes, 3).unwrap(), 2.0 * sum(tree(1), 8, bytes, 1).unwrap());
    assert_eq!(sum(tree(1), 65, bytes, 1), None);
    assert_eq!(sum(tree(1), 8, 512.0, 1), None);
    assert_eq!(tree(1).seconds(CollectiveKind::AllGather, 8, bytes, 1, 200e9), None);
    // 100 Gb/s: 512 slots of 1 KiB in 10 us and a packet are more than the line, a fourth of them is not.
    let slots =
        NetworkSwitch::Slots { slots: 512, slot_bytes: 1024, hop_microseconds: 5.0, share: 1.0, nodes: 32 };
    let seconds = |sharing| slots.seconds(CollectiveKind::AllReduce, 8, bytes, sharing, 12.5e9).unwrap();
    assert!((seconds(1) - (10e-6 + bytes / 12.5e9)).abs() < 1e-12);
    let bound = 16.0 * 1024.0 / (10e-6 + 1024.0 / 12.5e9);
    assert!((seconds(32) - (10e-6 + bytes / bound)).abs() < 1e-9);
    assert_eq!(slots.seconds(CollectiveKind::AllReduce, 33, bytes, 1, 12.5e9), None);
}

#[test]
fn switches_are_taken_where_they_are_faster() {
    let kinds = [
        CollectiveKind::AllReduce,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllGather,
        CollectiveKind::AllToAll,
    ];
    let mut gained = 0;
    for machine in [h100(""), h100(SHARP), h100(SLOTS)] {
        let forwarding = only_forwarding(&machine);
        for ranks in [2, 4, 8, 16, 64, 512] {
            for per_node in [1, 2, 8] {
                if per_node > ranks {
                    continue;
                }
                let spread = Spread { ranks, per_node, sharing: 8 / per_node };
                for kind in kinds {
                    for bytes in [1e3, 1e6, 1e8, 1e10] {
                        let of = |machine: &Machine| {
                            collective_seconds(kind, bytes, Axis::Replicate, spread, machine, &plain())
                        };
                        let choice =
                            collective_choice(kind, bytes, Axis::Replicate, spread, &machine, &plain());
                        let case = format!("{kind:?} {ranks} {per_node} {bytes}");
                        assert_eq!(
                            [choice.seconds, choice.between_devices],
                            [of(&machine), of(&forwarding)],
                            "{case}"
                        );
                        assert_eq!(
                            choice.seconds < choice.between_devices,
                            !choice.switches.is_empty(),
                            "{case}"
                        );
                        assert!(choice.seconds <= choice.between_devices, "{case}");
                        if matches!(kind, CollectiveKind::AllGather | CollectiveKind::AllToAll) {
                            assert!(choice.switches.is_empty(), "{case}");
                        }
                        // The latency of a ring of many may be more than twice that of a switch, the bytes are not.
                        let bound = 2.0 * (ranks as f64 - 1.0) / ranks as f64;
                        if bytes == 1e10 && ranks <= 16 {
                            assert!(choice.between_devices < 1.001 * bound * choice.seconds, "{case}");
                        }
                        gained += usize::from(!choice.switches.is_empty());
                    }
                }
            }
        }
    }
    assert!(gained > 100, "{gained}");
}

/// Gradients that are summed whole gain, those that are scattered do not; activations likewise.
#[test]
fn steps_gain_where_they_sum() {
    let model = Transformer::gpt(4096, 32, 32, 32_000);
    let step = |layout: Layout, machine: &Machine| {
        let job = Job { model, seq: 4096, global_batch: 256, layout, fused_attention: true };
        step_time(&job, machine, &Efficiency::default())
    };
    let base = Layout { micro_batch: 1, gradient_bytes: 4.0, ..Layout::default() };
    let machine = h100(SHARP);
    let forwarding = only_forwarding(&machine);
    let gain = |layout| {
        let [with, without] = [&machine, &forwarding].map(|machine| step(layout, machine));
        [without.tensor / with.tensor.max(1e-30), without.data / with.data.max(1e-30)]
    };
    let ddp = Layout { data: 64, zero: ZeroStage::Ddp, ..base };
    let [_, data] = gain(ddp);
    assert!(data > 1.3 && data < 2.0, "{data}");
    let [_, zero] = gain(Layout { zero: ZeroStage::Zero1, ..ddp });
    assert_eq!(zero, 1.0);
    let tensor = Layout { tensor: 8, data: 8, ..ddp };
    let [sums, _] = gain(tensor);
    assert!(sums > 1.2 && sums < 2.0, "{sums}");
    let [scattered, _] = gain(Layout { sequence: true, ..tensor });
    assert!((1.0..1.02).contains(&scattered), "{scattered}");
}

#[test]
fn descriptions_of_switches_are_read_and_checked() {
    for text in [SHARP, SLOTS] {
        let machine = h100(text);
        assert_eq!(Machine::parse(&machine.to_toml().unwrap()).unwrap(), machine);
    }
    for (from, to, said) in [
        ("kind = \"trees\"", "kind = \"tree\"", "unknown variant `tree`"),
        ("share = 0.95", "share = 1.5", "switches.network.share is 1.5; wanted a number above 0, at most 1"),
        ("trees = 8", "trees = 0", "switches.network.trees is 0; wanted a number above 0"),
        ("trees = 8", "trees = 8\nslots = 3", "unknown field `slots`"),
        ("levels = 2\n", "", "missing field `levels`"),
    ] {
        assert!(SHARP.contains(from));
        let text = format!("{}\n{}", include_str!("../../machines/h100-80gb.toml"), SHARP.replace(from, to));
        let error = Machine::parse(&text).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}
