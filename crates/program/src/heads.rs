//! Attention over heads in [`crate::partition()`], while the rows of everything else are sharded (DeepSpeed-Ulysses: Jacobs et al.
//! 2023, section 3).
//!
//! Values keep their layout: every rank has some rows. An attention reads and writes copies that have all rows of some columns,
//! those of this rank's heads, and all-to-alls lead from one to the other: one for each value that it reads or writes, of all
//! columns that it touches (queries, keys and values of a fused product together). A copy that the forward pass has made is the
//! backward pass's too, unless the value is made again.
//!
//! Where there are fewer key/value heads than ranks, ranks that share one have copies of it. Their terms of its gradient
//! come back to the rows side by side and are added in the order of the ranks.

use crate::localize::Local;
use crate::loops::dim_of;
use crate::node::{CollectiveKind, Launch, Node};
use crate::operands::{key, sub_view};
use crate::partition::{LayoutConflict, Partition};
use crate::value::{Class, Value};
use bessemer_mesh::{Block, ContextMethod, Dim, Form, Placement};
use bessemer_tensor::View;
use bessemer_tensor::op::{Access, Add, Op, Operand, OperandRule};
use std::collections::BTreeMap;

/// Columns of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Columns {
    first: usize,
    end: usize,
    /// The operand that has the first of them.
    operand: &'static str,
}

/// All rows of this rank's heads of a value whose rows are sharded.
#[derive(Debug, Clone)]
pub(crate) struct ByHeads {
    /// First column of the value that has a part in it.
    first: usize,
    /// The columns from there on, by blocks of heads.
    columns: Dim,
    /// The copy.
    view: View,
}

