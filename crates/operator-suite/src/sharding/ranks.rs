//! Simulated ranks: slices of operands, one launch for each rank, and the reduction that the rule declares.

use super::cases::{Case, Data};
use crate::{Kernels, Suite};
use bessemer_tensor::op::rule::{Linear, OperandRule, Rule};
use bessemer_tensor::op::{Access, FactorKind, Op, TermReduction, VocabularyShard};
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, Buffer, BufferSpec, TensorError};
use bessemer_units::DType;
use std::collections::BTreeMap;

/// Values of operands by name.
type Values = BTreeMap<&'static str, Data>;

/// The largest deviation from what one rank computes.
#[derive(Debug)]
pub(crate) struct Deviation {
    pub(crate) operand: &'static str,
    pub(crate) deviation: f32,
    /// Largest absolute value among the results and the terms that were reduced to them.
    pub(crate) magnitude: f32,
}

/// Mistakes of a partition besides the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    None,
    /// Every rank takes its part for the first one.
    NoOffset,
    /// Operands that are to be read on the first rank only are read on all.
    OnceOnEveryRank,
}

/// The part of a factor on a rank.
#[derive(Clone, Copy)]
struct Part {
    factor: usize,
    start: usize,
    size: usize,
}

/// The operator on buffers of a backend that have these values. Operands that share a buffer in `op` share one there.
pub(crate) fn bind(backend: &mut dyn Backend, op: &Op, values: &Values) -> Result<Op, TensorError> {
    let mut buffers: BTreeMap<u32, Buffer> = BTreeMap::new();
    for o in op.operands().iter() {
        if buffers.contains_key(&o.view.buffer.id) {
            continue;
        }
        let data = &values[o.name];
        let dtype = o.view.dtype();
        let spec = BufferSpec { class: "test", name: o.name, dtype, len: data.values.len() };
        let buffer = backend.alloc(spec)?;
        match dtype {
            DType::U32 => {
                let indices: Vec<u32> = data.values.iter().map(|x| *x as u32).collect();
                backend.write_u32(buffer.vector(), &indices)?;
            }
            _ => backend.write_f32(buffer.vector(), &data.values)?,
        }
        buffers.insert(o.view.buffer.id, buffer);
    }
    let mut local = op.clone();
    let mut names = op.operands().iter().map(|o| o.name).collect::<Vec<_>>().into_iter();
    local.for_each_view(&mut |view| {
        let data = &values[names.next().unwrap()];
        *view = buffers[&view.buffer.id].matrix(data.rows, data.cols);
    });
    Ok(local)
}

/// Runs `op` on operands of these values and returns all of them.
fn execute(suite: &Suite<'_>, kernels: Kernels, op: &Op, values: &Values) -> Result<Values, TensorError> {
    let mut s = suite.setup(kernels, 1);
    let local = bind(&mut *s.backend, op, values)?;
    s.launch(&local)?;
    let mut results = values.clone();
    for o in local.operands().iter().filter(|o| o.access != Access::Read) {
        results.get_mut(o.name).unwrap().values = s.read(o.view);
    }
    Ok(results)
}

/// Indices of a dim, packed from `factors`, inside the part.
fn selected(rule: &Rule, factors: &[usize], part: Part) -> Vec<usize> {
    let size = |f: &usize| rule.factors[*f].size;
    let all = 0..factors.iter().map(size).product();
    let Some(at) = factors.iter().position(|f| *f == part.factor) else { return all.collect() };
    let minor: usize = factors[at + 1..].iter().map(size).product();
    let inside = |i: &usize| (part.start..part.start + part.size).contains(&(i / minor % size(&factors[at])));
    all.filter(inside).collect()
}

fn slice(rule: &Rule, o: &OperandRule, data: &Data, part: Part) -> Data {
    let (rows, cols) = (selected(rule, &o.rows, part), selected(rule, &o.cols, part));
    let values = rows.iter().flat_map(|r| cols.iter().map(move |c| data.values[r * data.cols + c])).collect();
    Data { rows: rows.len(), cols: cols.len(), values }
}

fn unslice(rule: &Rule, o: &OperandRule, part: Part, local: &Data, whole: &mut Data) {
    let (rows, cols) = (selected(rule, &o.rows, part), selected(rule, &o.cols, part));
    for (i, r) in rows.iter().enumerate() {
        for (j, c) in cols.iter().enumerate() {
            whole.values[r * whole.cols + c] = local.values[i * local.cols + j];
        }
    }
}

