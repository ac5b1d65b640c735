//! The verifier's part about collectives: their operands are complete and of the placement that they need, nothing touches a value
//! in flight, and each collective is waited for once.

use crate::node::{Collective, CollectiveKind};
use crate::verify::{Checking, State, Violation};
use bessemer_mesh::{Axis, Placement};

impl Checking<'_> {
    /// State of the destination of a collective that is complete: some rows of it may still be in flight.
    pub(crate) fn arrived(&self, c: &Collective, then: Placement) -> State {
        let id = c.dst.buffer.id as usize;
        let value = &self.unit.values[id];
        let row = c.dst.offset / value.cols.max(1);
        let mut rows = row..row + c.dst.rows;
        let mut done = match &self.states[id] {
            State::Moving { done, .. } => done.clone(),
            _ => Vec::new(),
        };
        if let Some(last) = done.pop_if(|last| last.end == rows.start) {
            rows.start = last.start;
        }
        if rows == (0..value.rows) {
            return State::Is(then);
        }
        done.push(rows);
        State::Moving { done, then }
    }

    /// A collective over another axis: every rank of this axis moves its part, or its terms.
    pub(crate) fn other_axis(&mut self, at: usize, c: &Collective) -> Result<(), Box<Violation>> {
        let (src, dst) = (c.src.buffer.id as usize, c.dst.buffer.id as usize);
        if let Some(by) = c.by_counts {
            self.readable(at, &by.view())?;
        }
        let placement = match &self.states[src] {
            // This rank only receives.
            _ if c.src.is_empty() => self.unit.values[dst].placement(self.rank.axis),
            // Terms of a gradient.
            State::Is(partial @ Placement::Partial { .. }) if self.unit.values[src].parameter.is_some() => {
                *partial
            }
            State::Is(partial @ Placement::Partial { .. }) if c.kind == CollectiveKind::AllReduce => *partial,
            _ => self.readable(at, &c.src)?,
        };
        let wanted = self.unit.values[dst].placement(self.rank.axis);
        let along = c.kind.moves_dim() && placement == Placement::Shard { dim: c.dim };
        // Rows that are exchanged by counts, and their offsets, may be terms: each rank of this axis moves its own.
        let moves_terms = c.axis == Axis::Expert && placement == wanted;
        let term =
            matches!(placement, Placement::Partial { .. }) && self.unit.values[src].parameter.is_none();
        // A sum over another axis of terms of this one stays a term.
        if term && c.kind == CollectiveKind::AllReduce {
            return Ok(());
        }
        if term && !moves_terms {
            return Err(self.wrong(
                at,
                src,
                "is moved as the sum, but is one term of it: a reduction is missing",
            ));
        }
        // A value gathered along a dim that both axes divide is this rank's part of it only if the other axis divides last.
        let last = match self.later.iter().find(|rank| rank.axis == c.axis) {
            _ if self.unit.values[dst].parameter.is_some() => true,
            Some(other) => !other.divides_rows_first(),
            None => self.rank.divides_rows_first(),
        };
        if placement != wanted || (along && !last) {
            let problem =
                format!("is {placement}, which {} over {} does not lead to {wanted}", c.kind.name(), c.axis);
            return Err(self.wrong(at, src, problem));
        }
        if c.kind == CollectiveKind::ReduceScatter {
            self.undefine(src);
        }
        if !c.dst.is_empty() {
            self.written.add(&self.unit.values[dst], &c.dst);
            self.states[dst] = self.arrived(c, placement);
        }
        Ok(())
    }

    /// Checks that a collective may read its source.
    pub(crate) fn source(&self, at: usize, c: &Collective) -> Result<(), Box<Violation>> {
        let id = c.src.buffer.id as usize;
        let state = &self.states[id];
        let dst = c.dst.buffer.id as usize;
        let partial = matches!(state, State::Is(Placement::Partial { .. }));
        let moving = matches!(state, State::Moving { .. });
        let fits = match c.kind {
            CollectiveKind::AllReduce => partial || moving,
            CollectiveKind::ReduceScatter => {
                (partial || moving)
                    && self.unit.values[dst].placement(self.rank.axis) == (Placement::Shard { dim: c.dim })
            }
            CollectiveKind::AllGather => {
                // Rows that have arrived may be gathered further.
                self.readable(at, &c.src).is_ok_and(|found| found == Placement::Shard { dim: c.dim })
                    || *state == State::LogTerms { gathered: false }
            }
            CollectiveKind::Permute => return self.permuted(at, c),
            CollectiveKind::AllToAll => {
                let (from, to) = if c.to_columns() { (0, 1) } else { (1, 0) };
                *state == State::Is(Placement::Shard { dim: from })
                    && self.unit.values[dst].placement(self.rank.axis) == (Placement::Shard { dim: to })
            }
        };
        if !fits {
            let problem = format!("is {state}, which {} over {} does not support", c.kind.name(), c.axis);
            return Err(self.wrong(at, id, problem));
        }
        if !self.written.has(&self.unit.values[id], &c.src) {
            return Err(self.wrong(at, id, "is sent before anything has written some of its columns"));
        }
        if c.axis != self.rank.axis {
            return Err(self.wrong(
                at,
                id,
                format!("is reduced or gathered over {}, not {}", c.axis, self.rank.axis),
            ));
        }
        let parts = match c.kind {
            CollectiveKind::AllGather => (c.src.len() * self.rank.degree, c.dst.len()),
            CollectiveKind::ReduceScatter => (c.dst.len() * self.rank.degree, c.src.len()),
            _ => (c.src.len(), c.dst.len()),
        };
        let same = if c.dim == 1 { c.src.rows == c.dst.rows } else { c.src.cols == c.dst.cols };
        let fits = match c.kind {
            CollectiveKind::AllToAll => {
                let (ranks, me) = (self.rank.degree, self.rank.index);
                let sent: usize = (0..ranks).map(|to| c.exchanged(ranks, me, to)).sum();
                let received: usize = (0..ranks).map(|from| c.exchanged(ranks, from, me)).sum();
                let all: usize = c.columns.iter().map(|block| block.len()).sum();
                // Heads of which several ranks have copies are sent to each of them.
                let sends = match c.to_columns() {
                    true => (c.src.rows * ranks, c.src.cols) == (c.dst.rows, all),
                    false => sent == c.src.len(),
                };
                received == c.dst.len() && sends
            }
            _ => parts.0 == parts.1 && same,
        };
        if !fits {
            return Err(self.wrong(at, id, "has another shape than what the collective leads to"));
        }
        Ok(())
    }

    pub(crate) fn start(&mut self, at: usize, c: &Collective) -> Result<(), Box<Violation>> {
        self.source(at, c)?;
        let permutes = c.kind == CollectiveKind::Permute;
        if c.dst.rows > 0 {
            self.written.add(&self.unit.values[c.dst.buffer.id as usize], &c.dst);
            if permutes {
                self.states[c.dst.buffer.id as usize] = State::Coming;
            }
        }
        for id in [c.src.buffer.id as usize, c.dst.buffer.id as usize].into_iter().filter(|_| !permutes) {
            // The source of an all-gather is only read.
            let read_only = c.kind == CollectiveKind::AllGather && id == c.src.buffer.id as usize;
            if !read_only && !matches!(self.states[id], State::Moving { .. }) {
                self.states[id] = State::Moving { done: Vec::new(), then: result(c) };
            }
        }
        if self.under_way.insert(c.id, c.clone()).is_some() {
            return Err(self.wrong(at, c.dst.buffer.id as usize, "is started twice under one number"));
        }
        Ok(())
    }

    pub(crate) fn wait(&mut self, at: usize, id: usize) -> Result<(), Box<Violation>> {
        let Some(c) = self.under_way.remove(&id) else {
            return Err(self.wrong(at, 0, format!("number {id}: nothing was started under this number")));
        };
        let (src, dst) = (c.src.buffer.id as usize, c.dst.buffer.id as usize);
        if c.kind == CollectiveKind::Permute {
            self.permutation_arrived(&c);
            return Ok(());
        }
        let State::Moving { done, .. } = &mut self.states[dst] else {
            return Err(self.wrong(at, dst, "is not in flight"));
        };
        match done.last_mut() {
            Some(last) if last.end == c.rows.start => last.end = c.rows.end,
            _ => done.push(c.rows.clone()),
        }
        let all = |rows: &std::ops::Range<usize>| rows.start == 0 && rows.end == c.total_rows();
        if done.len() == 1 && done.iter().all(all) {
            self.states[dst] = State::Is(result(&c));
            if src != dst && c.kind == CollectiveKind::ReduceScatter {
                self.undefine(src);
            }
        }
        Ok(())
    }
}

/// Placement of a collective's destination.
pub(crate) fn result(c: &Collective) -> Placement {
    match c.kind {
        CollectiveKind::ReduceScatter => Placement::Shard { dim: c.dim },
        CollectiveKind::AllToAll => Placement::Shard { dim: usize::from(c.to_columns()) },
        CollectiveKind::Permute => Placement::Shard { dim: 0 },
        CollectiveKind::AllReduce | CollectiveKind::AllGather => Placement::Replicate,
    }
}
