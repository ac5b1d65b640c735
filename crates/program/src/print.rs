//! Programs as text, for people: one line a node, with local shapes, layouts, collectives and bytes.
//!
//! ```text
//! program layers.0.forward  rank tensor=0 of 2, rows of the residual stream sharded
//!  in  x f32 512x2048 S0 | positions u32 1x1024 R
//!   1  attention_norm.out, attention_norm.rstd = norm(x, attention_norm.weight)
//!   2  attention_norm.out.all_rows = all_gather(attention_norm.out) over tensor  4,194,304 B
//! ```
//!
//! R is replicated, S0 and S1 sharded by rows or columns, P a term of a sum. Saved values are marked with `saved`.

use crate::memory::{Home, UnitMemory};
use crate::node::{ByCounts, Collective, CollectiveKind, ExchangePiece, Node};
use crate::rank::{AxisRole, Rank};
use crate::step::{Action, Hand, Message, Pass, StepChunk, StepNode, Stream};
use crate::unit::{Phase, UnitProgram};
use crate::value::{Class, Value};
use crate::zero::Transfer;
use bessemer_mesh::{Axis, Placement, PositionOrder};
use bessemer_tensor::View;
use bessemer_tensor::op::{Access, Op};
use bessemer_units::ReduceDType;
use std::collections::BTreeMap;
use std::fmt::Write;

/// One list as text, with the bytes that its collectives send.
pub fn print(unit: &UnitProgram, memory: &UnitMemory, phase: Phase, ranks: &[Rank]) -> String {
    let printing = Printing { unit, memory, phase, ranks };
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = printing.write(&mut text);
    text
}

/// A rank's step as text, one line for each entry, with the bytes that the rank sends outside of its units.
pub fn print_step(chunks: &[StepChunk], nodes: &[StepNode]) -> String {
    let mut out = String::from("step");
    for (number, rank) in chunks.first().into_iter().flat_map(|chunk| chunk.data.groups.iter().enumerate()) {
        let group = if number > 0 { format!("group {number} ") } else { String::new() };
        for (axis, (degree, index)) in [(Axis::Replicate, rank.replicate), (Axis::Shard, rank.shard)] {
            if degree > 1 {
                let _ = write!(out, "  {group}{axis}={index} of {degree}");
            }
        }
    }
    out.push('\n');
    let mut sent: BTreeMap<&str, u64> = BTreeMap::new();
    for (at, node) in nodes.iter().enumerate() {
        let chunk = &chunks[node.chunk];
        let flat = |transfer: &Transfer| {
            let name = &chunk.data.flats[transfer.flat].name;
            let dtype = match transfer.dtype {
                ReduceDType::Stored => String::new(),
                dtype => format!(" in {dtype}"),
            };
            format!("{} {name}{dtype} over {}", transfer.kind.name(), transfer.axis)
        };
        let message = |way: &str, m: &Message| {
            let what = if m.stream == Stream::Values { "the stream" } else { "its gradient" };
            format!("{way} {}: {what} of micro-batch {}  {} B", m.peer, m.micro, grouped(m.bytes))
        };
        let line = match &node.action {
            Action::Begin(pass) => format!("begin {}", printed_pass(pass)),
            Action::Unit { unit, pass } => {
                let older = if pass.kept.is_some() { ", older weights" } else { "" };
                format!("{} {}, micro-batch {}{older}", chunk.names[*unit], pass.phase.name(), pass.micro)
            }
            Action::End(pass) => {
                let reads =
                    chunk.head && matches!(pass.phase, Phase::Score | Phase::Backward | Phase::BackwardInput);
                let losses = if reads { ", read the losses" } else { "" };
                format!("end {}, micro-batch {}{losses}", pass.phase.name(), pass.micro)
            }
            Action::Complete(flats) => {
                let names: Vec<&str> = flats.iter().map(|f| chunk.data.flats[*f].name.as_str()).collect();
                format!("all_reduce partial gradients of {} over tensor", names.join(", "))
            }
            Action::Start(transfer) => {
                let bytes =
                    transfer.bytes_sent(&chunk.data.flats[transfer.flat], chunk.data.rank(transfer.flat));
                *sent.entry(transfer.axis.name()).or_default() += bytes;
                format!("start {}  {} B", flat(transfer), grouped(bytes))
            }
            Action::Wait(transfer) => format!("wait {}", flat(transfer)),
            Action::Add(flat) => {
                format!("add gradients of {} to those of earlier micro-batches", chunk.data.flats[*flat].name)
            }
            Action::Send(m) => {
                *sent.entry(Axis::Pipeline.name()).or_default() += m.bytes;
                message("send to", m)
            }
            Action::Receive(m) => message("receive from", m),
            Action::Hand(Hand { stream, micro, to, .. }) => {
                let what = if *stream == Stream::Values { "the stream" } else { "its gradient" };
                format!("copy to chunk {to}: {what} of micro-batch {micro}")
            }
            Action::Tie => "all_reduce the tied table over its two stages".to_owned(),
            Action::Losses => "sum the losses over all ranks".to_owned(),
            Action::Squares => "sum the squares of the gradients".to_owned(),
            Action::SumSquares(group) => format!("all_reduce the sum of squares over {group}"),
            Action::Prepare => "prepare the update".to_owned(),
            Action::SumSize => "all_reduce the size of the update over pipeline".to_owned(),
            Action::Update { micro_batches, keep, .. } => {
                let keep = keep.map_or(String::new(), |keep| format!(", keep the weights in memory {keep}"));
                format!("update of {micro_batches} micro-batches{keep}")
            }
            Action::Filler(filler) => format!("filler {}", filler.name),
        };
        let of = if chunks.len() > 1 { format!("chunk {} ", node.chunk) } else { String::new() };
        let _ = writeln!(out, "{:>4}  {of}{line}", at + 1);
    }
    for (axis, bytes) in sent {
        let _ = writeln!(out, " sent over {axis} {} B", grouped(bytes));
    }
    out
}

