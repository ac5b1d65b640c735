//! The part of a model that one rank of a tensor-parallel group holds, and where it lies in the whole.

use crate::init::Init;
use crate::model::Model;
use crate::param_id::ParamId;
use crate::sharding::{GradientSum, Sharding};
use bessemer_mesh::{Block, Span, even, total};

/// Why a model cannot be cut.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tensor parallelism over {degree} ranks: {problem}")]
pub struct PortionError {
    /// Ranks.
    pub degree: usize,
    /// What was wanted and found, and what to try.
    pub problem: String,
}

/// Rank `index` of `degree`'s part of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Portion {
    /// The whole model.
    pub whole: Model,
    /// The part, as a model: fewer heads, hidden units and vocabulary rows, everything else as in the whole. Its
    /// parameters' shapes are those of the part; their initial distributions are not (those of some schemes depend on
    /// the whole shape): take them from [`Portion::params`].
    pub model: Model,
    /// Ranks in the group.
    pub degree: usize,
    /// Position in the group.
    pub index: usize,
    /// Number in the whole model of the part's first query head.
    pub first_head: usize,
    /// Number in the whole model of the part's first key/value head.
    pub first_kv_head: usize,
    /// Consecutive ranks, from a multiple of this number on, that hold the same key/value head; 1 if no two do.
    pub kv_copies: usize,
    /// Token id of the part's first row of the token table and of the output projection.
    pub first_vocab_row: usize,
}

/// One parameter of a portion.
#[derive(Debug, Clone, PartialEq)]
pub struct PortionParam {
    /// The whole parameter (name, whole shape, initial distribution) and how it is cut.
    pub sharding: Sharding,
    /// Shape of the part.
    pub shape: Vec<usize>,
    /// Of each dim, which elements of the whole the part consists of, in this order. A vector has one dim.
    pub spans: Vec<Vec<Span>>,
    /// Elements of the part's dim 0 that this rank, and no other, stands for in a sum over the whole parameter (the
    /// global gradient norm) and in a file: all of a parameter that is cut, except copies, and for what every rank
    /// holds the first rank.
    pub owned: Vec<Span>,
    /// Elements of the part's dim 0 whose gradient is partial over the `kv_copies` ranks that hold the same copy; empty
    /// if there are no copies.
    pub copied: Vec<Span>,
}

/// Elements that lie one behind the other in the whole parameter as well as in the part (row-major), and start out
/// from one distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run<'a> {
    /// First element in the whole.
    pub whole: usize,
    /// First element in the part.
    pub part: usize,
    /// Elements.
    pub len: usize,
    /// Their initial distribution, never [`Init::Rows`].
    pub init: &'a Init,
}

impl Model {
    /// The part of this model on rank `index` of `degree` ranks of tensor parallelism.
    ///
    /// # Errors
    /// Heads or hidden units that `degree` does not divide, key/value heads that neither divide it nor are divided by
    /// it, a vocabulary with fewer rows than ranks.
    pub fn portion(&self, degree: usize, index: usize) -> Result<Portion, PortionError> {
        let wrong = |problem: String| Err(PortionError { degree, problem });
        if index >= degree {
            return wrong(format!("there is no rank {index}"));
        }
        let (heads, kv_heads, hidden) = (self.heads, self.kv_heads, self.ffn_width);
        if !heads.is_multiple_of(degree) {
            return wrong(format!(
                "wanted a number of heads that it divides, found {heads}; {}",
                fitting(heads, "model.heads")
            ));
        }
        if !kv_heads.is_multiple_of(degree) && !degree.is_multiple_of(kv_heads) {
            return wrong(format!(
                "wanted key/value heads that it divides, or that divide it (they are copied then), found {kv_heads}; \
                 change model.kv_heads or the tensor degree"
            ));
        }
        if !hidden.is_multiple_of(degree) {
            return wrong(format!(
                "wanted a feed-forward width that it divides, found {hidden}; {}",
                fitting(hidden, "model.ffn_width")
            ));
        }
        if self.vocab_size < degree {
            return wrong(format!("wanted a row of the vocabulary for each, found {}", self.vocab_size));
        }
        let kv = Block::heads(kv_heads, 1).cut(degree, index);
        let vocabulary = even(self.vocab_size, degree, index);
        Ok(Portion {
            model: Model {
                heads: heads / degree,
                kv_heads: kv.len,
                ffn_width: hidden / degree,
                vocab_size: vocabulary.len,
                ..self.clone()
            },
            whole: self.clone(),
            degree,
            index,
            first_head: index * (heads / degree),
            first_kv_head: kv.start,
            kv_copies: Block::heads(kv_heads, 1).copies(degree),
            first_vocab_row: vocabulary.start,
        })
    }
}

