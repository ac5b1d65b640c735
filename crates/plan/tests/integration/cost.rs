//! Times of steps: parts, what they grow with, closed forms.

use crate::job;
use bessemer_plan::{AllReduce, Efficiency, Job, Layout, Machine, Recompute, ZeroStage, step_time};
use proptest::prelude::*;

fn a100() -> Machine {
    Machine::named("a100-80gb").unwrap()
}

fn total(job: &Job, machine: &Machine) -> f64 {
    step_time(job, machine, &Efficiency::default()).total
}

fn jobs() -> impl Strategy<Value = Job> {
    let layout = (0u32..4, 0u32..4, 0u32..3, 0u32..4, 0usize..3, 0usize..4, any::<bool>());
    (layout, any::<bool>(), 1u32..4).prop_map(
        |((t, d, p, mb, again, zero, sequence), fused_attention, rounds)| {
            let layout = Layout {
                tensor: 1 << t,
                data: 1 << d,
                pipeline: 1 << p,
                chunks: 1,
                micro_batch: 1 << mb,
                zero: ZeroStage::ALL[zero],
                recompute: [Recompute::None, Recompute::Attention, Recompute::Full][again],
                sequence,
                ..Layout::default()
            };
            let global_batch = (layout.data * layout.micro_batch) << rounds;
            Job { layout, global_batch, fused_attention, ..job() }
        },
    )
}