/// "forward, micro-batch 3, slot 1, weights 0": a pass with its memory.
fn printed_pass(pass: &Pass) -> String {
    let mut line = format!("{}, micro-batch {}", pass.phase.name(), pass.micro);
    if let Some(slot) = pass.slot {
        let _ = write!(line, ", slot {slot}");
    }
    if let Some(kept) = pass.kept {
        let _ = write!(line, ", weights of version {} in memory {kept}", pass.version);
    }
    let adds = match (pass.adds.input, pass.adds.weight) {
        (true, true) => ", adds to gradients",
        (true, false) => ", adds to gradients of norms and tables",
        (false, true) => ", adds to gradients of matrices",
        (false, false) => "",
    };
    line.push_str(adds);
    line
}

/// Experts of a product of groups of rows.
struct Experts {
    matrices: usize,
    groups: usize,
    rows: usize,
}

impl Experts {
    fn of(op: &Op) -> Option<Experts> {
        let (stack, outputs, rows, offsets) = match op {
            Op::GroupedLinear(o) => (o.weight, o.out.cols, o.x.rows, o.offsets),
            Op::GroupedLinearBackwardInput(o) => (o.weight, o.dy.cols, o.dy.rows, o.offsets),
            Op::GroupedLinearBackwardWeight(o) => (o.dweight, o.dy.cols, o.x.rows, o.offsets),
            _ => return None,
        };
        Some(Experts { matrices: stack.rows / outputs.max(1), groups: offsets.cols.max(1) - 1, rows })
    }
}

struct Printing<'a> {
    unit: &'a UnitProgram,
    memory: &'a UnitMemory,
    phase: Phase,
    ranks: &'a [Rank],
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

