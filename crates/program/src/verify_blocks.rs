//! Attention in blocks, for [`crate::verify()`]: the rank whose rows a value has, and the ranks whose keys or queries a result or a
//! gradient includes.
//!
//! A value with the rows of another rank, or with results that lack some block, has no layout that other operators could read. It becomes
//! this rank's part of a sharded value when every block that the mask admits is in it, each once. The values that a rank sends are compared
//! with the messages of the permutation, which are the same on all ranks; so the contents at the receiver are known.

use crate::node::{Collective, Node};
use crate::unit::{Phase, UnitProgram};
use crate::verify::{Checking, State, Violation};
use bessemer_mesh::{Placement, RowsContents};
use bessemer_tensor::View;
use bessemer_tensor::op::{AttentionMask, Op};
use std::collections::BTreeSet;

/// Rows of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockRows {
    /// The rank.
    of: usize,
    contents: RowsContents,
}

impl std::fmt::Display for BlockRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.contents {
            RowsContents::Whole => write!(f, "those of rank {}", self.of),
            RowsContents::OfKeys(ranks) => {
                write!(f, "results of rank {} from the keys of ranks {ranks:?}", self.of)
            }
            RowsContents::OfQueries(ranks) => {
                write!(f, "gradients of rank {} from the queries of ranks {ranks:?}", self.of)
            }
        }
    }
}

/// The mask of a launch that has some of the keys.
fn block_mask(op: &Op) -> Option<&AttentionMask> {
    let mask = match op {
        Op::Attention(o) => &o.mask,
        Op::AttentionBackward(o) => &o.mask,
        _ => return None,
    };
    mask.keys.is_some().then_some(mask)
}

/// The mask of the blocks of a unit.
fn mask_of(unit: &UnitProgram) -> Option<&AttentionMask> {
    Phase::ALL.iter().flat_map(|phase| unit.list(*phase)).filter_map(Node::op).find_map(block_mask)
}

