//! Bytes of a training step in closed form, for tables of steps that nobody can plan by a dry run.
//!
//! A layer's values that wait for the backward pass are those of Korthikanti et al. 2022, section 4, in 16-bit types: in a model of width h with
//! a heads, for each token, `10 h + 24 h/t + 5 a s/t` bytes on each of t tensor-parallel ranks, `(34 h + 5 a s)/t` with sequence
//! parallelism, and `2 h` of them where the layer is computed again. Written out here for other feed-forward blocks and key heads, for
//! attention that stores no scores, and without masks of dropout there. The first of p stages keeps `min(m, p)` micro-batches,
//! `1 + (p - 1)/(p v)` times as many layers with v chunks. The last one keeps one, and its logits in 16 and in 32 bits. To this come the
//! layer at work, values computed again and their gradients, and the gradient of a table before it is added.
//! Embedding and output projection share their table, but in models whose feed-forward blocks have a gate, as llama's do.
//! A parameter takes 2 bytes, its gradient what the layout says, and its state 12, by ZeRO's stage; context-parallel ranks share states as data-parallel ones do.

use crate::{Job, ParameterBytes, Recompute, ZeroStage};

/// Bytes of an optimizer's state: a copy in 32 bits and two moments.
const STATE: f64 = 12.0;
/// Bytes of an activation.
const ELEMENT: f64 = 2.0;
/// Bytes of a logit: in 16 bits, and as probability or gradient in 32.
const LOGIT: f64 = 6.0;

/// Bytes that the device which holds most is expected to hold: states, values that wait, and the layer at work. Neither workspaces of
/// libraries nor what an allocator wastes are counted.
pub fn expected_memory(job: &Job) -> f64 {
    let (model, layout) = (&job.model, &job.layout);
    let (ranks, stages) = (layout.tensor as f64, layout.pipeline);
    let layers = layout.stage_layers(model.layers) as f64;
    let parts = layout.parameter_parts() as f64;
    let layer = model.layer_parameters() / parts;
    let tables = if model.gated && stages == 1 { 2.0 } else { 1.0 } * model.table_parameters() / parts;
    let bytes = ParameterBytes { parameter: ELEMENT, gradient: layout.gradient_bytes, state: STATE };
    let states = layout.zero.bytes(bytes, layers * layer + tables, layout.shards() * layout.context);
    let gathered = if layout.zero == ZeroStage::Zero3 { 2.0 * layer * ELEMENT } else { 0.0 };

    let tokens = (layout.micro_batch * job.seq / layout.context) as f64;
    let (waiting, working) = stored(job);
    let (waiting, working) = (waiting * (1.0 - layout.offload as f64 / layers), working);
    let micro_batches = job.micro_batches().min(stages) as f64;
    let chunks = match layout.chunks {
        1 => 1.0,
        chunks => 1.0 + (stages as f64 - 1.0) / (stages * chunks) as f64,
    };
    // Logits are gone before the last layer's backward pass begins.
    let logits = tokens * model.vocab as f64 / ranks * LOGIT;
    let layer_at_work = working + tokens * layer_bytes(job, false) + gathered;
    let first = states + micro_batches * chunks * layers * waiting + layer_at_work;
    let last = states + layers * waiting + layer_at_work.max(logits);
    first.max(last) + model.table_parameters() / parts * ELEMENT
}

/// Bytes of a layer that wait for its backward pass, in the mean over layers that are computed again and others, and bytes that are there again
/// while that pass runs.
pub(crate) fn stored(job: &Job) -> (f64, f64) {
    let (model, layout) = (&job.model, &job.layout);
    let ranks = layout.tensor as f64;
    let tokens = (layout.micro_batch * job.seq / layout.context) as f64;
    let all = tokens * layer_bytes(job, true);
    let (width, opened) = (model.width as f64, model.ffn_width as f64 / ranks);
    // Two normalised rows and the input of the last product.
    let rows = tokens * ELEMENT * (2.0 * width / stream(job) + opened);
    let kept = match layout.recompute {
        Recompute::Selective => all - rows,
        // Nobody stores scores; what is made of them is computed again, as the rows are.
        Recompute::Attention if job.fused_attention => all - rows - tokens * ELEMENT * width / ranks,
        _ => tokens * layer_bytes(job, false),
    };
    let input = tokens * width * ELEMENT / stream(job);
    let share = layout.recomputed_share(model.layers);
    match layout.recompute {
        Recompute::Full => (share * input + (1.0 - share) * all, all),
        Recompute::AttentionOutput => {
            let result = tokens * width / ranks * ELEMENT;
            (share * (input + result) + (1.0 - share) * all, all - result)
        }
        Recompute::Selective | Recompute::Attention => (share * kept + (1.0 - share) * all, all - kept),
        Recompute::None => (all, 0.0),
    }
}

/// [`stored`] of activations of so many bytes.
pub(crate) fn stored_bytes(job: &Job, activation: f64) -> (f64, f64) {
    let (waiting, again) = stored(job);
    (waiting / ELEMENT * activation, again / ELEMENT * activation)
}

/// Tensor-parallel ranks that share the residual stream.
fn stream(job: &Job) -> f64 {
    if job.layout.shards_stream() { job.layout.tensor as f64 } else { 1.0 }
}

/// Bytes that the backward pass of a layer needs for a token, with or without scores of attention.
fn layer_bytes(job: &Job, scores: bool) -> f64 {
    let (model, layout) = (&job.model, &job.layout);
    let (ranks, width) = (layout.tensor as f64, model.width as f64);
    let opening = if model.gated { 2.0 } else { 1.0 };
    // Inputs of two normalisations and of the two products after them; two masks.
    let masks = if job.fused_attention { 0.0 } else { 2.0 };
    let stream = width * (4.0 * ELEMENT + masks) / stream(job);
    let inside =
        ELEMENT * (model.qkv_width() as f64 + width + (opening + 1.0) * model.ffn_width as f64) / ranks;
    let square = if scores && !job.fused_attention {
        (2.0 * ELEMENT + 1.0) * (model.heads * job.seq) as f64 / ranks
    } else {
        0.0
    };
    stream + inside + square
}
