//! The loss in [`crate::partition()`]: over a vocabulary of which each rank has some rows, or over tokens of which each has some.
//!
//! With some tokens, each rank makes their losses, and the losses are gathered: n (c-1)/c numbers over c ranks. With some rows of the
//! vocabulary the loss is the one composite of the pass.
//!
//! Each rank makes the log-sum-exps and target logits of its rows. These are gathered, every rank combines them, and each makes its
//! rows' part of the gradients from the combined ones. For n tokens over t ranks a rank sends 2 n (t-1) numbers of f32. A maximum and
//! a sum of 2 n numbers would send 6 n (t-1)/t, less for t > 3, in two collectives instead of one; either is far below the
//! 8 n d (t-1)/t of one layer of width d, and only the first has the bits of a sum in f64.

use crate::node::{Collective, CollectiveKind, Launch, Node};
use crate::partition::{LayoutConflict, Partition};
use crate::rank::AxisRole;
use crate::value::{Class, Value};
use bessemer_mesh::{Dim, Form, Layout, Placement, PositionOrder, Reduction, even};
use bessemer_tensor::View;
use bessemer_tensor::op::{
    Access, CombineLogSums, Copy, LinearCrossEntropy, LinearCrossEntropyShard, LogitSums, LossBackward, Op,
    Operand, VocabularyShard,
};
use bessemer_units::DType;

