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

use crate::exchange::ExchangeError;
use bessemer_arch::{GradientSum, Portion, PortionParam};
use bessemer_collectives::{CollectiveError, Communicator, Parts, Reduce, Values};
use bessemer_mesh::even;
use bessemer_model::{SeamAt, Unit};
use bessemer_tensor::{Backend, View};
use bessemer_units::DType;
use half::bf16;
use std::fmt::Write;

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
    group: Box<dyn Communicator>,
    /// The ranks that hold the same key/value heads, where several do.
    copies: Option<Box<dyn Communicator>>,
    partial: Vec<PartialGradient>,
    /// Scratch on the host.
    values: Vec<f32>,
    short: Vec<bf16>,
    name: String,
    parts: Parts,
}

impl TensorGroup {
    /// `gradients` are those of the portion's parameters; `sequence`: the stream is cut by rows.
    pub(crate) fn new(
        mut group: Box<dyn Communicator>,
        portion: &Portion,
        sequence: bool,
        gradients: &[(PortionParam, View)],
    ) -> Result<TensorGroup, CollectiveError> {
        let ranks: Vec<usize> = portion.kv_group().collect();
        let copies = if portion.kv_copies > 1 { Some(group.group(COPIES, &ranks)?) } else { None };
        let mut partial = Vec::new();
        for (param, gradient) in gradients {
            let Some((_, span)) = portion.gradient_sum(param, sequence) else { continue };
            // A vector's elements are columns of its view.
            let gradient = match param.shape.len() {
                1 => gradient.columns(span.start, span.len),
                _ => gradient.rows(span.start, span.len),
            };
            let unit = Unit::of(param.name());
            // The ranks that hold the same heads may be all of them.
            let copies = matches!(param.sharding.gradient, GradientSum::Copies);
            partial.push(PartialGradient { unit, copies, gradient });
        }
        let (values, short, name) = (Vec::new(), Vec::new(), String::new());
        Ok(TensorGroup { group, copies, partial, values, short, name, parts: Parts::default() })
    }

    pub(crate) fn communicator(&mut self) -> &mut dyn Communicator {
        &mut *self.group
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

    /// `values` in the type of `like`, through `talk`, and back.
    fn exchange(
        &mut self,
        like: View,
        talk: impl FnOnce(&mut dyn Communicator, &str, Values<'_>, &Parts) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        if like.dtype() != DType::Bf16 {
            return talk(&mut *self.group, &self.name, Values::F32(&mut self.values), &self.parts);
        }
        self.short.clear();
        self.short.extend(self.values.iter().map(|v| bf16::from_f32(*v)));
        talk(&mut *self.group, &self.name, Values::Bf16(&mut self.short), &self.parts)?;
        self.values.iter_mut().zip(&self.short).for_each(|(to, from)| *to = from.to_f32());
        Ok(())
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
        self.call_it(at, pass);
        self.values.resize(view.len(), 0.0);
        backend.read_f32(view, &mut self.values)?;
        self.exchange(view, |group, name, values, _| group.all_reduce(name, values, Reduce::Sum))?;
        Ok(backend.write_f32(view, &self.values)?)
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
        self.values.resize(whole.len(), 0.0);
        backend.read_f32(local, &mut self.values[self.parts.range(self.group.rank())])?;
        self.exchange(whole, |group, name, values, parts| group.all_gather(name, values, parts))?;
        Ok(backend.write_f32(whole, &self.values)?)
    }

    /// `local` becomes this rank's rows of the sum of all ranks' `whole`.
    pub(crate) fn reduce_scatter(
        &mut self,
        backend: &mut dyn Backend,
        at: SeamAt,
        whole: View,
        local: View,
    ) -> Result<(), ExchangeError> {
        self.call_it(at, "sum of rows");
        self.cut_rows(whole);
        self.values.resize(whole.len(), 0.0);
        backend.read_f32(whole, &mut self.values)?;
        self.exchange(whole, |group, name, values, parts| {
            group.reduce_scatter(name, values, parts, Reduce::Sum)
        })?;
        Ok(backend.write_f32(local, &self.values[self.parts.range(self.group.rank())])?)
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
        self.group.all_gather("sums of the loss", Values::F32(&mut self.values), &self.parts)?;
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
            self.values.resize(len, 0.0);
            let mut at = 0;
            for p in self.partial.iter().filter(chosen) {
                let next = at + p.gradient.len();
                backend.read_f32(p.gradient, &mut self.values[at..next])?;
                at = next;
            }
            let group = if copies { self.copies.as_deref_mut() } else { Some(&mut *self.group) };
            if let Some(group) = group {
                group.all_reduce("partial gradients", Values::F32(&mut self.values), Reduce::Sum)?;
            }
            at = 0;
            for p in self.partial.iter().filter(chosen) {
                let next = at + p.gradient.len();
                backend.write_f32(p.gradient, &self.values[at..next])?;
                at = next;
            }
        }
        Ok(())
    }
}