/// Term `rank` of `ranks` of a sum that gives `data`: random ones, and what is then missing.
fn term(data: &Data, rank: usize, ranks: usize) -> Data {
    let random = |k: usize| {
        let mut values = vec![0.0; data.values.len()];
        RngKey::new(77, k as u64, "term").fill_normal(0, 0.7, &mut values);
        values
    };
    let mut values = if rank + 1 < ranks { random(rank) } else { data.values.clone() };
    if rank + 1 == ranks {
        for k in 0..rank {
            values.iter_mut().zip(random(k)).for_each(|(x, y)| *x -= y);
        }
    }
    Data { values, ..*data }
}

/// The operator without the operands that are read once.
fn without_once(op: &Op) -> Op {
    match op.clone() {
        Op::Linear(o) => bessemer_tensor::op::Linear { bias: None, residual: None, ..o }.into(),
        Op::Embedding(o) => bessemer_tensor::op::Embedding { positions: None, ..o }.into(),
        other => panic!("{} reads nothing once", other.name()),
    }
}

/// The fields of the operator, besides views, that change on a rank with this part of `name`.
fn local_fields(op: &Op, name: &str, Part { start, size, .. }: Part) -> Op {
    let shard = |p: &mut VocabularyShard| p.first += start;
    let mut op = op.clone();
    match &mut op {
        Op::Embedding(o) if name == "v" => {
            shard(o.tensor_shard.get_or_insert(VocabularyShard::whole(&o.table)));
        }
        Op::EmbeddingBackward(o) if name == "v" => {
            shard(o.tensor_shard.get_or_insert(VocabularyShard::whole(&o.dtable)));
        }
        Op::BalanceLoss(o) if name == "n" => o.span.first += start,
        Op::CountChoices(o) if name == "n" => o.span.first += start,
        Op::RouteBackward(o) if name == "n" => o.span.first += start,
        Op::KeepChoices(o) if name == "n" => o.here.skip += start,
        Op::KeepInNode(o) if name == "n" => o.here.skip += start,
        Op::LogitSums(o) if name == "v" => shard(&mut o.tensor_shard),
        Op::LinearCrossEntropyShard(o) if name == "v" => shard(&mut o.tensor_shard),
        Op::Dropout(o) => {
            o.mask.first += (start * if name == "r" { o.global_cols } else { 1 }) as u64;
        }
        Op::Rope(o) if name == "h" => o.heads = size,
        Op::Attention(o) => {
            o.mask.queries.first += if name == "t" { start } else { 0 };
            attention(&mut o.shape, name, start, size, &mut o.mask.alibi, &mut o.dropout);
        }
        Op::AttentionBackward(o) => {
            o.mask.queries.first += if name == "t" { start } else { 0 };
            attention(&mut o.shape, name, start, size, &mut o.mask.alibi, &mut o.dropout);
        }
        Op::AttentionMerge(o) => attention(&mut o.shape, name, start, size, &mut None, &mut None),
        Op::AttentionCached(o) => {
            if name == "t" {
                o.past += start;
            }
            attention(&mut o.shape, name, start, size, &mut o.alibi, &mut None);
        }
        _ => {}
    }
    op
}

fn attention(
    shape: &mut bessemer_tensor::op::AttentionShape,
    name: &str,
    start: usize,
    size: usize,
    alibi: &mut Option<bessemer_tensor::op::Alibi>,
    dropout: &mut Option<bessemer_tensor::op::AttentionDropout>,
) {
    let group = shape.heads / shape.kv_heads;
    let mut first = 0;
    match name {
        "b" => {
            shape.batch = size;
            if let Some(d) = dropout {
                d.mask.first += (start * d.heads * shape.seq * shape.seq) as u64;
            }
        }
        "g" => {
            (shape.kv_heads, shape.heads) = (size, size * group);
            first = start * group;
        }
        "r" => {
            shape.heads = shape.kv_heads * size;
            first = start;
        }
        "t" => shape.seq = size,
        "e" => shape.head_dim = size,
        _ => {}
    }
    if let Some(a) = alibi {
        a.first += first;
    }
    if let Some(d) = dropout {
        d.first += first;
    }
}

/// Parts of a factor over `ranks`; the first ones have one more.
fn parts(factor: usize, size: usize, ranks: usize) -> Vec<Part> {
    let start = |k: usize| k * (size / ranks) + k.min(size % ranks);
    (0..ranks).map(|k| Part { factor, start: start(k), size: start(k + 1) - start(k) }).collect()
}

