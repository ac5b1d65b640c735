//! The global norm of the gradient, over unique elements only.
//!
//! Every rank sums the squares of the elements that it alone represents: its shard's range of a parameter; of parameters that
//! tensor-parallel ranks all hold, the first of them. The ranks' sums are then added in the order of the ranks in f64,
//! so all of them have the same bits.

use bessemer_arch::TensorShardParam;
use bessemer_tensor::op::{Op, SumSquares};
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError, View};
use bessemer_units::{Bytes, DType};
use std::ops::Range;

/// Gradients whose squares this rank sums.
#[derive(Debug)]
pub(crate) struct LocalSquares {
    launches: Vec<Op>,
    /// Indexed by launch: the group of the parameter.
    groups: Vec<usize>,
    squares: View,
    host: Vec<f32>,
}

/// Elements of this rank's part of a parameter that it counts, within `here`.
pub(crate) fn counted(param: &TensorShardParam, here: &Range<usize>) -> Vec<Range<usize>> {
    let meet = |r: Range<usize>| crate::flat::common(&r, here);
    param.counted().into_iter().map(meet).filter(|r| !r.is_empty()).collect()
}

impl LocalSquares {
    /// Plans the sums over `gradients`, each of a parameter of a group, and the memory and workspace for them.
    pub(crate) fn new(
        backend: &mut dyn Backend,
        gradients: &[(usize, View)],
    ) -> Result<LocalSquares, TensorError> {
        let count = gradients.len().max(1);
        let spec =
            BufferSpec { class: "optimizer", name: "squares of the gradient", dtype: DType::F32, len: count };
        let squares = backend.alloc(spec)?.vector();
        let launch = |(i, (_, x)): (usize, &(usize, View))| -> Op {
            SumSquares { x: *x, out: squares.columns(i, 1), accumulate: false }.into()
        };
        let launches: Vec<Op> = gradients.iter().enumerate().map(launch).collect();
        let mut most = Bytes(0);
        for op in &launches {
            op.check()?;
            most = most.max(backend.workspace(op)?);
        }
        backend.reserve_workspace(most)?;
        let groups = gradients.iter().map(|(group, _)| *group).collect();
        Ok(LocalSquares { host: vec![0.0; count], launches, groups, squares })
    }

    /// Adds this rank's squares to the sums of the groups.
    pub(crate) fn add_to(&mut self, backend: &mut dyn Backend, sums: &mut [f64]) -> Result<(), TensorError> {
        for op in &self.launches {
            backend.launch(Stream::Compute, op)?;
        }
        backend.read_f32(self.squares, &mut self.host)?;
        for (number, sum) in sums.iter_mut().enumerate() {
            let of_group = self.host.iter().zip(&self.groups).filter(|(_, group)| **group == number);
            *sum += of_group.map(|(square, _)| f64::from(*square)).sum::<f64>();
        }
        Ok(())
    }
}
