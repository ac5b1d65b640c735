//! The one composite of [`crate::partition()`]: the loss over a vocabulary of which each rank has some rows.
//!
//! Each rank makes the log-sum-exps and target logits of its rows, these are combined, and each makes its rows' part of the
//! gradients from the combined ones.

use crate::localize::Local;
use crate::node::{Collective, CollectiveKind, Launch, Node};
use crate::partition::{LayoutConflict, Partition};
use crate::value::{Class, Value};
use bessemer_mesh::{Dim, Form, Layout, Placement, Reduction};
use bessemer_tensor::View;
use bessemer_tensor::op::{LinearCrossEntropy, LinearCrossEntropyShard, LogitSums, Op, VocabularyShard};
use bessemer_units::DType;

impl Partition<'_> {
    /// The loss over a vocabulary of which each rank has some rows.
    pub(crate) fn loss(&mut self, op: LinearCrossEntropy) -> Result<(), Box<LayoutConflict>> {
        let weight = op.weight.buffer.id as usize;
        let whole = Op::from(op);
        if self.placements[weight] != Some(Placement::Shard { dim: 0 }) {
            return self.launch(&Launch { op: whole, first_only: false, versions: Vec::new() });
        }
        let tensor_shard = {
            let held = Local::of(
                &self.global.values[weight].form.dims[0],
                self.sharding(Placement::Shard { dim: 0 }, 0),
            );
            VocabularyShard { first: held.start(), of: op.weight.rows }
        };
        let n = op.x.rows;
        let sums = self.global_numbers("losses.sums", n);
        let (lse, target_logit) = (sums.rows(0, 1), sums.rows(1, 1));
        let x = self.read(&whole, op.x.buffer.id as usize, op.x, None)?;
        let weight_here = self.local_view(weight, op.weight, Placement::Shard { dim: 0 });
        let targets = self.read(&whole, op.targets.buffer.id as usize, op.targets, None)?;
        self.push(Node::launch(LogitSums {
            x,
            weight: weight_here,
            tensor_shard,
            targets,
            lse,
            target_logit,
        }));
        self.next += 1;
        let (kind, name) = (CollectiveKind::CombineLogSums, format!("{}losses.sums", self.global.name));
        let (id, axis) = (self.next - 1, self.rank.axis);
        self.push(Node::Collective(Collective {
            id,
            kind,
            axis,
            name,
            src: sums,
            dst: sums,
            rows: 0..2,
            versions: Vec::new(),
        }));
        let loss = self.local_view(op.loss.buffer.id as usize, op.loss, Placement::Replicate);
        let mut after = Vec::new();
        let backward = match op.backward {
            Some(mut b) => {
                let (dx, dweight) = (b.dx.buffer.id as usize, b.dweight.buffer.id as usize);
                let terms = Placement::Partial { reduce: Reduction::Sum };
                b.step = self.read(&whole, b.step.buffer.id as usize, b.step, None)?;
                b.dx = self.write(&whole, dx, b.dx, terms, &mut after)?;
                b.dweight =
                    self.write(&whole, dweight, b.dweight, Placement::Shard { dim: 0 }, &mut after)?;
                self.gathered.remove(&dx);
                Some(b)
            }
            None => None,
        };
        let weight = weight_here;
        let op =
            LinearCrossEntropyShard { x, weight, tensor_shard, targets, lse, target_logit, loss, backward };
        self.push(Node::launch(op));
        after.into_iter().for_each(|c| self.push(Node::Collective(c)));
        Ok(())
    }

    /// f32 `[2, n]`, made by the pass.
    fn global_numbers(&mut self, name: &str, n: usize) -> View {
        if let Some(id) = self.out.find(name) {
            return self.out.values[id].view(id);
        }
        self.out.add(Value {
            name: name.into(),
            class: Class::Local,
            dtype: DType::F32,
            form: Form { dims: vec![Dim::plain(2), Dim::plain(n)] },
            layout: Layout::replicated(),
            rows: 2,
            cols: n,
            residual: false,
        })
    }
}
