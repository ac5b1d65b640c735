//! What tensor-parallel ranks tell each other inside a pass (Shoeybi et al. 2019; Korthikanti et al. 2022).
//!
//! | place | stream whole | stream cut by rows |
//! |---|---|---|
//! | *f*, forward | – | all-gather of rows, again in the backward pass |
//! | *f*, backward | all-reduce | reduce-scatter to rows |
//! | *g*, forward | all-reduce | reduce-scatter to rows |
//! | *g*, backward | – | all-gather of rows |
//!
//! A layer has two of each, so with n rows of width d a rank sends 8 n d (t-1)/t elements a layer and micro-batch either way;
//! with the stream cut the gathers at the two *f* are made once more, 2 n d (t-1)/t. Values travel in the type in which they
//! are stored; sums are formed in f32 in the order of the ranks and rounded once.
//!
//! With overlap the rows of a product travel in four pieces ([`crate::rows`]): behind an *f* the first piece is multiplied
//! while the others arrive, before a *g*, and before an *f* backward, a piece is added up while the next is multiplied; with
//! the stream whole the gradients of the weights are made meanwhile too. Elements that travel are the same, and so are all
//! bits: rows of a product and sums of elements do not depend on each other. Gathers of the backward pass wait as a whole.

use crate::exchange::ExchangeError;
use crate::flat::common;
use crate::groups::queue;
use crate::rows::Flights;
use bessemer_arch::{GradientSum, Portion, PortionParam};
use bessemer_collectives::{
    Collective, CollectiveError, CollectiveQueue, Communicator, Parts, Pattern, Reduce, ViewStaging,
    read_view, write_view,
};
use bessemer_mesh::even;
use bessemer_model::{SeamAt, Unit};
use bessemer_tensor::{Backend, View};
use std::fmt::Write;
use std::ops::{DerefMut, Range};

/// Label of the groups of ranks that hold the same key/value heads.
pub(crate) const COPIES: &str = "tensor copies";

/// A gradient that is one term of a sum over some ranks of the tensor axis.
#[derive(Debug, Clone, Copy)]
struct PartialGradient {
    unit: Unit,
    /// True: the sum is over the ranks that hold the same key/value heads, not over all.
    copies: bool,
    gradient: View,
}

/// The tensor-parallel group of one rank.
#[derive(Debug)]
pub(crate) struct TensorGroup {
    group: CollectiveQueue,
    /// The stream is cut by rows.
    sequence: bool,
    flights: Flights,
    /// The ranks that hold the same key/value heads, where several do.
    copies: Option<Box<dyn Communicator>>,
    partial: Vec<PartialGradient>,
    /// Gradients of one collective.
    gradients: Vec<View>,
    staging: ViewStaging,
    /// Scratch on the host.
    values: Vec<f32>,
    name: String,
    parts: Parts,
}

fn span(of: bessemer_mesh::DimRange) -> Range<usize> {
    of.start..of.start + of.len
}

impl TensorGroup {
    /// `gradients` are those of the portion's parameters; `sequence`: the stream is cut by rows; `overlap`: pieces of
    /// rows travel while others are computed.
    pub(crate) fn new(
        mut group: Box<dyn Communicator>,
        portion: &Portion,
        (sequence, overlap): (bool, bool),
        gradients: &[(PortionParam, View)],
    ) -> Result<TensorGroup, CollectiveError> {
        let ranks: Vec<usize> = portion.kv_group().collect();
        let copies = if portion.kv_replicas > 1 { Some(group.group(COPIES, &ranks)?) } else { None };
        let mut partial = Vec::new();
        for (param, gradient) in gradients {
            let Some((_, span)) = portion.gradient_sum(param, sequence) else { continue };
            // A vector's elements are columns of its view.
            let gradient = match param.shape.len() {
                1 => gradient.columns(span.start, span.len),
                _ => gradient.rows(span.start, span.len),
            };
            let unit = param.id().unit();
            // The ranks that hold the same heads may be all of them.
            let copies = matches!(param.sharding.gradient, GradientSum::Replicas);
            partial.push(PartialGradient { unit, copies, gradient });
        }
        let (values, name) = (Vec::new(), String::new());
        let (gradients, staging) = (Vec::with_capacity(partial.len()), ViewStaging::default());
        let (group, flights) = (queue(group, overlap)?, Flights::default());
        let parts = Parts::default();
        Ok(TensorGroup { group, sequence, flights, copies, partial, gradients, staging, values, name, parts })
    }

