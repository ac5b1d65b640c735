//! Embedding look-up `out[n] = table[ids[n]] (+ positions)` and its backward `dtable[ids[n]] += dout[n]`, rows added in
//! the order of n for every table row, so that the result does not depend on the cut.
//!
//! Cost: forward one read of the rows and one write, backward a read of dout and an update of the rows that occur.

use crate::arena::Arena;
use bessemer_tensor::TensorError;
use bessemer_tensor::op::{Embedding, EmbeddingBackward};

pub(crate) fn forward_reference(arena: &Arena, op: &Embedding) -> Result<(), TensorError> {
    let (table, ids, out) = (arena.f32(&op.table), arena.u32(&op.ids), arena.f32(&op.out));
    ids.check("embedding", "ids", table.rows, None)?;
    let learned = op.positions.map(|p| (arena.f32(&p.table), arena.u32(&p.positions)));
    if let Some((t, p)) = &learned {
        p.check("embedding", "positions", t.rows, None)?;
    }
    for (n, &id) in ids.0.iter().enumerate() {
        for c in 0..out.cols {
            let position = learned.map_or(0.0, |(t, p)| t.get(p.0[n] as usize, c));
            out.set(n, c, table.get(id as usize, c) + position);
        }
    }
    Ok(())
}

pub(crate) fn backward_reference(arena: &Arena, op: &EmbeddingBackward) -> Result<(), TensorError> {
    let (ids, dout, dtable) = (arena.u32(&op.ids), arena.f32(&op.dout), arena.f32(&op.dtable));
    ids.check("embedding_backward", "ids", dtable.rows, None)?;
    let learned = op.positions.map(|p| (arena.f32(&p.table), arena.u32(&p.positions)));
    if let Some((t, p)) = &learned {
        p.check("embedding_backward", "positions", t.rows, None)?;
    }
    for (n, &id) in ids.0.iter().enumerate() {
        for c in 0..dout.cols {
            dtable.add(id as usize, c, dout.get(n, c));
            if let Some((t, p)) = learned {
                t.add(p.0[n] as usize, c, dout.get(n, c));
            }
        }
    }
    Ok(())
}