proptest! {
    #[test]
    fn parts_add_up_and_none_is_negative(job in jobs()) {
        let time = step_time(&job, &a100(), &Efficiency::default());
        let parts = [
            time.compute, time.tensor, time.messages, time.bubble, time.last_stage, time.data, time.optimizer, time.constant,
        ];
        prop_assert!(parts.iter().all(|&part| part >= 0.0), "{time:?}");
        prop_assert!((parts.iter().sum::<f64>() / time.total - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_faster_machine_is_never_slower(job in jobs(), which in 0usize..4) {
        let slow = a100();
        let mut fast = slow.clone();
        match which {
            0 => fast.matrix_flops *= 2.0,
            1 => fast.memory_bandwidth *= 2.0,
            2 => fast.network_bandwidth *= 2.0,
            _ => {
                fast.all_reduce =
                    AllReduce::Ring { bus_bandwidth: 1e15, base_microseconds: 1e-6, hop_microseconds: 1e-6 };
            }
        }
        prop_assert!(total(&job, &fast) <= total(&job, &slow) * (1.0 + 1e-12));
    }

    #[test]
    fn computing_more_again_takes_longer(job in jobs()) {
        let with = |recompute| total(&Job { layout: Layout { recompute, ..job.layout }, ..job }, &a100());
        prop_assert!(with(Recompute::None) < with(Recompute::Attention));
        prop_assert!(with(Recompute::Attention) < with(Recompute::Full));
    }
}

#[test]
fn the_bubble_is_that_of_1f1b() {
    for (chunks, share) in [(1, 3.0 / 64.0), (2, 1.5 / 64.0), (5, 0.6 / 64.0)] {
        let layout = Layout { chunks, ..job().layout };
        let time = step_time(&Job { layout, ..job() }, &a100(), &Efficiency::default());
        let work = time.compute + time.tensor + time.messages;
        assert!((time.bubble / work - share).abs() < 1e-12, "{chunks} chunks: {}", time.bubble / work);
    }
}

#[test]
fn waves_of_tiles_are_whole() {
    // 108 multiprocessors and one tile each: one column of tiles more is one wave more.
    let machine = Machine { memory_bandwidth: 1e18, ..a100() };
    let efficiency = Efficiency { logit_bytes: 0.0, accumulation_bytes: 0.0, ..Efficiency::default() };
    let layers = |vocab| {
        let layout = Layout { tensor: 1, data: 1, pipeline: 1, micro_batch: 1, ..job().layout };
        let model = bessemer_plan::Transformer { vocab, ..job().model };
        step_time(&Job { model, seq: 256, global_batch: 1, layout, ..job() }, &machine, &efficiency).compute
    };
    let (whole, one_more) = (layers(108 * 128), layers(108 * 128 + 8));
    assert_eq!(whole, layers(107 * 128 + 8), "the last tile of a wave is free");
    assert!(one_more > whole, "a tile beyond it is not");
}

#[test]
fn zero_3_hides_what_is_shorter() {
    let layout =
        Layout { tensor: 1, pipeline: 1, data: 256, micro_batch: 4, zero: ZeroStage::Zero3, ..job().layout };
    let job = Job { layout, ..job() };
    let slow = Machine { network_bandwidth: 1e9, ..a100() };
    let fast = Machine { network_bandwidth: 1e15, ..a100() };
    let efficiency = Efficiency { ring_step_seconds: 0.0, ..Efficiency::default() };
    let (bound, free) = (step_time(&job, &slow, &efficiency), step_time(&job, &fast, &efficiency));
    assert!(bound.total > 10.0 * free.total);
    assert!(free.data < 0.02 * free.total, "{free:?}");
    assert_eq!(bound.compute, free.compute);
}

/// 2 gathers and 1 scatter of each layer and of the table, over 255 steps of a ring, beside more computation than that.
#[test]
fn gathers_of_each_layer_take_the_steps_of_their_rings() {
    let layout = |zero| Layout { tensor: 1, pipeline: 1, data: 256, micro_batch: 16, zero, ..job().layout };
    let data = |zero, ring_step_seconds| {
        let efficiency = Efficiency { ring_step_seconds, exposed: 0.25, ..Efficiency::default() };
        let layout = layout(zero);
        let job = Job { layout, global_batch: 256 * 16, ..job() };
        step_time(&job, &Machine { network_bandwidth: 1e13, ..a100() }, &efficiency).data
    };
    let (step, layers) = (1e-6, job().model.layers as f64);
    let seen = data(ZeroStage::Zero3, step) - data(ZeroStage::Zero3, 0.0);
    let steps = 3.0 * (layers + 1.0) * 255.0;
    assert!((seen / (0.25 * steps * step) - 1.0).abs() < 1e-9, "{seen}");
    assert_eq!(data(ZeroStage::Zero1, step), data(ZeroStage::Zero1, 0.0));
}

/// Ranks of a group of 8 keep and update four times as much as the 32 data-parallel ranks of one group.
#[test]
fn the_optimizer_updates_what_a_group_keeps() {
    let optimizer = |shard| {
        let zero = ZeroStage::Zero1;
        let layout = Layout { tensor: 1, pipeline: 1, data: 32, shard, zero, ..job().layout };
        step_time(&Job { layout, ..job() }, &a100(), &Efficiency::default()).optimizer
    };
    assert!((optimizer(8) / optimizer(0) - 4.0).abs() < 1e-9);
}

/// Each micro-batch adds its gradients once, however many sequences it has.
#[test]
fn gradients_are_added_once_for_each_micro_batch() {
    let seconds = |micro_batch, accumulation_bytes| {
        let efficiency = Efficiency {
            accumulation_bytes,
            forward_seconds: 0.0,
            backward_seconds: 0.0,
            straggling: 0.0,
            ..Efficiency::default()
        };
        let layout = Layout { tensor: 1, data: 1, pipeline: 1, micro_batch, ..job().layout };
        step_time(&Job { layout, global_batch: 8, ..job() }, &a100(), &efficiency).total
    };
    let added = |micro_batch| seconds(micro_batch, 8.0) - seconds(micro_batch, 0.0);
    let model = job().model;
    let parameters = model.layers as f64 * model.layer_parameters() + model.table_parameters();
    assert!((added(1) / (8.0 * 8.0 * parameters / a100().memory_bandwidth) - 1.0).abs() < 1e-6);
    assert!((added(1) / added(4) - 4.0).abs() < 1e-6);
}

#[test]
fn operations_are_those_of_the_paper() {
    // Narayanan et al. 2021, table 1: GPT of 1.7, 39.1 and 529.6 billion parameters; seconds that their rates imply.
    for (width, heads, layers, batch, devices, rate, seconds) in [
        (2304, 24, 24, 512, 32, 137e12, 3.528),
        (8192, 64, 48, 1536, 512, 138e12, 14.453),
        (20480, 128, 105, 2520, 2520, 163e12, 54.085),
    ] {
        let layout = Layout { tensor: 1, data: devices, pipeline: 1, micro_batch: 1, ..job().layout };
        let model = bessemer_plan::Transformer::gpt(width, heads, layers, 51_200);
        let job = Job { model, global_batch: batch, layout, ..job() };
        assert!((job.hardware_flops() / rate - seconds).abs() < 6e-4, "{} s", job.hardware_flops() / rate);
    }
}

#[test]
fn collectives_beside_computation_cost_less_and_wider_gradients_more() {
    let layout = Layout { data: 32, pipeline: 1, sequence: true, ..job().layout };
    let time = |layout| step_time(&Job { layout, ..job() }, &a100(), &Efficiency::default());
    let (plain, beside) = (time(layout), time(Layout { overlap: true, ..layout }));
    assert!(beside.data < plain.data && beside.tensor < plain.tensor);
    assert_eq!(beside.compute, plain.compute);
    let narrow = time(Layout { gradient_bytes: 2.0, ..layout });
    assert!((narrow.data / plain.data - 0.5).abs() < 1e-12, "{} {}", narrow.data, plain.data);
    // Of ZeRO-1 only the gradients change, not the parameters that are gathered in 16 bits.
    let zero = Layout { zero: ZeroStage::Zero1, ..layout };
    let (wide, narrow) = (time(zero), time(Layout { gradient_bytes: 2.0, ..zero }));
    assert!((narrow.data / wide.data - 2.0 / 3.0).abs() < 1e-12, "{} {}", narrow.data, wide.data);
}

#[test]
fn messages_are_sent_in_parts_by_tensor_parallel_ranks() {
    // Narayanan et al. 2021, section 4.1: with 8 ranks an eighth each over the network, and a gather within the node.
    let machine = Machine {
        all_reduce: AllReduce::Ring { bus_bandwidth: 1e18, base_microseconds: 1e-6, hop_microseconds: 1e-6 },
        network_bandwidth: 1e9,
        ..a100()
    };
    let messages = |tensor, data| {
        let layout = Layout { tensor, data, ..job().layout };
        step_time(&Job { layout, ..job() }, &machine, &Efficiency::default()).messages
            / (1024.0 / (data * layout.micro_batch) as f64)
    };
    assert!(
        (messages(1, 64) / messages(8, 8) / 8.0 - 1.0).abs() < 1e-3,
        "{} {}",
        messages(1, 64),
        messages(8, 8)
    );
}

#[test]
fn columns_that_are_not_aligned_are_slower() {
    let time = |vocab| {
        let layout = Layout { tensor: 1, data: 1, pipeline: 1, micro_batch: 1, ..job().layout };
        let model = bessemer_plan::Transformer { vocab, layers: 1, ..job().model };
        step_time(&Job { model, global_batch: 1, layout, ..job() }, &a100(), &Efficiency::default()).compute
    };
    let (odd, aligned) = (time(50_257), time(50_264));
    assert!(odd > 1.2 * aligned, "{odd} {aligned}");
}

#[test]
fn more_nodes_wait_longer_for_the_slowest() {
    let pass = |data| {
        let layout = Layout { data, pipeline: 1, ..job().layout };
        step_time(&Job { layout, global_batch: 2 * data, ..job() }, &a100(), &Efficiency::default()).compute
    };
    let growth = |data| pass(data) / pass(1) - 1.0;
    assert!(growth(4) > 0.0 && growth(16) > growth(4) && growth(16) < 0.05, "{} {}", growth(4), growth(16));
}