/// Which degrees would do.
fn fitting(size: usize, key: &str) -> String {
    let fits: Vec<String> =
        (1..=size.min(64)).filter(|d| size.is_multiple_of(*d)).map(|d| d.to_string()).collect();
    format!("change {key} or take one of {}", fits.join(", "))
}

impl Portion {
    /// True if this is the whole model.
    pub fn is_whole(&self) -> bool {
        self.degree == 1
    }

    /// The parameters of the part, in the order of `model.params()`, with their place in the whole.
    pub fn params(&self) -> Vec<PortionParam> {
        self.whole.shardings().into_iter().map(|s| self.param(s)).collect()
    }

    fn param(&self, sharding: Sharding) -> PortionParam {
        let spans: Vec<Vec<Span>> = (sharding.form.dims.iter().enumerate())
            .map(|(d, dim)| match sharding.cut {
                Some(cut) if cut == d => dim.cut(self.degree, self.index),
                _ => dim.whole(),
            })
            .collect();
        let shape: Vec<usize> = spans.iter().map(|s| total(s)).collect();
        let rows = Span { start: 0, len: shape[0] };
        let mut copied = Vec::new();
        let owned = match (sharding.cut, sharding.gradient) {
            (None, _) if self.index == 0 => vec![rows],
            (None, _) => Vec::new(),
            (_, GradientSum::Copies) if self.kv_copies > 1 => {
                let queries = self.model.attention_width();
                copied.push(Span { start: queries, len: shape[0] - queries });
                if self.index.is_multiple_of(self.kv_copies) {
                    vec![rows]
                } else {
                    vec![Span { start: 0, len: queries }]
                }
            }
            _ => vec![rows],
        };
        PortionParam { sharding, shape, spans, owned, copied }
    }

    /// The ranks of the group that hold the same key/value heads as this one, itself included.
    pub fn kv_group(&self) -> std::ops::Range<usize> {
        let first = self.index - self.index % self.kv_copies;
        first..first + self.kv_copies
    }

    /// Over which ranks of the group, and for which elements of its dim 0, the gradient of a parameter is a partial sum
    /// after the backward pass; `None` if it is complete. `sequence`: the residual stream is sharded by rows.
    pub fn gradient_sum(
        &self,
        param: &PortionParam,
        sequence: bool,
    ) -> Option<(std::ops::Range<usize>, Span)> {
        let all = (0..self.degree, Span { start: 0, len: param.shape[0] });
        match param.sharding.gradient {
            _ if self.is_whole() => None,
            GradientSum::Nothing => None,
            GradientSum::IfSequenceParallel => sequence.then_some(all),
            GradientSum::All => Some(all),
            GradientSum::Copies => param.copied.first().map(|span| (self.kv_group(), *span)),
        }
    }
}

impl PortionParam {
    /// Unit and role.
    pub fn id(&self) -> ParamId {
        self.sharding.spec.id
    }

    /// Canonical name.
    pub fn name(&self) -> &str {
        &self.sharding.spec.name
    }

    /// Elements of the part.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if the part has no element (never for a portion that exists).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part as stretches of the whole, ascending in both. A part that is cut by columns has one or more for each
    /// row.
    pub fn runs(&self) -> Vec<Run<'_>> {
        let whole = &self.sharding.spec.shape;
        // Rows of `width` elements: a vector's elements are rows of one.
        let width: usize = whole[1..].iter().product();
        let one = [Span { start: 0, len: 1 }];
        let columns = self.spans.get(1).map_or(&one[..], |s| &s[..]);
        let part_width = total(columns);
        let mut runs = Vec::new();
        let mut row_of_part = 0;
        for (rows, init) in stretches(&self.sharding.spec.init, &self.spans[0]) {
            let row = |r: usize, len: usize, columns: Span, at: usize| Run {
                whole: (rows.start + r) * width + columns.start,
                part: (row_of_part + r) * part_width + at,
                len,
                init,
            };
            if part_width == width {
                runs.push(row(0, rows.len * width, Span { start: 0, len: width }, 0));
            } else {
                for r in 0..rows.len {
                    let mut at = 0;
                    for c in columns {
                        runs.push(row(r, c.len, *c, at));
                        at += c.len;
                    }
                }
            }
            row_of_part += rows.len;
        }
        runs
    }
}

/// The spans of rows, cut where the distribution changes.
fn stretches<'a>(init: &'a Init, spans: &[Span]) -> Vec<(Span, &'a Init)> {
    let Init::Rows(list) = init else { return spans.iter().map(|s| (*s, init)).collect() };
    let mut out = Vec::new();
    for span in spans {
        let mut first = 0;
        for (rows, init) in list {
            let start = span.start.max(first);
            let end = span.end().min(first + rows);
            if start < end {
                out.push((Span { start, len: end - start }, init));
            }
            first += rows;
        }
    }
    out
}