impl Partition<'_> {
    /// Whether the operator is computed over heads although the rows of its operands are sharded.
    pub(crate) fn exchanges_heads(&self, op: &Op) -> bool {
        self.rank.context.method == ContextMethod::Ulysses
            && matches!(op, Op::Attention(_) | Op::AttentionBackward(_))
    }

    /// An attention over heads.
    pub(crate) fn launch_by_heads(&mut self, launch: &Launch) -> Result<(), Box<LayoutConflict>> {
        let (op, rule) = (&launch.op, launch.op.rule());
        let operands: Vec<Operand> = op.operands().iter().copied().collect();
        let sharded = rule.operand("q").map(|q| self.loop_of(&rule, q, 1)).unwrap_or_default();
        let both = || operands.iter().zip(&rule.operands);
        let role = self.rank.role;
        let by_heads = |by: &OperandRule| dim_of(&rule, by, &sharded, role) == Some(1);
        let mut views: BTreeMap<usize, View> = BTreeMap::new();
        let exchanged = |wanted: &dyn Fn(Access) -> bool| {
            columns_of(both().filter(|(o, by)| by_heads(by) && wanted(o.access)).map(|(o, _)| o), self.global)
        };
        let (read, written) = (exchanged(&|a| a == Access::Read), exchanged(&|a| a != Access::Read));
        for (id, columns) in read {
            if self.placements[id] != Some(Placement::Shard { dim: 0 }) {
                return Err(self.conflict(op, id, "it exchanges rows for heads", "shard its rows"));
            }
            self.gather_heads(id, columns);
        }
        for (operand, by) in both().filter(|(o, _)| o.access == Access::Read) {
            let id = operand.view.buffer.id as usize;
            let view = match by_heads(by) {
                true => self.heads_of(id, operand.view),
                false => self.read(op, id, operand.view, (self.dim_of(&rule, by, &sharded), None))?,
            };
            views.insert(key(&operand.view), view);
        }
        let mut after = Vec::new();
        for (id, columns) in written {
            self.forget(id);
            if self.placements[id].is_none() {
                self.place(id, Placement::Shard { dim: 0 });
            }
            self.scatter_heads(id, columns, &mut after);
        }
        for (operand, by) in both().filter(|(o, _)| o.access != Access::Read) {
            let id = operand.view.buffer.id as usize;
            let view = match self.dim_of(&rule, by, &sharded) {
                Some(1) => self.heads_of(id, operand.view),
                Some(dim) => {
                    let made = (Placement::Shard { dim }, false);
                    self.write(op, operand.name, (id, operand.view), made, &mut after)?
                }
                None => return Err(self.conflict(op, id, "it makes it by heads", "shard its rows")),
            };
            views.insert(key(&operand.view), view);
        }
        self.bind(launch, op.clone(), &views, &self.origins(&operands, &rule, &sharded), after);
        Ok(())
    }

    /// This rank's heads among the elements of a view, in the copy of its value.
    fn heads_of(&self, id: usize, view: View) -> View {
        let copy = &self.by_heads[&id];
        let value = &self.global.values[id];
        let rows = Local::of(&value.form.dims[0], None);
        let held = Local::of(&copy.columns, Some((self.rank.degree, self.rank.index)));
        let columns = value.cols - copy.first;
        // Offset for a value that begins with the first column of the copy.
        let from = view.offset % value.cols - copy.first;
        let row = view.offset / value.cols;
        let view = View { offset: row * columns + from, ..view };
        sub_view(view, columns, (&rows, &held), copy.view)
    }

    /// Makes all rows of this rank's heads of some columns of a value, unless they are there.
    fn gather_heads(&mut self, id: usize, columns: Columns) {
        let same =
            |copy: &ByHeads| copy.first == columns.first && copy.columns.len() == columns.end - columns.first;
        if self.by_heads.get(&id).is_some_and(same) {
            return;
        }
        let copy = self.copy_by_heads(id, columns);
        let src = self.some_columns(id, columns.first, copy.columns.len());
        let mut collective = self.collective(CollectiveKind::AllToAll, (id, 0), src, copy.view);
        collective.columns.clone_from(&copy.columns.blocks);
        self.push(Node::Collective(collective));
        self.by_heads.insert(id, copy);
    }

    /// Memory for all rows of this rank's heads of some columns of a value, which lead to its rows afterwards.
    fn scatter_heads(&mut self, id: usize, columns: Columns, after: &mut Vec<Node>) {
        let copy = self.copy_by_heads(id, columns);
        let ranks = self.rank.degree;
        let (mut first, mut here) = (columns.first, 0);
        // Blocks of one number of replicas together.
        for blocks in copy.columns.blocks.chunk_by(|a, b| a.replicas(ranks) == b.replicas(ranks)) {
            let (replicas, run) = (blocks[0].replicas(ranks), Dim::of(blocks.iter().copied()));
            let held = Local::of(&run, Some((ranks, self.rank.index))).len();
            let (src, dst) = (copy.view.columns(here, held), self.some_columns(id, first, run.len()));
            let terms = (replicas > 1).then(|| self.terms_of_replicas(id, &run, replicas));
            let mut collective =
                self.collective(CollectiveKind::AllToAll, (id, 0), src, terms.unwrap_or(dst));
            collective.columns = run.blocks.clone();
            after.push(Node::Collective(collective));
            if let Some(terms) = terms {
                let term = |i: usize| terms.columns(i * run.len(), run.len());
                after.push(Node::launch(Add { a: term(0), b: term(1), out: dst }));
                after.extend((2..replicas).map(|i| Node::launch(Add { a: dst, b: term(i), out: dst })));
            }
            (first, here) = (first + run.len(), here + held);
        }
        self.by_heads.insert(id, copy);
    }

    /// The view of some columns of a value.
    fn some_columns(&self, id: usize, first: usize, len: usize) -> View {
        self.out.values[id].view(id).columns(first, len)
    }

    /// A value for all rows of this rank's heads of some columns of another.
    fn copy_by_heads(&mut self, id: usize, columns: Columns) -> ByHeads {
        let value = &self.global.values[id];
        let blocks = blocks_within(&value.form.dims[1], &columns);
        let name = match blocks.len() == value.form.dims[1].blocks.len() {
            true => format!("{}.heads", value.name),
            false => format!("{}.{}.heads", value.name, columns.operand),
        };
        let dim = Dim::of(blocks);
        let cols = Local::of(&dim, Some((self.rank.degree, self.rank.index))).len();
        let copy = Value {
            name,
            class: Class::Local,
            layout: value.layout.with(self.rank.axis, Placement::Shard { dim: 1 }),
            form: Form {
                dims: vec![value.form.dims[0].clone(), dim.of_part(self.rank.degree, self.rank.index)],
            },
            cols,
            residual: false,
            ..value.clone()
        };
        ByHeads { first: columns.first, columns: dim, view: self.temporary(copy) }
    }

    /// A value for the terms of a gradient that ranks with the same heads have made, side by side.
    fn terms_of_replicas(&mut self, id: usize, columns: &Dim, replicas: usize) -> View {
        let value = &self.out.values[id];
        let cols = replicas * columns.len();
        let terms = Value {
            name: format!("{}.terms", value.name),
            class: Class::Local,
            layout: value.layout.with(self.rank.axis, Placement::Shard { dim: 0 }),
            form: Form { dims: vec![value.form.dims[0].clone(), Dim::plain(cols)] },
            cols,
            residual: false,
            ..value.clone()
        };
        self.temporary(terms)
    }
}

/// The columns that operands touch of each value.
fn columns_of<'o>(
    operands: impl Iterator<Item = &'o Operand>,
    unit: &crate::unit::UnitProgram,
) -> BTreeMap<usize, Columns> {
    let mut all: BTreeMap<usize, Columns> = BTreeMap::new();
    for operand in operands {
        let id = operand.view.buffer.id as usize;
        let first = operand.view.offset % unit.values[id].cols;
        let mine = Columns { first, end: first + operand.view.cols, operand: operand.name };
        all.entry(id)
            .and_modify(|c| {
                let operand = if first < c.first { operand.name } else { c.operand };
                *c = Columns { first: c.first.min(first), end: c.end.max(mine.end), operand };
            })
            .or_insert(mine);
    }
    all
}

/// The blocks of a dim that are within some columns.
fn blocks_within(dim: &Dim, columns: &Columns) -> Vec<Block> {
    let mut start = 0;
    let within = |block: &&Block| {
        start += block.len();
        start - block.len() >= columns.first && start <= columns.end
    };
    dim.blocks.iter().filter(within).copied().collect()
}
