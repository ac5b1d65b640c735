//! The pass `recompute`: values that the backward pass computes again instead of having them saved.
//!
//! The forward operators that compute such a value are placed before its first reader in the backward list, in their order. Their
//! operands are kept or computed again as well: parameters, inputs and the stream that enters the unit are kept anyway; a
//! value that the backward list reads is saved unless the policy names it; every other value is computed again. Random
//! numbers are functions of counters, and an operator gives the same bits every time, so bits are unchanged.
//!
//! A value that no reader needs is not computed again: of a layer that is recomputed in full, the last product is not.

use crate::node::Node;
use crate::unit::{Phase, UnitProgram};
use crate::value::{Class, Value};
use bessemer_tensor::View;
use bessemer_tensor::op::Access;
use bessemer_units::{Recompute, RecomputePolicy};
use std::collections::{BTreeMap, BTreeSet};

/// A policy that the unit cannot follow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecomputeError {
    /// A name in the policy that no saved value has.
    #[error(
        "recomputation of {unit}: its backward pass reads no value {name:?}; expected one of {known}, or a \
         prefix of one"
    )]
    Unknown {
        /// The unit.
        unit: String,
        /// The name that was given.
        name: String,
        /// The values that may be recomputed.
        known: String,
    },
    /// A value whose operators read a value that a later operator has overwritten.
    #[error(
        "recomputation of {unit}: {value} has been overwritten when {op} would read it again; keep what {op} makes"
    )]
    Overwritten {
        /// The unit.
        unit: String,
        /// The value that is read.
        value: String,
        /// The operator that reads it.
        op: &'static str,
    },
}

/// Values of the attention core.
const ATTENTION_CORE: [&str; 2] = ["attention.mixed", "attention.lse"];

/// Computes values again in the unit's backward pass, as the policy selects, instead of saving them.
///
/// # Errors
/// A name in the policy that no saved value of the backward pass has; a value that cannot be recomputed.
pub fn recompute(unit: &mut UnitProgram, policy: &RecomputePolicy) -> Result<(), RecomputeError> {
    let saved: BTreeSet<usize> = (0..unit.values.len())
        .filter(|id| unit.values[*id].class == Class::Local && unit.reads_first(Phase::Backward, *id))
        .collect();
    let mut makers = Makers { again: chosen(unit, &saved, policy)?, saved, unit };
    makers.close();
    let mut out = Vec::new();
    let mut made: BTreeSet<usize> = BTreeSet::new();
    for node in makers.unit.list(Phase::Backward) {
        let values: Vec<usize> = node.touches().iter().map(|t| t.value()).collect();
        let missing = values.into_iter().filter(|id| makers.again.contains(id) && !made.contains(id));
        for (_, maker) in makers.all_of(missing.collect(), &made)? {
            made.extend(outputs(&maker));
            out.push(maker);
        }
        out.push(node.clone());
    }
    let copies = copies(unit, &out);
    for node in &mut out {
        if node.op().is_some() {
            node.for_each_view(&mut |view| {
                if let Some(copy) = copies.get(&(view.buffer.id as usize)) {
                    view.buffer = copy.buffer;
                }
            });
        }
    }
    unit.lists[Phase::Backward.index()] = out;
    Ok(())
}

