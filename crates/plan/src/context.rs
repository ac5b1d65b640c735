//! Seconds of context parallelism: what ranks exchange for attention, and the sums of their gradients.
//!
//! Bytes are those of [`bessemer_mesh::formulas`]. All-gathers and all-to-alls stand between the products and attention and are hidden by nothing;
//! the blocks of ring attention travel while others are computed, so that only what takes longer than attention is seen.

use crate::operator::{Spread, collective_seconds};
use crate::{Efficiency, Job, Machine, Recompute};
use bessemer_mesh::formulas::{context_parallel_layer, ring_layer, ulysses_layer};
use bessemer_mesh::{Axis, ContextMethod};
use bessemer_program::CollectiveKind;

/// Bytes of an activation.
const ELEMENT: f64 = 2.0;

/// The groups of the axis: beside each other, outside of tensor-parallel ranks.
fn spread(job: &Job, machine: &Machine) -> Spread {
    let lines = job.layout.tensor.min(machine.node);
    let per_node = (machine.node / lines).clamp(1, job.layout.context);
    let used = job.devices().min(machine.node);
    Spread { ranks: job.layout.context, per_node, sharing: (used / per_node).max(1) }
}

/// Seconds that the exchange of a layer adds to both passes over a micro-batch, beside `attention` seconds of attention.
pub(crate) fn exchange(job: &Job, machine: &Machine, efficiency: &Efficiency, attention: f64) -> f64 {
    let (model, layout) = (&job.model, &job.layout);
    let ranks = layout.context;
    if ranks == 1 {
        return 0.0;
    }
    let tokens = layout.micro_batch * job.seq;
    let width = model.width / layout.tensor;
    let kv_width =
        (model.width / model.heads * model.kv_heads / layout.tensor).max(model.width / model.heads);
    let spread = spread(job, machine);
    let share = layout.recomputed_share(model.layers);
    // Scores that are not computed again need nothing anew: their keys and values are sent once more by the backward pass anyway.
    let again = if layout.recompute == Recompute::Full { share } else { 0.0 };
    // Whole values of which a ring sends so many bytes.
    let seconds = |kind, sent: f64| {
        let bytes = sent * ranks as f64 / (ranks - 1) as f64;
        collective_seconds(kind, bytes, Axis::Context, spread, machine, efficiency)
    };
    match layout.context_method {
        ContextMethod::Ulysses => {
            let all = ulysses_layer(tokens, width, kv_width, ranks) * ELEMENT;
            (8.0 + 4.0 * again) * seconds(CollectiveKind::AllToAll, all / 8.0)
        }
        ContextMethod::Ring | ContextMethod::LightSeq => {
            let traffic = ring_layer(tokens, kv_width, ranks, true);
            let hops = (ranks - 1) as f64;
            let hop = |bytes| {
                collective_seconds(CollectiveKind::Permute, bytes, Axis::Context, spread, machine, efficiency)
            };
            let of = |bytes: f64| hops * hop(bytes / hops);
            let forward = of(traffic.forward.bytes(ELEMENT));
            let sent = (1.0 + again) * forward + of(traffic.backward.bytes(ELEMENT));
            (sent - attention).max(0.0)
        }
        ContextMethod::AllGather => {
            let all = context_parallel_layer(tokens, kv_width, ranks) * ELEMENT;
            (6.0 + 2.0 * again) * seconds(CollectiveKind::AllGather, all / 6.0)
        }
    }
}

/// Seconds of the sums of `bytes` bytes of gradients over the ranks.
pub(crate) fn gradients(job: &Job, machine: &Machine, efficiency: &Efficiency, bytes: f64) -> f64 {
    let spread = spread(job, machine);
    collective_seconds(CollectiveKind::AllReduce, bytes, Axis::Context, spread, machine, efficiency)
}
