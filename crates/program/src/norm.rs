//! Normalisations in [`crate::partition()`] over rows of which each rank has some columns.
//!
//! Each rank sums its columns of a row, the sums are all-reduced, and each computes its columns from the sums of all: for n rows over c
//! ranks a rank sends 2 n (c-1)/c numbers for a sum. RMSNorm has one in the forward pass, LayerNorm two in sequence (the squares are
//! summed about the mean); in the backward pass they have one collective, of one and two sums.

use crate::node::{CollectiveKind, Launch, Node};
use crate::partition::{LayoutConflict, Partition};
use bessemer_mesh::{Layout, Placement};
use bessemer_tensor::View;
use bessemer_tensor::op::{
    Norm, NormBackward, NormBackwardOfSums, NormGradientSums, NormKind, NormOfSums, RowSums, RowTerm,
};

impl Partition<'_> {
    /// Whether each rank has some columns of the rows that are normalised as a whole.
    pub(crate) fn normalises_columns(&self, weight: View) -> bool {
        self.placements[weight.buffer.id as usize] == Some(Placement::Shard { dim: 1 })
    }

    /// A normalisation of whole rows.
    pub(crate) fn norm(&mut self, launch: &Launch, op: &Norm) -> Result<(), Box<LayoutConflict>> {
        let (whole, width) = (&launch.op, op.x.cols);
        let columns = (Some(1), None);
        let x = self.read(whole, op.x.buffer.id as usize, op.x, columns)?;
        let weight = self.read(whole, op.weight.buffer.id as usize, op.weight, columns)?;
        let bias = op.bias.map(|b| self.read(whole, b.buffer.id as usize, b, columns)).transpose()?;
        let mut after = Vec::new();
        let (own, all) = ((Placement::Shard { dim: 1 }, false), (Placement::Replicate, false));
        let out = self.write(whole, "out", (op.out.buffer.id as usize, op.out), own, &mut after)?;
        let rstd = self.write(whole, "rstd", (op.rstd.buffer.id as usize, op.rstd), all, &mut after)?;
        let mean = op.mean.map(|m| self.write(whole, "mean", (m.buffer.id as usize, m), all, &mut after));
        let mean = mean.transpose()?;
        self.forget(op.out.buffer.id as usize);
        let layer = op.kind == NormKind::Layer;
        let sums = layer.then(|| {
            let sums = self.sums_of_rows((op.rstd, "sums"), 1);
            self.push(Node::launch(RowSums { term: RowTerm::Value, x, about: None, width, out: sums }));
            self.reduce_sums(sums)
        });
        let squares = self.sums_of_rows((op.rstd, "squares"), 1);
        self.push(Node::launch(RowSums { term: RowTerm::Square, x, about: sums, width, out: squares }));
        let squares = self.reduce_sums(squares);
        let (kind, eps) = (op.kind, op.eps);
        let op = NormOfSums { kind, x, sums, squares, width, weight, bias, out, mean, rstd, eps };
        self.push(Node::Launch(Launch { op: op.into(), ..launch.clone() }));
        after.into_iter().for_each(|node| self.push(node));
        Ok(())
    }

    /// The gradients of a normalisation of whole rows.
    pub(crate) fn norm_backward(
        &mut self,
        launch: &Launch,
        op: &NormBackward,
    ) -> Result<(), Box<LayoutConflict>> {
        let (whole, width) = (&launch.op, op.x.cols);
        let (columns, rows) = ((Some(1), None), (None, None));
        let x = self.read(whole, op.x.buffer.id as usize, op.x, columns)?;
        let weight = self.read(whole, op.weight.buffer.id as usize, op.weight, columns)?;
        let rstd = self.read(whole, op.rstd.buffer.id as usize, op.rstd, rows)?;
        let mean = op.mean.map(|m| self.read(whole, m.buffer.id as usize, m, rows)).transpose()?;
        let dout = self.read(whole, op.dout.buffer.id as usize, op.dout, columns)?;
        let kind = op.kind;
        let sums = self.sums_of_rows((op.rstd, "gradient_sums"), if kind == NormKind::Layer { 2 } else { 1 });
        self.push(Node::launch(NormGradientSums { kind, x, weight, mean, rstd, dout, sums }));
        let sums = self.reduce_sums(sums);
        let (mut after, own) = (Vec::new(), (Placement::Shard { dim: 1 }, false));
        let mut written = |pass: &mut Self, name: &str, view: View| {
            pass.write(whole, name, (view.buffer.id as usize, view), own, &mut after)
        };
        let dx = written(self, "dx", op.dx)?;
        let dweight = written(self, "dweight", op.dweight)?;
        let dbias = op.dbias.map(|b| written(self, "dbias", b)).transpose()?;
        self.forget(op.dx.buffer.id as usize);
        let (accumulate_dx, accumulate) = (op.accumulate_dx, op.accumulate);
        let op = NormBackwardOfSums {
            kind,
            x,
            weight,
            mean,
            rstd,
            dout,
            sums,
            width,
            dx,
            accumulate_dx,
            dweight,
            dbias,
            accumulate,
        };
        self.push(Node::Launch(Launch { op: op.into(), ..launch.clone() }));
        after.into_iter().for_each(|node| self.push(node));
        Ok(())
    }

    /// A value for sums of rows, f32 `[rows, n]`, named after a value that has a number for each of these rows.
    fn sums_of_rows(&mut self, (like, what): (View, &str), rows: usize) -> View {
        let value = &self.global.values[like.buffer.id as usize];
        let layout: Layout = value.layout.with(self.rank.axis, Placement::Replicate);
        let base = value.name.strip_suffix(".rstd").unwrap_or(&value.name);
        let name = format!("{base}.{what}");
        self.numbers(&name, rows, like.cols, layout)
    }

    fn reduce_sums(&mut self, sums: View) -> View {
        let collective = self.collective(CollectiveKind::AllReduce, (sums.buffer.id as usize, 0), sums, sums);
        self.push(Node::Collective(collective));
        sums
    }
}