/// The saved values that the policy names.
fn chosen(
    unit: &UnitProgram,
    saved: &BTreeSet<usize>,
    policy: &RecomputePolicy,
) -> Result<BTreeSet<usize>, RecomputeError> {
    let cheap = || unit.again.iter().map(|again| again.value).filter(|id| saved.contains(id));
    let core = || ATTENTION_CORE.iter().filter_map(|name| unit.find(name)).filter(|id| saved.contains(id));
    let names = match policy {
        RecomputePolicy::Named(Recompute::None) => return Ok(BTreeSet::new()),
        RecomputePolicy::Named(Recompute::Selective) => return Ok(cheap().collect()),
        RecomputePolicy::Named(Recompute::Attention) => return Ok(cheap().chain(core()).collect()),
        RecomputePolicy::Named(Recompute::AttentionOutput) => return Ok(saved - &core().collect()),
        RecomputePolicy::Named(Recompute::Full | Recompute::InputAware) => return Ok(saved.clone()),
        RecomputePolicy::Values(names) => names,
    };
    let mut chosen = BTreeSet::new();
    for name in names {
        let begins = |id: &&usize| {
            let rest = unit.values[**id].name.strip_prefix(name.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        chosen.extend(saved.iter().filter(begins));
        if !saved.iter().any(|id| begins(&id)) {
            let known = saved.iter().map(|id| unit.values[*id].name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(RecomputeError::Unknown { unit: unit.name.clone(), name: name.clone(), known });
        }
    }
    Ok(chosen)
}

/// Values that an operator reads.
fn inputs(node: &Node) -> impl Iterator<Item = usize> {
    node.touches().into_iter().filter(|t| t.access == Access::Read).map(|t| t.value())
}

/// Values that an operator writes.
fn outputs(node: &Node) -> impl Iterator<Item = usize> {
    node.touches().into_iter().filter(|t| t.access != Access::Read).map(|t| t.value())
}

/// The nodes that recompute values.
struct Makers<'a> {
    unit: &'a UnitProgram,
    /// Values that the backward list as recorded finds saved.
    saved: BTreeSet<usize>,
    /// Values that are made again.
    again: BTreeSet<usize>,
}

impl Makers<'_> {
    /// Whether the forward pass computes the value.
    fn own(&self, id: usize) -> bool {
        matches!(self.unit.values[id].class, Class::Local | Class::StreamOut)
    }

    /// Whether the value exists when the backward pass begins.
    fn kept(&self, id: usize) -> bool {
        !self.own(id) || (self.saved.contains(&id) && !self.again.contains(&id))
    }

    /// Operators that compute a value, each with its position in the forward list: a cheap operator from values that are kept, if the unit
    /// has one, or the operators of the forward list.
    fn of(&self, id: usize) -> Vec<(usize, Node)> {
        let list = self.unit.list(Phase::Forward);
        let all = list.iter().enumerate().filter(|(_, node)| outputs(node).any(|output| output == id));
        let mut all: Vec<(usize, Node)> = all.map(|(at, node)| (at, node.clone())).collect();
        let cheap = self.unit.again.iter().find(|again| again.value == id);
        let cheap = cheap.map(|again| Node::launch(again.op.clone()));
        if let (Some(cheap), Some(first)) = (cheap, all.first_mut())
            && inputs(&cheap).all(|input| self.kept(input))
        {
            return vec![(first.0, cheap)];
        }
        all
    }

    /// Adds the operands of the values' operators, and their other results.
    fn close(&mut self) {
        loop {
            let makers = self.again.iter().flat_map(|id| self.of(*id));
            let needs: BTreeSet<usize> = makers.flat_map(|(_, node)| self.needs(&node)).collect();
            if needs.is_subset(&self.again) {
                return;
            }
            self.again.extend(needs);
        }
    }

    /// Values that are recomputed with an operator: those that it reads and that are not kept, and all that it writes.
    fn needs(&self, node: &Node) -> Vec<usize> {
        inputs(node).filter(|input| !self.kept(*input)).chain(outputs(node)).collect()
    }

    /// The operators that make values which are not `made`, by their places in the forward list.
    fn all_of(
        &self,
        mut wanted: Vec<usize>,
        made: &BTreeSet<usize>,
    ) -> Result<BTreeMap<usize, Node>, RecomputeError> {
        let (mut all, mut seen) = (BTreeMap::new(), made.clone());
        while let Some(id) = wanted.pop() {
            if !seen.insert(id) {
                continue;
            }
            for (at, node) in self.of(id) {
                for input in inputs(&node).filter(|input| self.own(*input)) {
                    let later = &self.unit.list(Phase::Forward)[at + 1..];
                    if later.iter().any(|node| outputs(node).any(|output| output == input)) {
                        let (unit, value) = (self.unit.name.clone(), self.unit.values[input].name.clone());
                        let op = node.op().map_or("a collective", |op| op.name());
                        return Err(RecomputeError::Overwritten { unit, value, op });
                    }
                }
                wanted.extend(self.needs(&node));
                all.entry(at).or_insert(node);
            }
        }
        Ok(all)
    }
}

/// A value of the backward pass for each that is not the unit's own and that a repeated operator would write: the stream
/// that leaves the unit is another unit's by then.
fn copies(unit: &mut UnitProgram, list: &[Node]) -> BTreeMap<usize, View> {
    let leaving: BTreeSet<usize> = list.iter().flat_map(outputs).collect();
    let leaving = leaving.into_iter().filter(|id| unit.values[*id].class == Class::StreamOut);
    let ids: Vec<usize> = leaving.collect();
    ids.into_iter()
        .map(|id| {
            let value = unit.values[id].clone();
            let name = format!("{}.again", value.name);
            (id, unit.add(Value { name, class: Class::Local, residual: true, ..value }))
        })
        .collect()
}
