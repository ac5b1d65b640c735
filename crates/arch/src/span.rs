//! A contiguous part of a model: what one stage (or one chunk of a stage) of a pipeline holds.
//!
//! A model is the units embedding, layer 0, ..., layer L-1, head, in the order of the forward pass; a [`Span`] is a stretch
//! of them. Layers keep their numbers and parameters their names of the whole model. Spans cut a tensor shard's model
//! ([`crate::TensorShard`]) like a whole one: layers are never shared out over the tensor axis.

use crate::model::Model;
use crate::param_id::{ParamId, Unit};
use crate::params::ParamSpec;
use bessemer_units::Flops;
use std::ops::Range;

/// A contiguous part of a model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Span {
    /// The token and position tables are here.
    pub embedding: bool,
    /// Layers that are here, by their numbers in the whole model; may be empty.
    pub layers: Range<usize>,
    /// The last normalisation and the output projection are here.
    pub head: bool,
}

/// Why a model cannot be cut into spans.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a pipeline of {stages} stages for {layers} layers: {problem}")]
pub struct SpanError {
    /// Stages asked for.
    pub stages: usize,
    /// Layers of the model.
    pub layers: usize,
    /// Description: what was wanted and found, and what to try.
    pub problem: String,
}

impl Span {
    /// All of the model.
    pub fn whole(model: &Model) -> Span {
        Span { embedding: true, layers: 0..model.layers, head: true }
    }

    /// True if this is all of the model.
    pub fn is_whole(&self, model: &Model) -> bool {
        *self == Span::whole(model)
    }

    /// Errors unless the span is a contiguous, non-empty part of the model.
    pub fn check(&self, model: &Model) -> Result<(), SpanError> {
        let (Range { start, end }, all) = (self.layers.clone(), model.layers);
        let wrong = |problem: String| Err(SpanError { stages: 1, layers: all, problem });
        if start > end || end > all {
            return wrong(format!("wanted layers within 0..{all}, found {start}..{end}"));
        }
        if self.embedding && start != 0 {
            return wrong(format!(
                "wanted a span with the embedding to begin with layer 0, found layer {start}"
            ));
        }
        if self.head && end != all {
            return wrong(format!("wanted a span with the head to end with layer {}, found {end}", all - 1));
        }
        if start == end && !self.embedding && !self.head {
            return wrong("wanted a layer, the embedding or the head in every span, found nothing".into());
        }
        Ok(())
    }

    /// True if the pass through the span uses the parameter. A tied token table is used by the span with the embedding and
    /// the one with the head.
    pub fn uses(&self, model: &Model, id: ParamId) -> bool {
        self.owns(id) || (self.head && model.tied_embeddings && id == ParamId::TOKEN_TABLE)
    }

    /// True if the parameter belongs here and to no other span of a split: a tied token table to the span with the
    /// embedding.
    pub fn owns(&self, id: ParamId) -> bool {
        match id.unit() {
            Unit::Embedding => self.embedding,
            Unit::Layer(layer) => self.layers.contains(&layer),
            Unit::Head => self.head,
        }
    }

    /// The parameters that the span uses, in the order of [`Model::params`].
    pub fn params(&self, model: &Model) -> Vec<ParamSpec> {
        let mut params = model.params();
        params.retain(|p| self.uses(model, p.id));
        params
    }

    /// FLOPs of a token in each part of a training pass through the span, at sequence length `seq`; conventions of
    /// [`Model::train_flops_per_token`], which is the sum over all spans of a split. The embedding, which is only
    /// looked up, counts nothing.
    pub fn flops_per_token(&self, model: &Model, seq: usize) -> SpanFlops {
        let (d, a, layers) = (model.width, model.attention_width(), self.layers.len() as f64);
        let of_kind = |first: usize| {
            let layers = model.layers_like_among(first, self.layers.clone());
            2.0 * layers as f64 * (d * (model.qkv_width() + a) + model.active_feed_forward(first)) as f64
        };
        let products: f64 = model.layer_kinds().into_iter().map(of_kind).sum();
        let seen = model.window.map_or(seq, |w| w.min(seq));
        let attention = 4.0 * layers * (a * seen) as f64;
        let head = if self.head { 6.0 * (model.vocab_size * d) as f64 } else { 0.0 };
        SpanFlops {
            forward: Flops(products + attention),
            backward_input: Flops(products + 2.0 * attention + head),
            backward_weight: Flops(products),
        }
    }
}

/// FLOPs of the parts of a training pass; a whole backward pass is both of its parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpanFlops {
    /// Values.
    pub forward: Flops,
    /// Gradients of inputs. All of the output projection counts here, the values too: they are made together with the loss
    /// and its gradients, and never stored.
    pub backward_input: Flops,
    /// Gradients of the layers' matrices.
    pub backward_weight: Flops,
}