    /// The communicator itself, when nothing is under way.
    pub(crate) fn idle(&mut self) -> Result<impl DerefMut<Target = dyn Communicator> + '_, CollectiveError> {
        self.group.idle()
    }

    /// Whether pieces of rows may travel while others are computed.
    pub(crate) fn takes_rows(&self) -> bool {
        self.group.has_progress_thread()
    }

    pub(crate) fn rank(&self) -> usize {
        self.group.rank()
    }

    pub(crate) fn size(&self) -> usize {
        self.group.size()
    }

    fn call_it(&mut self, at: SeamAt, pass: &str) {
        self.name.clear();
        let written = match at.unit {
            Unit::Layer(i) => write!(self.name, "layers.{i} {:?}, {pass}", at.place),
            _ => write!(self.name, "{:?}, {pass}", at.place),
        };
        written.expect("a string takes all that is written");
    }

    /// Elements of each rank's rows of a matrix.
    fn cut_rows(&mut self, whole: View) {
        let ranks = self.group.size();
        self.parts.set((0..ranks).map(|r| even(whole.rows, ranks, r).len * whole.cols));
    }

    /// `view` becomes the sum of what the ranks have there.
    pub(crate) fn all_reduce(
        &mut self,
        backend: &mut dyn Backend,
        at: SeamAt,
        pass: &str,
        view: View,
    ) -> Result<(), ExchangeError> {
        if self.size() == 1 {
            return Ok(());
        }
        if !self.flights.is_empty() {
            return self.sums_end(backend, view.rows, view);
        }
        self.call_it(at, pass);
        let collective = Collective::new(&self.name, Pattern::AllReduce(Reduce::Sum));
        self.staging.run(backend, &mut *self.group.idle()?, &collective, &[view], &[view])
    }

    /// `whole` becomes all ranks' rows.
    pub(crate) fn gather(
        &mut self,
        backend: &mut dyn Backend,
        at: SeamAt,
        local: View,
        whole: View,
    ) -> Result<(), ExchangeError> {
        self.call_it(at, "rows");
        self.cut_rows(whole);
        let collective = Collective::new(&self.name, Pattern::AllGather(&self.parts));
        self.staging.run(backend, &mut *self.group.idle()?, &collective, &[local], &[whole])
    }

    /// `local` becomes this rank's rows of the sum of all ranks' `whole`.
    pub(crate) fn reduce_scatter(
        &mut self,
        backend: &mut dyn Backend,
        at: SeamAt,
        whole: View,
        local: View,
    ) -> Result<(), ExchangeError> {
        if !self.flights.is_empty() {
            return self.sums_end(backend, whole.rows, local);
        }
        self.call_it(at, "sum of rows");
        self.cut_rows(whole);
        let collective = Collective::new(&self.name, Pattern::ReduceScatter(&self.parts, Reduce::Sum));
        self.staging.run(backend, &mut *self.group.idle()?, &collective, &[whole], &[local])
    }

    /// The parts of some rows of a matrix of `total` rows: each rank's rows among them.
    fn cut_piece(&mut self, (total, cols): (usize, usize), rows: &Range<usize>) {
        let ranks = self.group.size();
        let of = |r| common(rows, &span(even(total, ranks, r))).len() * cols;
        self.parts.set((0..ranks).map(of));
    }

    /// Sends rows of a matrix on their way to be added up.
    pub(crate) fn rows_ready(
        &mut self,
        backend: &mut dyn Backend,
        at: SeamAt,
        value: View,
        rows: Range<usize>,
    ) -> Result<(), ExchangeError> {
        self.call_it(at, "sum of some rows");
        self.cut_piece((value.rows, value.cols), &rows);
        let piece = value.rows(rows.start, rows.len());
        let mut buffer = self.flights.buffer(piece.dtype(), piece.len());
        read_view(backend, piece, &mut buffer, 0..piece.len())?;
        let what = match self.sequence {
            true => Pattern::ReduceScatter(&self.parts, Reduce::Sum),
            false => Pattern::AllReduce(Reduce::Sum),
        };
        let ticket = self.group.start(&Collective::new(&self.name, what), buffer)?;
        self.flights.begin(rows, ticket);
        Ok(())
    }

    /// Waits for all sums of a matrix of `total` rows: `to` becomes them, or this rank's rows of them.
    fn sums_end(&mut self, backend: &mut dyn Backend, total: usize, to: View) -> Result<(), ExchangeError> {
        let mine = match self.sequence {
            true => span(even(total, self.size(), self.rank())),
            false => 0..total,
        };
        while let Some((rows, ticket)) = self.flights.next() {
            self.cut_piece((total, to.cols), &rows);
            let buffer = self.group.finish(ticket)?;
            let here = common(&rows, &mine);
            let part =
                if self.sequence { self.parts.range(self.group.rank()) } else { 0..rows.len() * to.cols };
            if !here.is_empty() {
                let to = to.rows(here.start - mine.start, here.len());
                write_view(backend, to, &buffer, part)?;
            }
            self.flights.done(buffer);
        }
        Ok(())
    }

    /// Asks for rows of a matrix of which every rank has some.
    pub(crate) fn rows_wanted(
        &mut self,
        backend: &mut dyn Backend,
        at: SeamAt,
        (local, whole): (View, View),
        rows: Range<usize>,
    ) -> Result<(), ExchangeError> {
        self.call_it(at, "some rows");
        self.cut_piece((whole.rows, whole.cols), &rows);
        let (ranks, me) = (self.group.size(), self.group.rank());
        let mut buffer = self.flights.buffer(whole.dtype(), self.parts.len());
        let mine = span(even(whole.rows, ranks, me));
        let here = common(&rows, &mine);
        if !here.is_empty() {
            let from = local.rows(here.start - mine.start, here.len());
            read_view(backend, from, &mut buffer, self.parts.range(me))?;
        }
        let ticket =
            self.group.start(&Collective::new(&self.name, Pattern::AllGather(&self.parts)), buffer)?;
        self.flights.begin(rows, ticket);
        Ok(())
    }

    /// Waits for the rows that were asked for first.
    pub(crate) fn rows_arrive(
        &mut self,
        backend: &mut dyn Backend,
        whole: View,
        rows: &Range<usize>,
    ) -> Result<(), ExchangeError> {
        let Some((asked, ticket)) = self.flights.next() else { return Ok(()) };
        debug_assert_eq!(asked, *rows, "rows arrive in the order in which they were asked for");
        let buffer = self.group.finish(ticket)?;
        let to = whole.rows(asked.start, asked.len());
        write_view(backend, to, &buffer, 0..to.len())?;
        self.flights.done(buffer);
        Ok(())
    }

    /// Log-sum-exps and target logits of parts of the vocabulary become those of all of it.
    ///
    /// One all-gather of both instead of a maximum and two sums: `lse = m + log sum_i exp(lse_i - m)` with m the largest
    /// of them, in f64 and in the order of the ranks, so that every rank has the same bits.
    pub(crate) fn loss_sums(
        &mut self,
        backend: &mut dyn Backend,
        lse: View,
        target_logit: View,
    ) -> Result<(), ExchangeError> {
        let (n, ranks, me) = (lse.len(), self.size(), self.rank());
        self.parts.set((0..ranks).map(|_| 2 * n));
        self.values.resize(self.parts.len(), 0.0);
        let mine = self.parts.range(me).start;
        backend.read_f32(lse, &mut self.values[mine..mine + n])?;
        backend.read_f32(target_logit, &mut self.values[mine + n..mine + 2 * n])?;
        let values = &mut self.values;
        self.group.idle()?.all_gather("sums of the loss", values, &self.parts)?;
        for i in 0..n {
            let of = |r: usize| f64::from(self.values[2 * n * r + i]);
            let most = (0..ranks).map(of).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = (0..ranks).map(|r| (of(r) - most).exp()).sum();
            let target: f64 = (0..ranks).map(|r| f64::from(self.values[2 * n * r + n + i])).sum();
            // What the first rank sent has been read.
            (self.values[i], self.values[n + i]) = ((most + sum.ln()) as f32, target as f32);
        }
        backend.write_f32(lse, &self.values[..n])?;
        Ok(backend.write_f32(target_logit, &self.values[n..2 * n])?)
    }

    /// Leaves sums of gradients out: those over copied heads, or those over all ranks.
    #[cfg(test)]
    pub(crate) fn forget(&mut self, copies: bool) {
        self.partial.retain(|p| p.copies != copies);
    }

    /// Completes the gradients of a unit's parameters that are terms of sums over ranks. With the embedding come those of
    /// the head, whose table it may share.
    pub(crate) fn complete(&mut self, backend: &mut dyn Backend, unit: Unit) -> Result<(), ExchangeError> {
        let within = |of: Unit| of == unit || (unit, of) == (Unit::Embedding, Unit::Head);
        for copies in [false, true] {
            let chosen = |p: &&PartialGradient| within(p.unit) && p.copies == copies;
            let len: usize = self.partial.iter().filter(chosen).map(|p| p.gradient.len()).sum();
            if len == 0 {
                continue;
            }
            // All in one collective.
            self.gradients.clear();
            self.gradients.extend(self.partial.iter().filter(chosen).map(|p| p.gradient));
            let collective = Collective::new("partial gradients", Pattern::AllReduce(Reduce::Sum));
            let (views, staging) = (&self.gradients, &mut self.staging);
            match &mut self.copies {
                Some(group) if copies => staging.run(backend, group.as_mut(), &collective, views, views)?,
                _ => staging.run(backend, &mut *self.group.idle()?, &collective, views, views)?,
            }
        }
        Ok(())
    }
}
