//! Layouts that follow from a few: propagation of annotations over a recorded program, as in GSPMD (Xu et al. 2021, section 3.5) with
//! the rules over loops of Shardy.
//!
//! A value is sharded along a dim, replicated because the user says so, or open. An operator one of whose operands is sharded along a
//! loop shards every open operand that has the loop: from operands to results and back, until nothing changes. Operators that treat
//! all elements alike go first, then those with sums, then the rest. What is open at the end is replicated.
//!
//! The residual stream has no loop in common with the inside of a block (its columns are summed over or made by every product), so
//! annotations stay within their block.

use bessemer_mesh::Placement;
use bessemer_program::{AxisRole, Node, Phase, UnitProgram, dim_of, sharded_loop, unshardable};
use bessemer_tensor::op::{FactorKind, Op, Rule};
use std::fmt;

/// A layout that the user asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    /// Name of the value in its unit: "mlp.up.weight", "mlp.hidden".
    pub value: String,
    /// The text that asks for it, for messages.
    pub source: String,
    /// A dim that is sharded over the axis, or none.
    pub layout: Placement,
}

/// Why a value has its layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// An annotation asks for it; its number.
    Annotated(usize),
    /// An operator handed it on.
    Propagated {
        /// Number of the annotation that it comes from.
        from: usize,
        /// Name of the operator.
        op: &'static str,
    },
    /// No annotation reaches the value.
    Open,
}

/// Layouts of all values of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// By value: its layout over the axis.
    pub layouts: Vec<Placement>,
    /// By value.
    pub origins: Vec<Origin>,
}

/// Two annotations that want one value in two ways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The unit, as names begin: "layers.3.".
    pub unit: String,
    /// The operator at which they meet.
    pub op: &'static str,
    /// The value.
    pub value: String,
    /// Number of the annotation that has given the value its layout.
    pub first: usize,
    /// Its layout.
    pub layout: Placement,
    /// Number of the annotation that arrives.
    pub second: usize,
    /// The layout that it asks for.
    pub wanted: Placement,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conflict { unit, op, value, layout, wanted, .. } = self;
        write!(f, "{op} of {unit}{value}: {layout} by one annotation, {wanted} by the other")
    }
}

/// Gives every value of a recorded unit a layout over one axis. Annotations of values that the unit does not have are left out.
///
/// # Errors
/// The first value that two annotations want in two ways.
pub fn complete(unit: &UnitProgram, annotations: &[Annotation]) -> Result<Completion, Box<Conflict>> {
    let open = vec![None; unit.values.len()];
    let mut propagation = Propagation { unit, known: open };
    for (number, annotation) in annotations.iter().enumerate() {
        let Some(id) = unit.find(&annotation.value) else { continue };
        let here = Known { layout: annotation.layout, origin: Origin::Annotated(number) };
        match &propagation.known[id] {
            Some(other) if other.layout != here.layout => {
                return Err(propagation.conflict("annotation", id, annotation.layout, number));
            }
            _ => propagation.known[id] = Some(here),
        }
    }
    let list: Vec<(&Op, Rule, usize)> = unit
        .list(Phase::Forward)
        .iter()
        .filter_map(Node::op)
        .map(|op| {
            let rule = op.rule();
            let priority = priority(&rule);
            (op, rule, priority)
        })
        .collect();
    for most in 0..=LAST {
        loop {
            let mut changed = false;
            for (op, rule, _) in list.iter().filter(|(_, _, priority)| *priority <= most) {
                changed |= propagation.op(op, rule)?;
            }
            if !changed {
                break;
            }
        }
    }
    let known = propagation.known.into_iter();
    let all = known.map(|known| match known {
        Some(Known { layout, origin }) => (layout, origin),
        None => (Placement::Replicate, Origin::Open),
    });
    let (layouts, origins) = all.unzip();
    Ok(Completion { layouts, origins })
}

/// The last priority.
const LAST: usize = 2;

/// 0 for operators that treat all elements alike, 1 for sums and products, 2 for the others.
fn priority(rule: &Rule) -> usize {
    let dims = rule.operands.iter().filter(|o| !(o.rows.is_empty() && o.cols.is_empty()));
    let mut dims = dims.map(|o| (&o.rows, &o.cols));
    let first = dims.next();
    if dims.all(|other| Some(other) == first) {
        0
    } else if rule.factors.iter().any(|factor| factor.kind == FactorKind::Sum) {
        1
    } else {
        LAST
    }
}

/// A layout with its origin.
#[derive(Debug, Clone)]
struct Known {
    layout: Placement,
    origin: Origin,
}

struct Propagation<'a> {
    unit: &'a UnitProgram,
    known: Vec<Option<Known>>,
}

impl Propagation<'_> {
    fn conflict(&self, op: &'static str, id: usize, wanted: Placement, second: usize) -> Box<Conflict> {
        let known = self.known[id].as_ref();
        Box::new(Conflict {
            unit: self.unit.name.clone(),
            op,
            value: self.unit.values[id].name.clone(),
            first: known.and_then(|known| from(&known.origin)).unwrap_or(second),
            layout: known.map_or(Placement::Replicate, |known| known.layout),
            second,
            wanted,
        })
    }

    /// Hands layouts on over one operator; whether a value has got one.
    fn op(&mut self, op: &Op, rule: &Rule) -> Result<bool, Box<Conflict>> {
        let role = AxisRole::Line;
        let ids: Vec<usize> = op.operands().iter().map(|operand| operand.view.buffer.id as usize).collect();
        let mut changed = false;
        for (id, by) in ids.iter().zip(&rule.operands) {
            let Some(known) = self.known[*id].clone() else { continue };
            let (Placement::Shard { dim }, Some(source)) = (known.layout, from(&known.origin)) else {
                continue;
            };
            let along = sharded_loop(rule, by, dim, role);
            if along.is_empty() || unshardable(rule, &along).is_some() {
                continue;
            }
            for (other, by) in ids.iter().zip(&rule.operands) {
                let Some(dim) = dim_of(rule, by, &along, role) else { continue };
                let wanted = Placement::Shard { dim };
                match &self.known[*other] {
                    Some(there) if there.layout == wanted => {}
                    Some(_) => return Err(self.conflict(op.name(), *other, wanted, source)),
                    None => {
                        let origin = Origin::Propagated { from: source, op: op.name() };
                        self.known[*other] = Some(Known { layout: wanted, origin });
                        changed = true;
                    }
                }
            }
        }
        Ok(changed)
    }
}

/// The annotation that a layout comes from.
fn from(origin: &Origin) -> Option<usize> {
    match origin {
        Origin::Annotated(number) | Origin::Propagated { from: number, .. } => Some(*number),
        Origin::Open => None,
    }
}