impl SpanFlops {
    /// All parts.
    pub fn total(&self) -> f64 {
        self.forward.0 + self.backward_input.0 + self.backward_weight.0
    }
}

impl Model {
    /// Cuts the model into `stages` spans so that the most expensive one is as cheap as can be, by FLOPs of a training
    /// step at sequences of the model's context ([`Span::flops_per_token`]). Every span between the ends has a
    /// layer; the first and the last may come out with none. Of equally good splits the evenest is taken (least sum of
    /// squares); what does not divide evenly between the ends goes to the later spans, which hold fewer micro-batches at
    /// a time.
    ///
    /// # Errors
    /// No stage, or more than the model has layers, embedding and head.
    pub fn split(&self, stages: usize) -> Result<Vec<Span>, SpanError> {
        let layers = self.layers;
        if stages == 0 || stages > layers + 2 {
            return Err(SpanError {
                stages,
                layers,
                problem: format!(
                    "wanted 1 to {} stages (a layer for each between the ends, which may hold the embedding and \
                     the head alone); take fewer stages or chunks, or more layers",
                    layers + 2
                ),
            });
        }
        if stages == 1 {
            return Ok(vec![Span::whole(self)]);
        }
        let cost = |embedding, layers, head| {
            Span { embedding, layers, head }.flops_per_token(self, self.context).total()
        };
        let head = cost(false, layers..layers, true);
        // Before each layer, and at the end: cost of the layers before it.
        let mut until = vec![0.0];
        (0..layers).for_each(|layer| until.push(until[layer] + cost(false, layer..layer + 1, false)));
        let of = |start: usize, count: usize| until[start + count] - until[start];
        let between = stages - 2;
        let mut best: Option<((f64, f64), usize, usize)> = None;
        for first in 0..=layers {
            for last in 0..=layers - first {
                let rest = layers - first - last;
                if rest < between || (between == 0 && rest > 0) {
                    continue;
                }
                let mut start = first;
                let costs = (0..between).map(|i| {
                    let count = part(rest, between, i);
                    start += count;
                    of(start - count, count)
                });
                let ends = [of(0, first), of(layers - last, last) + head];
                let (most, squares) = costs
                    .chain(ends)
                    .fold((0.0f64, 0.0), |(most, squares), c| (most.max(c), squares + c * c));
                if best.is_none_or(|(b, ..)| (most, squares) < b) {
                    best = Some(((most, squares), first, last));
                }
            }
        }
        let Some((_, first, last)) = best else {
            return Err(SpanError { stages, layers, problem: "no split has a layer for each stage".into() });
        };
        let rest = layers - first - last;
        let middle = (0..between).map(|i| part(rest, between, i));
        let counts: Vec<usize> = std::iter::once(first).chain(middle).chain([last]).collect();
        self.split_layers(&counts)
    }

    /// Cuts the model into spans of so many layers each; the first has the embedding, the last the head.
    ///
    /// # Errors
    /// Counts whose sum is not the model's number of layers, or a 0 that is neither the first nor the last.
    pub fn split_layers(&self, counts: &[usize]) -> Result<Vec<Span>, SpanError> {
        let (stages, layers) = (counts.len(), self.layers);
        let wrong = |problem: String| Err(SpanError { stages, layers, problem });
        let sum = counts.iter().try_fold(0usize, |sum, c| sum.checked_add(*c));
        if counts.is_empty() || sum != Some(layers) {
            let found = sum.map_or("more than can be counted".into(), |s| s.to_string());
            return wrong(format!("wanted layer counts that add up to {layers}, found {counts:?} = {found}"));
        }
        if let Some(at) = counts.iter().position(|c| *c == 0)
            && at != 0
            && at != stages - 1
        {
            return wrong(format!(
                "wanted a layer in every stage but the first (embedding alone) and the last (head alone), found none \
                 in stage {at} of {counts:?}"
            ));
        }
        let mut start = 0;
        let mut spans = Vec::with_capacity(stages);
        for (i, count) in counts.iter().enumerate() {
            let layers = start..start + count;
            start += count;
            spans.push(Span { embedding: i == 0, layers, head: i + 1 == stages });
        }
        Ok(spans)
    }
}

/// Layers of stage `i` of `parts` between the ends: the later ones have one more.
fn part(layers: usize, parts: usize, i: usize) -> usize {
    layers / parts + usize::from(parts - i <= layers % parts)
}

/// The span that a parameter belongs to ([`Span::owns`]), by its position in a split.
pub fn owner(spans: &[Span], id: ParamId) -> Option<usize> {
    spans.iter().position(|s| s.owns(id))
}