impl Printing<'_> {
    fn placement(&self, value: &Value) -> String {
        let over = |rank: &Rank| match value.placement(rank.axis) {
            Placement::Replicate => "R".into(),
            Placement::Shard { dim } => format!("S{dim}"),
            Placement::Partial { .. } => "P".into(),
        };
        self.ranks.iter().map(over).collect::<Vec<String>>().join(",")
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let Printing { unit, phase, ranks, .. } = self;
        write!(out, "program {}{}", unit.name, phase.name())?;
        for (at, rank) in ranks.iter().filter(|rank| rank.degree > 1).enumerate() {
            let rank_or_and = if at == 0 { "  rank" } else { "," };
            write!(out, "{rank_or_and} {}={} of {}", rank.axis, rank.index, rank.degree)?;
            match rank.role {
                AxisRole::Line => {}
                AxisRole::Sequences => out.push_str(" by sequences"),
                AxisRole::Columns => out.push_str(" by columns"),
                AxisRole::Turned => out.push_str(" by columns and, between products, sequences"),
            }
            if rank.sequence && rank.role == AxisRole::Line {
                out.push_str(", rows of the residual stream sharded");
                out.push_str(match rank.order {
                    PositionOrder::Consecutive => "",
                    PositionOrder::ZigZag => ", zig-zag",
                    PositionOrder::Striped => ", striped",
                });
            }
        }
        out.push('\n');
        let list = unit.list(*phase);
        let mut seen: Vec<usize> = Vec::new();
        for touch in list.iter().flat_map(Node::touches) {
            if !seen.contains(&touch.value()) {
                seen.push(touch.value());
            }
        }
        let given = |id: &&usize| {
            let first = list.iter().flat_map(Node::touches).find(|t| t.value() == **id);
            first.is_some_and(|t| t.access != Access::Write)
        };
        let parameter = |id: &&usize| matches!(unit.values[**id].class, Class::Parameter(_));
        let describe = |id: &usize| {
            let v = &unit.values[*id];
            format!("{} {} {}x{} {}", v.name, v.dtype, v.rows, v.cols, self.placement(v))
        };
        let (weights, inputs): (Vec<&usize>, Vec<&usize>) = seen.iter().filter(given).partition(parameter);
        for (label, ids) in [("in", inputs), ("w", weights)] {
            if !ids.is_empty() {
                writeln!(
                    out,
                    " {label:<3} {}",
                    ids.into_iter().map(describe).collect::<Vec<_>>().join(" | ")
                )?;
            }
        }
        let mut sent = 0;
        for (at, node) in list.iter().enumerate() {
            let line = self.node(node);
            let bytes = match node {
                Node::Collective(c) | Node::Start(c) => {
                    let rank = ranks.iter().find(|rank| rank.axis == c.axis);
                    rank.map_or(0, |rank| c.bytes_sent(rank.degree, rank.index))
                }
                _ => 0,
            };
            sent += bytes;
            let counted = match node {
                Node::Collective(Collective { by_counts: Some(ByCounts::Rows { .. }), .. })
                | Node::Start(Collective { by_counts: Some(ByCounts::Rows { .. }), .. }) => {
                    " if loads are equal"
                }
                Node::Collective(Collective { by_counts: Some(ByCounts::Shadows { .. }), .. }) => {
                    " if all slots are taken"
                }
                _ => "",
            };
            let note = if bytes > 0 { format!("  {} B{counted}", grouped(bytes)) } else { String::new() };
            writeln!(out, "{:>3}  {line}{note}", at + 1)?;
        }
        if sent > 0 {
            writeln!(out, " sent {} B", grouped(sent))?;
        }
        for (dtype, len) in &self.memory.scratch {
            writeln!(out, " scratch {} B of {dtype}", grouped((len * dtype.size()) as u64))?;
        }
        Ok(())
    }

    /// A view by name: "attention.qkv.out[.., 0..4096]" of some of its columns.
    fn view(&self, view: &View) -> String {
        let value = &self.unit.values[view.buffer.id as usize];
        let (row, col) = (view.offset / value.cols.max(1), view.offset % value.cols.max(1));
        let part = |from: usize, len: usize, all: usize| match (from, len == all) {
            (0, true) => "..".to_owned(),
            _ => format!("{from}..{}", from + len),
        };
        let (rows, cols) = (part(row, view.rows, value.rows), part(col, view.cols, value.cols));
        if (rows.as_str(), cols.as_str()) == ("..", "..") {
            return value.name.clone();
        }
        format!("{}[{rows}, {cols}]", value.name)
    }

    fn collective(&self, c: &Collective) -> String {
        let (to, from) = (self.view(&c.dst), self.view(&c.src));
        let rows = if c.rows == (0..c.total_rows()) || c.src == c.dst && c.rows.len() == c.src.rows {
            String::new()
        } else {
            format!(", rows {}..{}", c.rows.start, c.rows.end)
        };
        if c.kind == CollectiveKind::Permute {
            let receives = if c.dst.rows > 0 { format!("{to} = ") } else { String::new() };
            let sent = if c.src.rows > 0 { from } else { String::new() };
            let peer =
                |way: &str, peer: Option<usize>| peer.map_or(String::new(), |peer| format!(" {way} {peer}"));
            let index = self.ranks.iter().find(|rank| rank.axis == c.axis).map_or(0, |rank| rank.index);
            let (to, from) = (peer("to", c.to(index)), peer("from", c.from(index)));
            return format!("{receives}permute({sent}){to}{from} over {}", c.axis);
        }
        let mut counts = c.by_counts.map_or(String::new(), |by| format!(" by {}", self.view(&by.view())));
        if let Some(ByCounts::Rows { piece: ExchangePiece { number, of: of @ 2.. }, .. }) = c.by_counts {
            let _ = write!(counts, ", piece {number} of {of}");
        }
        format!("{to} = {}({from}{rows}) over {}{counts}", c.kind.name(), c.axis)
    }

    /// Whether the operator of a backward pass repeats one of the forward pass.
    fn repeats(&self, node: &Node) -> bool {
        let made =
            |id: usize| self.unit.values[id].class == Class::Local && self.unit.writes(Phase::Forward, id);
        let backward = !matches!(self.phase, Phase::Forward | Phase::Score);
        backward && node.touches().iter().any(|t| t.access != Access::Read && made(t.value()))
    }

    fn node(&self, node: &Node) -> String {
        match node {
            Node::Collective(c) => self.collective(c),
            Node::Start(c) => format!("start {}: {}", c.id, self.collective(c)),
            Node::Wait { id, .. } => format!("wait {id}"),
            Node::Offload(m) => format!("offload {}  {} B", self.view(&m.view), grouped(m.bytes() as u64)),
            Node::Reload(m) => format!("{} = reload  {} B", self.view(&m.view), grouped(m.bytes() as u64)),
            Node::Launch(launch) => {
                let touches = node.touches();
                let names = |read: bool| -> Vec<String> {
                    let mine = touches.iter().filter(|t| (t.access == Access::Read) == read);
                    mine.map(|t| self.view(&t.view)).collect()
                };
                let (mut inputs, outputs) = (names(true), names(false));
                let updates = touches.iter().filter(|t| t.access == Access::Update);
                inputs.extend(updates.map(|t| format!("add {}", self.view(&t.view))));
                let mut line =
                    format!("{} = {}({})", outputs.join(", "), launch.op.name(), inputs.join(", "));
                if let Some(Experts { matrices, groups, rows }) = Experts::of(&launch.op) {
                    let rows = grouped(rows as u64);
                    let _ =
                        write!(line, "  {matrices} experts, {groups} groups of together at most {rows} rows");
                }
                if launch.first_only {
                    line.push_str(" in the first micro-batch");
                }
                if self.repeats(node) {
                    line.push_str("  recomputed");
                }
                for touch in touches.iter().filter(|t| t.access != Access::Read) {
                    let home = match self.memory.homes[touch.value()] {
                        home if home.is_scratch(self.phase) => continue,
                        Home::Saved => "saved",
                        Home::Kept => "kept",
                        Home::Pending => "pending",
                        _ => continue,
                    };
                    let name = &self.unit.values[touch.value()].name;
                    if !line.ends_with(&format!("{home} {name}")) {
                        let _ = write!(line, "  {home} {name}");
                    }
                }
                line
            }
        }
    }
}