impl Checking<'_> {
    /// Whether the operator computes a block, or works on results of blocks.
    pub(crate) fn computes_block(&self, op: &Op) -> bool {
        if !self.rank.context.method.by_blocks() {
            return false;
        }
        let block = |view: &View| matches!(self.states[view.buffer.id as usize], State::Block(_));
        match op {
            Op::AttentionMerge(_) => true,
            Op::Add(o) => block(&o.a) || block(&o.b),
            op => block_mask(op).is_some(),
        }
    }

    /// Rows that a value has when it is read.
    fn rows(&self, at: usize, view: &View) -> Result<BlockRows, Box<Violation>> {
        let id = view.buffer.id as usize;
        match &self.states[id] {
            State::Block(rows) => Ok(rows.clone()),
            _ => match self.readable(at, view)? {
                Placement::Shard { .. } => {
                    Ok(BlockRows { of: self.rank.index, contents: RowsContents::Whole })
                }
                other => {
                    Err(self.wrong(at, id, format!("is {other}, where a block needs the rows of one rank")))
                }
            },
        }
    }

    /// The rows of several values, which must be of one rank and not lack anything.
    fn rows_of<const N: usize>(&self, at: usize, views: [&View; N]) -> Result<usize, Box<Violation>> {
        let mut found: Option<usize> = None;
        for view in views {
            let (rows, id) = (self.rows(at, view)?, view.buffer.id as usize);
            if rows.contents != RowsContents::Whole {
                return Err(self.wrong(at, id, format!("is read as complete, but has {rows}")));
            }
            if found.is_some_and(|of| of != rows.of) {
                return Err(self.wrong(
                    at,
                    id,
                    format!("has {rows}, the operands before it those of another rank"),
                ));
            }
            found = Some(rows.of);
        }
        Ok(found.unwrap_or(self.rank.index))
    }

    /// Sets the contents of a value: this rank's part of a sharded one, if nothing is missing.
    fn set_rows(&mut self, view: &View, rows: BlockRows) {
        let (id, me, ranks) = (view.buffer.id as usize, self.rank.index, self.rank.degree);
        let value = &self.unit.values[id];
        self.written.add(value, view);
        let mask = mask_of(self.unit);
        let seq = mask.and_then(|mask| mask.keys).map_or(0, |keys| keys.seq);
        let window = mask.and_then(|mask| mask.window);
        let sees = |query, key| self.rank.order.sees(seq, ranks, window, query, key);
        let complete = match &rows.contents {
            RowsContents::Whole => true,
            RowsContents::OfKeys(found) => (0..ranks).filter(|key| sees(me, *key)).eq(found.iter().copied()),
            RowsContents::OfQueries(found) => {
                (0..ranks).filter(|query| sees(*query, me)).eq(found.iter().copied())
            }
        };
        self.states[id] = match rows.of == me && complete {
            true => State::Is(value.placement(self.rank.axis)),
            false => State::Block(rows),
        };
    }

    /// Combined contents of two results or sums of gradients.
    fn joined(&self, at: usize, a: &View, b: &View) -> Result<BlockRows, Box<Violation>> {
        let (id, rows, other) = (a.buffer.id as usize, self.rows(at, a)?, self.rows(at, b)?);
        let union = |x: &BTreeSet<usize>, y: &BTreeSet<usize>| x.is_disjoint(y).then(|| x | y);
        let contents = match (&rows.contents, &other.contents) {
            (RowsContents::OfKeys(x), RowsContents::OfKeys(y)) => union(x, y).map(RowsContents::OfKeys),
            (RowsContents::OfQueries(x), RowsContents::OfQueries(y)) => {
                union(x, y).map(RowsContents::OfQueries)
            }
            _ => None,
        };
        match contents.filter(|_| rows.of == other.of) {
            Some(contents) => Ok(BlockRows { of: rows.of, contents }),
            None => Err(self.wrong(at, id, format!("has {rows}, and is joined with {other}"))),
        }
    }

    /// An operator on blocks.
    pub(crate) fn block(&mut self, at: usize, op: &Op) -> Result<(), Box<Violation>> {
        match op {
            Op::Attention(o) => {
                let (queries, keys) = (self.rows_of(at, [&o.q])?, self.rows_of(at, [&o.k, &o.v])?);
                self.positions_fit(at, (&o.q, queries), (&o.k, keys), &o.mask)?;
                for view in [&o.out, &o.lse] {
                    self.set_rows(
                        view,
                        BlockRows { of: queries, contents: RowsContents::OfKeys([keys].into()) },
                    );
                }
            }
            Op::AttentionBackward(o) => {
                let queries = self.rows_of(at, [&o.q, &o.out, &o.lse, &o.dout])?;
                let keys = self.rows_of(at, [&o.k, &o.v])?;
                self.positions_fit(at, (&o.q, queries), (&o.k, keys), &o.mask)?;
                self.set_rows(
                    &o.dq,
                    BlockRows { of: queries, contents: RowsContents::OfKeys([keys].into()) },
                );
                for view in [&o.dk, &o.dv] {
                    let contents = RowsContents::OfQueries([queries].into());
                    self.set_rows(view, BlockRows { of: keys, contents });
                }
            }
            Op::AttentionMerge(o) => {
                let (out, lse) = (self.joined(at, &o.out, &o.part)?, self.joined(at, &o.lse, &o.part_lse)?);
                if out != lse {
                    let problem = format!("has {lse}, the results that it is merged with {out}");
                    return Err(self.wrong(at, o.lse.buffer.id as usize, problem));
                }
                self.set_rows(&o.out, out);
                self.set_rows(&o.lse, lse);
            }
            Op::Add(o) => {
                let sum = self.joined(at, &o.a, &o.b)?;
                self.set_rows(&o.out, sum);
            }
            _ => {}
        }
        Ok(())
    }

    /// The positions that an operator states are those of the rows that it has, and the mask lets some pair through.
    fn positions_fit(
        &self,
        at: usize,
        (q, queries): (&View, usize),
        (k, keys): (&View, usize),
        mask: &AttentionMask,
    ) -> Result<(), Box<Violation>> {
        let Some(some) = mask.keys else { return Ok(()) };
        for (view, rank, found) in [(q, queries, mask.queries), (k, keys, some.positions)] {
            if found != self.rank.positions(some.seq, rank) {
                let problem = format!("has rows of rank {rank}, but the operator states {found:?}");
                return Err(self.wrong(at, view.buffer.id as usize, problem));
            }
        }
        if !self.rank.order.sees(some.seq, self.rank.degree, mask.window, queries, keys) {
            let problem = format!("has keys of rank {keys}, none of which a query of rank {queries} sees");
            return Err(self.wrong(at, k.buffer.id as usize, problem));
        }
        Ok(())
    }

    /// Checks that a permutation may send its values.
    pub(crate) fn permuted(&self, at: usize, c: &Collective) -> Result<(), Box<Violation>> {
        let (me, ranks) = (self.rank.index, self.rank.degree);
        let (src, dst) = (c.src.buffer.id as usize, c.dst.buffer.id as usize);
        let mut to: Vec<usize> = c.messages.iter().flatten().map(|message| message.to).collect();
        to.sort_unstable();
        let sent: Vec<usize> = (0..c.messages.len()).filter(|from| c.to(*from) == Some(*from)).collect();
        let permutes = to.windows(2).all(|pair| pair[0] < pair[1]) && to.last().is_none_or(|to| *to < ranks);
        if c.axis != self.rank.axis || c.messages.len() != ranks || !permutes || !sent.is_empty() {
            return Err(self.wrong(
                at,
                dst,
                format!("is permuted over {} by no permutation of its ranks", c.axis),
            ));
        }
        let sides = (c.src.rows > 0, c.dst.rows > 0);
        if sides != (c.to(me).is_some(), c.from(me).is_some()) || (sides != (true, true) && src != dst) {
            return Err(self.wrong(at, dst, "is sent or received differently from the permutation"));
        }
        let Some(message) = &c.messages[me] else { return Ok(()) };
        let rows = self.rows(at, &c.src)?;
        let said = BlockRows { of: message.rows_of, contents: message.contents.clone() };
        if rows != said {
            return Err(self.wrong(at, src, format!("has {rows}, and is sent as {said}")));
        }
        if !self.written.has(&self.unit.values[src], &c.src) {
            return Err(self.wrong(at, src, "is sent before anything has written some of its columns"));
        }
        Ok(())
    }

    /// Sets the state of the value that this rank has received.
    pub(crate) fn permutation_arrived(&mut self, c: &Collective) {
        let from = c.from(self.rank.index).and_then(|from| c.messages[from].clone());
        if let Some(message) = from {
            self.set_rows(&c.dst, BlockRows { of: message.rows_of, contents: message.contents });
        }
    }
}