impl Partition<'_> {
    /// The loss over a vocabulary of which each rank has some rows.
    pub(crate) fn loss(&mut self, op: LinearCrossEntropy) -> Result<(), Box<LayoutConflict>> {
        let weight = op.weight.buffer.id as usize;
        let whole = Op::from(op);
        let by_tokens = self.rank.role == AxisRole::Sequences;
        if by_tokens || self.placements[weight] != Some(Placement::Shard { dim: 0 }) {
            return self.launch(&Launch::new(whole));
        }
        self.refuse_teacher(&op)?;
        let tensor_shard = {
            let held = self.local(weight, Placement::Shard { dim: 0 }, 0);
            VocabularyShard { first: held.start(), of: op.weight.rows }
        };
        let n = op.x.rows;
        let losses = op.loss.buffer.id as usize;
        self.place(losses, Placement::Replicate);
        let layout = self.out.values[losses].layout;
        let mine = self.numbers("losses.sums.terms", 2, n, layout);
        let parts = self.numbers("losses.sums.all_terms", 2 * self.rank.degree, n, layout);
        let sums = self.numbers("losses.sums", 2, n, layout);
        let (lse, target_logit) = (sums.rows(0, 1), sums.rows(1, 1));
        let x = self.read(&whole, op.x.buffer.id as usize, op.x, (None, None))?;
        let weight_here = self.local_view(weight, op.weight, Placement::Shard { dim: 0 });
        let targets = self.read(&whole, op.targets.buffer.id as usize, op.targets, (None, None))?;
        self.push(Node::launch(LogitSums {
            x,
            weight: weight_here,
            tensor_shard,
            targets,
            lse: mine.rows(0, 1),
            target_logit: mine.rows(1, 1),
        }));
        self.next += 1;
        let (kind, name) = (CollectiveKind::AllGather, format!("{}losses.sums", self.global.name));
        let (id, axis) = (self.next - 1, self.rank.axis);
        self.push(Node::Collective(Collective {
            id,
            kind,
            axis,
            name,
            dim: 0,
            order: PositionOrder::Consecutive,
            columns: Vec::new(),
            messages: Vec::new(),
            by_counts: None,
            src: mine,
            dst: parts,
            rows: 0..parts.rows,
            versions: Vec::new(),
        }));
        self.push(Node::launch(CombineLogSums { parts, lse, target_logit }));
        let loss = self.local_view(losses, op.loss, Placement::Replicate);
        let mut after = Vec::new();
        let scored_lse = match op.scored_lse {
            Some(all) => {
                let id = all.buffer.id as usize;
                Some(self.write(
                    &whole,
                    "scored_lse",
                    (id, all),
                    (Placement::Replicate, false),
                    &mut after,
                )?)
            }
            None => None,
        };
        let backward = match op.backward {
            Some(mut b) => {
                let (dx, dweight) = (b.dx.buffer.id as usize, b.dweight.buffer.id as usize);
                let terms = Placement::Partial { reduce: Reduction::Sum };
                b.factors = self.read(&whole, b.factors.buffer.id as usize, b.factors, (None, None))?;
                self.z_loss(&whole, &mut b)?;
                b.dx = self.write(&whole, "dx", (dx, b.dx), (terms, false), &mut after)?;
                let rows = Placement::Shard { dim: 0 };
                b.dweight = self.write(&whole, "dweight", (dweight, b.dweight), (rows, false), &mut after)?;
                self.forget(dx);
                Some(b)
            }
            None => None,
        };
        let weight = weight_here;
        let op = LinearCrossEntropyShard {
            x,
            weight,
            tensor_shard,
            targets,
            lse,
            target_logit,
            loss,
            scored_lse,
            backward,
        };
        self.push(Node::launch(op));
        after.into_iter().for_each(|node| self.push(node));
        Ok(())
    }

    /// The loss where the columns of the rows and of the projection are sharded: each rank gathers both, and makes the losses and
    /// gradients of some tokens. The gradients of all tokens are then gathered, and each rank keeps its columns.
    pub(crate) fn loss_of_tokens(&mut self, op: LinearCrossEntropy) -> Result<(), Box<LayoutConflict>> {
        self.refuse_teacher(&op)?;
        let whole = Op::from(op);
        let (x, weight) = (op.x.buffer.id as usize, op.weight.buffer.id as usize);
        let tokens = even(op.x.rows, self.rank.degree, self.rank.index);
        let mine = |rows: View| rows.rows(tokens.start, tokens.len);
        let mut after = Vec::new();
        let x = mine(self.read(&whole, x, op.x, (None, None))?);
        let weight = self.read(&whole, weight, op.weight, (None, None))?;
        let targets = self.sliced(op.targets.buffer.id as usize, op.targets, 1);
        let losses = (op.loss.buffer.id as usize, op.loss);
        let by_tokens = (Placement::Shard { dim: 1 }, false);
        let loss = self.write(&whole, "loss", losses, by_tokens, &mut after)?;
        let scored_lse = match op.scored_lse {
            Some(all) => {
                let all = (all.buffer.id as usize, all);
                Some(self.write(&whole, "scored_lse", all, by_tokens, &mut after)?)
            }
            None => None,
        };
        let backward = match op.backward {
            Some(mut b) => {
                b.factors = self.sliced(b.factors.buffer.id as usize, b.factors, 1);
                self.z_loss(&whole, &mut b)?;
                let dx = b.dx.buffer.id as usize;
                let here = self.local_view(dx, b.dx, Placement::Shard { dim: 1 });
                let all = self.whole_copy(dx, "all_columns", None);
                let value = &self.out.values[all.buffer.id as usize];
                let part = Value {
                    name: format!("{}.of_tokens", self.global.values[dx].name),
                    rows: tokens.len,
                    form: Form { dims: vec![Dim::plain(tokens.len), value.form.dims[1].clone()] },
                    layout: value.layout.with(self.rank.axis, Placement::Shard { dim: 0 }),
                    ..value.clone()
                };
                let part = self.temporary(part);
                after.push(Node::Collective(self.collective(CollectiveKind::AllGather, (dx, 0), part, all)));
                let columns = even(all.cols, self.rank.degree, self.rank.index);
                after.push(Node::launch(Copy { src: all.columns(columns.start, columns.len), dst: here }));
                self.forget(dx);
                b.dx = part;
                let access = if b.accumulate { Access::Update } else { Access::Write };
                let dweight = Operand { name: "dweight", view: b.dweight, access };
                let terms = Placement::Partial { reduce: Reduction::Sum };
                b.dweight = self.write_terms(&dweight, terms, &mut after);
                Some(b)
            }
            None => None,
        };
        self.push(Node::launch(LinearCrossEntropy {
            x,
            weight,
            targets,
            loss,
            scored_lse,
            backward,
            teacher: None,
        }));
        after.into_iter().for_each(|node| self.push(node));
        Ok(())
    }

    /// Refuses a teacher where no rank has whole rows of logits of all its tokens.
    fn refuse_teacher(&self, op: &LinearCrossEntropy) -> Result<(), Box<LayoutConflict>> {
        let wanted = "a teacher's predictions are compared with whole rows of logits";
        let refused = |_| {
            Err(self.conflict(
                &(*op).into(),
                op.weight.buffer.id as usize,
                wanted,
                "distil with data parallelism alone",
            ))
        };
        op.teacher.map_or(Ok(()), refused)
    }

    /// The weight of the z-loss, which every rank reads.
    fn z_loss(&mut self, op: &Op, backward: &mut LossBackward) -> Result<(), Box<LayoutConflict>> {
        if let Some(weight) = &mut backward.z_loss {
            *weight = self.read(op, weight.buffer.id as usize, *weight, (None, None))?;
        }
        Ok(())
    }

    /// View to which a rank writes the losses of its tokens, which are then gathered to those of all tokens, the value `id`.
    pub(crate) fn losses_of_rows(&mut self, id: usize, after: &mut Vec<Node>) -> View {
        let mut name = format!("{}.of_rows", self.global.values[id].name);
        if self.global.find(&name).is_some() {
            name = format!("{}.of_{}_rows", self.global.values[id].name, self.rank.axis);
        }
        let part = match self.out.find(&name) {
            Some(part) => part,
            None => {
                let (dims, cols) =
                    (&self.out.values[id].form.dims, self.out.values[id].cols / self.rank.degree);
                let sharded = Value {
                    name,
                    class: Class::Local,
                    layout: self.out.values[id].layout.with(self.rank.axis, Placement::Shard { dim: 1 }),
                    form: Form { dims: vec![dims[0].clone(), Dim::plain(cols)] },
                    cols,
                    residual: false,
                    ..self.out.values[id].clone()
                };
                self.out.add(sharded).buffer.id as usize
            }
        };
        let (part, whole) = (self.out.values[part].view(part), self.out.values[id].view(id));
        after.push(Node::Collective(self.collective(CollectiveKind::AllGather, (id, 1), part, whole)));
        part
    }

    /// f32 `[rows, n]`, made by the pass.
    pub(crate) fn numbers(&mut self, name: &str, rows: usize, n: usize, layout: Layout) -> View {
        if let Some(id) = self.out.find(name) {
            return self.out.values[id].view(id);
        }
        self.out.add(Value {
            name: name.into(),
            class: Class::Local,
            dtype: DType::F32,
            form: Form { dims: vec![Dim::plain(rows), Dim::plain(n)] },
            layout,
            rows,
            cols: n,
            residual: false,
            parameter: None,
        })
    }
}