/// Shards factor number `f` over `ranks` as the rule says and compares with one rank.
pub(crate) fn by_factor(
    suite: &Suite<'_>,
    kernels: Kernels,
    case: &Case,
    rule: &Rule,
    f: usize,
    ranks: usize,
    mistake: Mistake,
) -> Result<Deviation, TensorError> {
    let factor = rule.factors[f];
    let contracted = factor.kind == FactorKind::Sum;
    let has = |o: &OperandRule| o.rows.contains(&f) || o.cols.contains(&f);
    let parts = parts(f, factor.size, ranks);
    let mut locals = Vec::new();
    for (rank, part) in parts.iter().enumerate() {
        let start = if mistake == Mistake::NoOffset { 0 } else { part.start };
        let mut op = local_fields(&case.op, factor.name, Part { start, ..*part });
        let once = rule.operands.iter().any(|o| o.once) && mistake != Mistake::OnceOnEveryRank;
        if contracted && rank > 0 && once {
            op = without_once(&op);
        }
        let mut values = Values::new();
        for o in &rule.operands {
            let whole = &case.values[o.name];
            let summed = contracted && !has(o) && o.linear == Linear::Jointly;
            let mine = if summed { term(whole, rank, ranks) } else { whole.clone() };
            values.insert(o.name, slice(rule, o, &mine, *part));
        }
        locals.push(execute(suite, kernels, &op, &values)?);
    }
    let mut found = Values::new();
    for o in rule.operands.iter().filter(|o| o.access != Access::Read) {
        if has(o) {
            let mut whole = case.values[o.name].clone();
            whole.values.fill(f32::NAN);
            for (part, local) in parts.iter().zip(&locals) {
                unslice(rule, o, *part, &local[o.name], &mut whole);
            }
            found.insert(o.name, whole);
        } else if contracted {
            found.insert(o.name, reduced(suite, o, &locals));
        } else {
            found.insert(o.name, equal(suite, o, &locals));
        }
    }
    let truth = execute(suite, kernels, &case.op, &case.values)?;
    Ok(compare(rule, &found, &truth, &locals))
}

/// Gives each rank terms of the operands `partial` and compares the reduced results with those of one rank.
pub(crate) fn by_terms(
    suite: &Suite<'_>,
    kernels: Kernels,
    case: &Case,
    rule: &Rule,
    partial: &[&str],
    ranks: usize,
) -> Result<Deviation, TensorError> {
    let mut locals = Vec::new();
    for rank in 0..ranks {
        let op = if rank > 0 && rule.operands.iter().any(|o| o.once) {
            without_once(&case.op)
        } else {
            case.op.clone()
        };
        let mut values = case.values.clone();
        for o in &rule.operands {
            let accumulated = o.linear == Linear::Jointly && o.access == Access::Update;
            if partial.contains(&o.name) || accumulated {
                values.insert(o.name, term(&case.values[o.name], rank, ranks));
            }
        }
        locals.push(execute(suite, kernels, &op, &values)?);
    }
    let outputs = rule.operands.iter().filter(|o| o.access != Access::Read);
    let found = outputs.map(|o| (o.name, reduced(suite, o, &locals))).collect();
    let truth = execute(suite, kernels, &case.op, &case.values)?;
    Ok(compare(rule, &found, &truth, &locals))
}

fn reduced(suite: &Suite<'_>, o: &OperandRule, locals: &[Values]) -> Data {
    let first = &locals[0][o.name];
    let terms = |i: usize| locals.iter().map(move |l| l[o.name].values[i]);
    let value = |i: usize| match o.reduce {
        TermReduction::Sum => terms(i).sum(),
        TermReduction::LogSumExp => terms(i).map(|x| f64::from(x).exp()).sum::<f64>().ln() as f32,
        TermReduction::Equal => equal(suite, o, locals).values[i],
    };
    Data { values: (0..first.values.len()).map(value).collect(), ..*first }
}

/// The first rank's values; NaN where another rank has others by more than rounding.
fn equal(suite: &Suite<'_>, o: &OperandRule, locals: &[Values]) -> Data {
    let mut first = locals[0][o.name].clone();
    for other in &locals[1..] {
        for (x, y) in first.values.iter_mut().zip(&other[o.name].values) {
            if (*x - y).abs() > suite.bound(super::ROUNDING) * x.abs().max(1.0) {
                *x = f32::NAN;
            }
        }
    }
    first
}

fn compare(rule: &Rule, found: &Values, truth: &Values, locals: &[Values]) -> Deviation {
    let mut most = Deviation { operand: rule.operands[0].name, deviation: 0.0, magnitude: 0.0 };
    for (name, data) in found {
        let results = truth[name].values.iter().chain(locals.iter().flat_map(|l| &l[name].values));
        most.magnitude = results.fold(most.magnitude, |m, x| m.max(x.abs()));
        for (x, y) in data.values.iter().zip(&truth[name].values) {
            let off = (x - y).abs();
            if off > most.deviation || off.is_nan() {
                (most.operand, most.deviation) = (name, off);
            }
            if off.is_nan() {
                return most;
            }
        }
    }
    most
}
