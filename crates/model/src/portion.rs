//! What a decoder is of its model: all of it, or one portion of a tensor-parallel group (Shoeybi et al. 2019), with the
//! residual stream whole or cut by rows (sequence parallelism; Korthikanti et al. 2022).

use crate::activations::ActivationConfig;
use crate::decoder::{Decoder, Shape};
use crate::dropout::Masks;
use crate::error::ModelError;
use crate::params::Param;
use crate::seams::{Product, Seams};
use crate::stage::StageConfig;
use bessemer_arch::{Model, Portion};
use bessemer_tensor::op::{Alibi, AttentionDropout, DropoutMask, TablePortion};
use bessemer_tensor::{Backend, View};

/// How a portion holds the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// All rows, the same on every portion: [`Seams::forward`] and [`Seams::backward`] add up what is partial.
    Whole,
    /// Of the n rows of a micro-batch, portion i of t holds rows `i n / t ..` of the stream and of all that is done row by
    /// row (sequence parallelism): [`Seams::gather`] and [`Seams::reduce_scatter`] lead in and out of the blocks.
    Rows,
}

/// Where what a decoder holds lies in the whole model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// Query heads of the whole model, and the first that is here.
    heads: usize,
    first_head: usize,
    /// Rows of the token table and of the output projection that are here, if not all are.
    pub(crate) vocabulary: Option<TablePortion>,
    /// First row of the stream that is here, and how many of the n are, if not all are.
    rows: Option<(usize, usize)>,
}

impl Cut {
    pub(crate) fn whole(model: &Model) -> Cut {
        Cut { heads: model.heads, first_head: 0, vocabulary: None, rows: None }
    }

    pub(crate) fn of(portion: &Portion, stream: Stream, shape: Shape) -> Result<Cut, ModelError> {
        let (degree, n) = (portion.degree, shape.tokens());
        if portion.is_whole() {
            return Ok(Cut::whole(&portion.whole));
        }
        let rows = match stream {
            Stream::Whole => None,
            Stream::Rows if n.is_multiple_of(degree) => Some((portion.index * (n / degree), n / degree)),
            Stream::Rows => {
                return Err(ModelError::Portion(format!(
                    "sequence parallelism over {degree} portions wants a number of tokens of a micro-batch that \
                     {degree} divides, found {} x {} = {n}; change the sequences or their length",
                    shape.sequences, shape.seq
                )));
            }
        };
        Ok(Cut {
            heads: portion.whole.heads,
            first_head: portion.first_head,
            vocabulary: Some(TablePortion { first: portion.first_vocab_row, of: portion.whole.vocab_size }),
            rows,
        })
    }

    /// True if the decoder is not the whole model.
    pub(crate) fn is_portion(&self) -> bool {
        self.vocabulary.is_some()
    }

    /// True if the stream is cut by rows.
    pub(crate) fn by_rows(&self) -> bool {
        self.rows.is_some()
    }

    /// Rows of the stream that are here, of `n`.
    pub(crate) fn stream_rows(&self, n: usize) -> usize {
        self.rows.map_or(n, |r| r.1)
    }

    /// Of one value for each of the n rows, those of the rows of the stream that are here.
    pub(crate) fn local(&self, all: View) -> View {
        self.rows.map_or(all, |(first, count)| all.columns(first, count))
    }

    /// The slopes of the heads that are here.
    pub(crate) fn alibi(&self) -> Alibi {
        Alibi { heads: self.heads, first: self.first_head }
    }

    /// The mask at `place` of the stream's rows that are here: `per_sequence` elements a sequence, `width` a row.
    pub(crate) fn hidden_mask(
        &self,
        masks: Masks,
        place: &str,
        per_sequence: usize,
        width: usize,
    ) -> DropoutMask {
        let mask = masks.mask(place, per_sequence);
        let before = self.rows.map_or(0, |(first, _)| first * width) as u64;
        DropoutMask { first: mask.first.wrapping_add(before), ..mask }
    }

    /// The mask of the attention weights of the heads that are here.
    pub(crate) fn attention_mask(&self, masks: Masks, place: &str, seq: usize) -> AttentionDropout {
        let mask = masks.mask(place, self.heads * seq * seq);
        AttentionDropout { mask, heads: self.heads, first: self.first_head }
    }

    /// Vocabulary of the whole model, of which `here` rows are here.
    pub(crate) fn vocab_size(&self, here: usize) -> usize {
        self.vocabulary.map_or(here, |v| v.of)
    }
}

impl Decoder {
    /// A decoder that is one portion of a model. Its parameters are `portion.params()`, placed by the caller
    /// ([`Decoder::with_params`]; names and initial distributions are not looked at beyond the names and shapes of
    /// `portion.model`) or allocated here. It runs through [`Seams`] that say [`Product::Partial`]; every portion of the
    /// group runs the same passes on the same batches, and all report the same losses.
    ///
    /// With [`Stream::Rows`] its "activations" are those of [`Decoder::new`] for the portion's model, where the (2L + 1) D of
    /// the stream, its normalised rows, the 2 D of scratch and the statistics count n / t rows, and one more matrix
    /// `[n, D]` is shared by all blocks: inputs are gathered again in the backward pass, none is kept. The scratch
    /// max(F, J + A) becomes max(F, J + A, D). A portion has no logits, and two more numbers for each row.
    ///
    /// # Errors
    /// As [`Decoder::with_params`]; with [`Stream::Rows`], tokens that the portions do not divide evenly. What a portion
    /// cannot do is refused where it is asked: logits, and decoding with a cache.
    pub fn of_portion(
        backend: &mut dyn Backend,
        portion: &Portion,
        stream: Stream,
        shape: Shape,
        config: ActivationConfig,
        placed: Option<Vec<Param>>,
    ) -> Result<Decoder, ModelError> {
        let stage = StageConfig::whole(&portion.model);
        Decoder::of_stage(backend, portion, stream, shape, config, &stage, placed)
    }

    /// The portion of the model that this decoder is, unless it was made from a whole one.
    pub fn portion(&self) -> Option<&Portion> {
        self.portion.as_deref()
    }

    /// Errors if a portion would take its partial products for whole ones.
    pub(crate) fn check_seams(&self, seams: &dyn Seams) -> Result<(), ModelError> {
        if self.cut.is_portion() && seams.product() == Product::Whole {
            return Err(ModelError::Portion(
                "its products are terms of sums over the portions; wanted seams that complete them, found those of \
                 one device"
                    .into(),
            ));
        }
        Ok(())
    }

    /// Errors if this is not a whole model, which `what` needs.
    pub(crate) fn expect_whole(&self, what: &str) -> Result<(), ModelError> {
        self.expect_all_layers(what)?;
        match &self.portion {
            Some(p) if !p.is_whole() => Err(ModelError::Portion(format!(
                "{what} needs the whole model, found portion {} of {}; load the weights into a decoder of their own",
                p.index, p.degree
            ))),
            _ => Ok(()),
        }
    }
}
