//! Attention in blocks in [`crate::partition()`], while the rows of everything are sharded (Ring Attention: Li et al. 2021, Liu et al.
//! 2023; LightSeq: Li et al. 2023).
//!
//! A block is the queries of one rank against the keys of one rank; [`bessemer_mesh::BlockSchedule`] assigns blocks to ranks and
//! steps. Results are partial ones, in f32 whatever activations are stored in, and are merged as they arrive: those of the preceding step,
//! then this rank's own, so that sums have one order. The backward pass has the merged result and log-sum-exps, and sums the gradients of
//! each block, in f32 and in the order of the steps.
//!
//! Operands of a step that come from other ranks are in flight while the preceding step is computed, and results for other ranks while
//! the next one is: every message is started, and waited for a step later. A rank holds two blocks of keys and values at a time.

use crate::node::{CollectiveKind, Node};
use crate::partition::{LayoutConflict, Partition};
use crate::value::{Class, Value};
use bessemer_mesh::{BlockSchedule, BlockTask, Dim, Form, Messages, Placement, RowsContents, even};
use bessemer_tensor::View;
use bessemer_tensor::op::{
    Access, Add, Attention, AttentionBackward, AttentionMask, AttentionMerge, AttentionShape, Copy, Op,
    SomeKeys,
};
use bessemer_units::DType;

/// Operands of a block: of one rank's keys `[k, v]`, of one rank's queries `[q]`, or `[q, out, lse, dout]`.
type Operands = Vec<View>;

/// A message in flight: this rank sends, receives, or does both.
#[derive(Debug, Clone, Copy)]
struct Flight {
    id: usize,
    src: View,
    dst: View,
}

/// The operands of a step that come from other ranks, in flight.
#[derive(Debug, Default)]
struct Coming {
    keys: Vec<Option<Flight>>,
    queries: Vec<Option<Flight>>,
}

/// One block for this rank to compute.
#[derive(Debug, Clone)]
struct Block {
    task: BlockTask,
    keys: Operands,
    queries: Operands,
}

/// Attributes of an attention besides its operands, and the schedule of its blocks.
#[derive(Debug)]
struct Blocks {
    schedule: BlockSchedule,
    shape: AttentionShape,
    mask: AttentionMask,
    /// Positions of the sequence.
    seq: usize,
    me: usize,
}

impl Blocks {
    fn steps(&self) -> std::ops::Range<usize> {
        0..self.schedule.steps.len()
    }
}

const KEYS: [&str; 2] = ["k", "v"];
const QUERIES: [&str; 4] = ["q", "out", "lse", "dout"];

impl Partition<'_> {
    /// Whether the operator is computed in blocks, by several ranks.
    pub(crate) fn passes_blocks(&self, op: &Op) -> bool {
        self.rank.context.method.by_blocks() && matches!(op, Op::Attention(_) | Op::AttentionBackward(_))
    }

    /// An attention in blocks.
    pub(crate) fn launch_by_blocks(&mut self, op: &Op) -> Result<(), Box<LayoutConflict>> {
        for operand in op.operands().iter().filter(|o| o.access != Access::Read) {
            self.forget(operand.view.buffer.id as usize);
        }
        match op {
            Op::Attention(o) => self.attention_blocks(op, *o),
            Op::AttentionBackward(o) => self.gradient_blocks(op, *o),
            _ => Ok(()),
        }
    }

    fn blocks(
        &self,
        op: &Op,
        shape: AttentionShape,
        mask: AttentionMask,
    ) -> Result<Blocks, Box<LayoutConflict>> {
        let (seq, ranks) = (shape.seq, self.rank.degree);
        if shape.batch != 1 || !seq.is_multiple_of(ranks) {
            let wanted = format!("it computes blocks of one sequence, of a length that {ranks} divides");
            let id = op.operands().iter().next().map_or(0, |o| o.view.buffer.id as usize);
            return Err(self.conflict(op, id, &wanted, "take one sequence in a micro-batch"));
        }
        let schedule = self.rank.schedule(seq, mask.window);
        let shape = AttentionShape { seq: seq / ranks, ..shape };
        Ok(Blocks { schedule, shape, mask, seq, me: self.rank.index })
    }

    /// View of this rank's rows of an operand.
    fn rows_here(&mut self, op: &Op, view: View, dim: usize) -> Result<View, Box<LayoutConflict>> {
        let (id, placement) = (view.buffer.id as usize, Placement::Shard { dim });
        if self.placements[id].is_none() {
            self.place(id, placement);
        }
        if self.placements[id] != Some(placement) {
            return Err(self.conflict(op, id, "it computes blocks of some rows", "shard its rows"));
        }
        Ok(self.local_view(id, view, placement))
    }

    fn attention_blocks(&mut self, op: &Op, o: Attention) -> Result<(), Box<LayoutConflict>> {
        let blocks = self.blocks(op, o.shape, o.mask)?;
        let keys = vec![self.rows_here(op, o.k, 0)?, self.rows_here(op, o.v, 0)?];
        let queries = vec![self.rows_here(op, o.q, 0)?];
        let (result, lse) = (self.rows_here(op, o.out, 0)?, self.rows_here(op, o.lse, 1)?);
        // Merged where it stays, if it stays in f32.
        let out = match result.dtype() {
            DType::F32 => result,
            _ => self.block_value("merged", &result, DType::F32),
        };
        let counters = self.counters(op, o.dropout.map(|d| d.mask.counters))?;
        let (me, shape) = (blocks.me, blocks.shape);
        let mut coming = Coming::default();
        let mut results: [Option<Flight>; 2] = [None, None];
        for step in blocks.steps() {
            let block = self.block_of(&blocks, step, &keys, &queries, &mut coming);
            let made = match block {
                None => None,
                Some(Block { task, keys, queries }) => {
                    let (part, part_lse) = match step {
                        0 => (out, lse),
                        _ => (
                            self.step_value("part", step, &out, DType::F32),
                            self.step_value("part_lse", step, &lse, DType::F32),
                        ),
                    };
                    let mut dropout = o.dropout;
                    dropout.iter_mut().zip(counters).for_each(|(d, counters)| d.mask.counters = counters);
                    let (mask, q, k, v) = (self.mask_of(&blocks, op, task)?, queries[0], keys[0], keys[1]);
                    self.push(Node::launch(Attention {
                        shape,
                        q,
                        k,
                        v,
                        out: part,
                        lse: part_lse,
                        mask,
                        dropout,
                    }));
                    Some((task, part, part_lse))
                }
            };
            self.merge_arrived(shape, out, lse, &mut results);
            let merges = made.filter(|(task, ..)| step > 0 && task.queries == me);
            if let Some((_, part, part_lse)) = merges {
                self.push(Node::launch(AttentionMerge { shape, out, lse, part, part_lse }));
            }
            let messages = blocks.schedule.results(step);
            let sent = made.filter(|(task, ..)| task.queries != me);
            results = [
                self.permute(&messages, "result", step, sent.map(|s| s.1), &out),
                self.permute(&messages, "result_lse", step, sent.map(|s| s.2), &lse),
            ];
        }
        self.merge_arrived(shape, out, lse, &mut results);
        if out != result {
            self.push(Node::launch(Copy { src: out, dst: result }));
        }
        Ok(())
    }

    /// Merges the results of other ranks for this rank's queries.
    fn merge_arrived(
        &mut self,
        shape: AttentionShape,
        out: View,
        lse: View,
        results: &mut [Option<Flight>; 2],
    ) {
        let [part, part_lse] = std::mem::take(results).map(|flight| self.land(flight));
        if let (Some(part), Some(part_lse)) = (part, part_lse) {
            self.push(Node::launch(AttentionMerge { shape, out, lse, part, part_lse }));
        }
    }

    fn gradient_blocks(&mut self, op: &Op, o: AttentionBackward) -> Result<(), Box<LayoutConflict>> {
        let blocks = self.blocks(op, o.shape, o.mask)?;
        let keys = vec![self.rows_here(op, o.k, 0)?, self.rows_here(op, o.v, 0)?];
        let queries = vec![
            self.rows_here(op, o.q, 0)?,
            self.rows_here(op, o.out, 0)?,
            self.rows_here(op, o.lse, 1)?,
            self.rows_here(op, o.dout, 0)?,
        ];
        let gradients =
            [self.rows_here(op, o.dq, 0)?, self.rows_here(op, o.dk, 0)?, self.rows_here(op, o.dv, 0)?];
        let counters = self.counters(op, o.dropout.map(|d| d.mask.counters))?;
        let (me, shape, relayed) = (blocks.me, blocks.shape, blocks.schedule.relayed);
        let sums = [
            self.block_value("dq", &queries[0], DType::F32),
            self.block_value("dk", &keys[0], DType::F32),
            self.block_value("dv", &keys[1], DType::F32),
        ];
        let (dq_sum, mut key_sums) = (sums[0], [sums[1], sums[2]]);
        let mut coming = Coming::default();
        let mut dq_home: Option<Flight> = None;
        let (mut going_on, mut home): ([Option<Flight>; 2], [Option<Flight>; 2]) = Default::default();
        for step in blocks.steps() {
            let block = self.block_of(&blocks, step, &keys, &queries, &mut coming);
            let made = match block {
                None => None,
                Some(Block { task, keys: k, queries: q }) => {
                    let [dq, dk, dv] = match step {
                        0 => sums,
                        _ => [("dq", &queries[0]), ("dk", &keys[0]), ("dv", &keys[1])]
                            .map(|(name, like)| self.step_value(name, step, like, DType::F32)),
                    };
                    let mut dropout = o.dropout;
                    dropout.iter_mut().zip(counters).for_each(|(d, counters)| d.mask.counters = counters);
                    let mask = self.mask_of(&blocks, op, task)?;
                    let (k, v, q, out, lse, dout) = (k[0], k[1], q[0], q[1], q[2], q[3]);
                    let back =
                        AttentionBackward { shape, q, k, v, out, lse, dout, dq, dk, dv, mask, dropout };
                    self.push(Node::launch(back));
                    Some((task, dq, [dk, dv]))
                }
            };
            // Messages that the preceding step has sent: sums that this rank continues, and gradients of its own keys and queries.
            let arrived = std::mem::take(&mut going_on).map(|flight| self.land(flight));
            self.gather_home(relayed, &mut key_sums, &mut home);
            self.add_arrived(dq_sum, &mut dq_home);
            let mut onward = [None, None];
            for side in 0..2 {
                let term = made.map(|(.., terms)| terms[side]);
                onward[side] = match (arrived[side], term) {
                    (Some(sum), Some(term)) => {
                        self.push(Node::launch(Add { a: sum, b: term, out: sum }));
                        Some(sum)
                    }
                    (sum, term) => sum.or(term),
                };
            }
            if let Some((task, dq, terms)) = made.filter(|_| step > 0) {
                if task.queries == me {
                    self.push(Node::launch(Add { a: dq_sum, b: dq, out: dq_sum }));
                }
                if task.keys == me {
                    for (sum, term) in key_sums.into_iter().zip(terms) {
                        self.push(Node::launch(Add { a: sum, b: term, out: sum }));
                    }
                }
            }
            let (on, ends) = (blocks.schedule.gradients_on(step), blocks.schedule.gradients_home(step));
            for side in 0..2 {
                let (name, like) = (["dk", "dv"][side], &keys[side]);
                going_on[side] = self.permute(&on, &format!("{name}.sum"), step, onward[side], like);
            }
            for side in 0..2 {
                let (name, like) = (["dk", "dv"][side], &keys[side]);
                home[side] = self.permute(&ends, &format!("{name}.home"), step, onward[side], like);
            }
            let sent = made.filter(|(task, ..)| task.queries != me).map(|(_, dq, _)| dq);
            dq_home = self.permute(&blocks.schedule.results(step), "dq.home", step, sent, &queries[0]);
        }
        self.gather_home(relayed, &mut key_sums, &mut home);
        self.add_arrived(dq_sum, &mut dq_home);
        for (sum, gradient) in [dq_sum, key_sums[0], key_sums[1]].into_iter().zip(gradients) {
            self.push(Node::launch(Copy { src: sum, dst: gradient }));
        }
        Ok(())
    }

    /// Collects the gradients of this rank's keys that have arrived: the sums, where they were relayed, or terms.
    fn gather_home(&mut self, relayed: bool, sums: &mut [View; 2], home: &mut [Option<Flight>; 2]) {
        for (sum, flight) in sums.iter_mut().zip(std::mem::take(home)) {
            match self.land(flight) {
                Some(all) if relayed => *sum = all,
                Some(term) => self.push(Node::launch(Add { a: *sum, b: term, out: *sum })),
                None => {}
            }
        }
    }

    fn add_arrived(&mut self, sum: View, flight: &mut Option<Flight>) {
        if let Some(term) = self.land(flight.take()) {
            self.push(Node::launch(Add { a: sum, b: term, out: sum }));
        }
    }

    /// The block of a step, with its operands: waits for those that come from other ranks, and starts the messages of the next step.
    fn block_of(
        &mut self,
        blocks: &Blocks,
        step: usize,
        keys: &Operands,
        queries: &Operands,
        coming: &mut Coming,
    ) -> Option<Block> {
        let mut arrived = |flights: Vec<Option<Flight>>| -> Operands {
            flights.into_iter().filter_map(|flight| self.land(flight)).collect()
        };
        let others_keys = arrived(std::mem::take(&mut coming.keys));
        let others_queries = arrived(std::mem::take(&mut coming.queries));
        let next = step + 1;
        // A relay sends on the keys that it received.
        let passed_on = if blocks.schedule.relayed && step > 0 { &others_keys } else { keys };
        let messages = blocks.schedule.keys(next);
        let send = |pass: &mut Self,
                    messages: &Messages,
                    i: usize,
                    name: &str,
                    views: &Operands,
                    like: &Operands| {
            pass.permute(messages, name, next, views.get(i).copied(), &like[i])
        };
        coming.keys = (0..keys.len()).map(|i| send(self, &messages, i, KEYS[i], passed_on, keys)).collect();
        let messages = blocks.schedule.queries(next);
        coming.queries =
            (0..queries.len()).map(|i| send(self, &messages, i, QUERIES[i], queries, queries)).collect();
        let task = blocks.schedule.task(step, blocks.me)?;
        let own = |own: bool, mine: &Operands, others: Operands| if own { mine.clone() } else { others };
        Some(Block {
            task,
            keys: own(task.keys == blocks.me, keys, others_keys),
            queries: own(task.queries == blocks.me, queries, others_queries),
        })
    }

    /// The mask of a block.
    fn mask_of(
        &self,
        blocks: &Blocks,
        op: &Op,
        task: BlockTask,
    ) -> Result<AttentionMask, Box<LayoutConflict>> {
        let documents = match blocks.mask.documents {
            None => None,
            Some(view) => {
                let id = view.buffer.id as usize;
                if self.placements[id] != Some(Placement::Replicate) {
                    return Err(self.conflict(
                        op,
                        id,
                        "it reads those of all ranks' queries",
                        "replicate it",
                    ));
                }
                // Every rank has those of all queries, rank by rank.
                let part = even(view.cols, self.rank.degree, task.queries);
                let all = self.out.values[id].view(id);
                Some(View { buffer: all.buffer, ..view }.columns(part.start, part.len))
            }
        };
        let positions = |rank| self.rank.positions(blocks.seq, rank);
        let keys = Some(SomeKeys { positions: positions(task.keys), seq: blocks.seq });
        Ok(AttentionMask { queries: positions(task.queries), keys, documents, ..blocks.mask })
    }

    /// The counters of random numbers, which are whole on every rank.
    fn counters(&mut self, op: &Op, view: Option<View>) -> Result<Option<View>, Box<LayoutConflict>> {
        view.map(|view| self.read(op, view.buffer.id as usize, view, (None, None))).transpose()
    }

    /// Starts this rank's part of a permutation, if it has one: it sends `src`, and receives a value like `like`.
    fn permute(
        &mut self,
        messages: &Messages,
        name: &str,
        step: usize,
        src: Option<View>,
        like: &View,
    ) -> Option<Flight> {
        let me = self.rank.index;
        let from = messages.iter().flatten().find(|message| message.to == me);
        // Results and sums of gradients are f32.
        let dtype = |contents: &RowsContents| match contents {
            RowsContents::Whole => like.dtype(),
            _ => DType::F32,
        };
        let dst = from.map(|message| self.step_value(name, step, like, dtype(&message.contents)));
        let src = src.filter(|_| messages[me].is_some());
        let present = src.or(dst)?;
        let (src, dst) = (src.unwrap_or(present.rows(0, 0)), dst.unwrap_or(present.rows(0, 0)));
        let mut collective = self.collective(CollectiveKind::Permute, (0, 0), src, dst);
        collective.name = format!("{}attention.{name}, step {step}", self.global.name);
        collective.messages.clone_from(messages);
        let id = collective.id;
        self.push(Node::Start(collective));
        Some(Flight { id, src, dst })
    }

    /// Waits for a message. Returns the view that this rank receives, if any.
    fn land(&mut self, flight: Option<Flight>) -> Option<View> {
        let Flight { id, src, dst } = flight?;
        self.push(Node::Wait { id, src, dst, versions: Vec::new() });
        (dst.rows > 0).then_some(dst)
    }

    /// A value for one step, with as many rows and columns as `like`.
    fn step_value(&mut self, name: &str, step: usize, like: &View, dtype: DType) -> View {
        self.block_value(&format!("{name}.step{step}"), like, dtype)
    }

    /// A value of one rank's rows, with as many rows and columns as `like`, and sharded as it is.
    fn block_value(&mut self, name: &str, like: &View, dtype: DType) -> View {
        let (rows, cols, ranks) = (like.rows, like.cols, self.rank.degree);
        let layout = self.out.values[like.buffer.id as usize].layout;
        let whole = match layout.at(self.rank.axis) {
            // Log-sum-exps have a column for each row of the others.
            Placement::Shard { dim: 1 } => [rows, cols * ranks],
            _ => [rows * ranks, cols],
        };
        self.temporary(Value {
            name: format!("attention.{name}"),
            class: Class::Local,
            dtype,
            form: Form { dims: whole.map(Dim::plain).to_vec() },
            layout,
            rows,
            cols,
            residual: false,
            parameter: None,
        })
    }
}
