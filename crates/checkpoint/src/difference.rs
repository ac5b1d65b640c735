//! What differs between two checkpoints: tensors by value and by bits, and everything else by key.
//!
//! For a tensor with elements a and b: the largest |a − b|, and ‖a − b‖₂ / ‖a‖₂ summed in f64. Bits are those of the stored type.
//! Memory: a block of a million elements of each side.

use crate::element::encode;
use crate::error::{CheckpointError, Result};
use crate::load::Loaded;
use crate::manifest::{Manifest, TensorRecord};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;

/// Elements compared at a time.
const BLOCK: usize = 1 << 20;

/// Differences between checkpoints A and B.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CheckpointDifference {
    /// Tensors whose bits are the same.
    pub equal: usize,
    /// Tensors with other values, in A's order.
    pub tensors: Vec<TensorDifference>,
    /// Tensors of another shape or type.
    pub described: Vec<DescribedDifference>,
    /// Tensors that only A has.
    pub only_a: Vec<String>,
    /// Tensors that only B has.
    pub only_b: Vec<String>,
    /// Everything else: step, tokens, state, recipe, tokenizer, writer. The chain to the checkpoint before is left out.
    pub metadata: Vec<MetadataDifference>,
}

/// A tensor that has other values in B.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorDifference {
    /// Name.
    pub name: String,
    /// Elements.
    pub elements: usize,
    /// Elements with another bit pattern.
    pub differing: usize,
    /// Bits that differ, over all elements as they are stored.
    pub bits: u64,
    /// First element that differs, in row-major order.
    pub first: usize,
    /// Largest |a − b|.
    pub max_abs: f64,
    /// ‖a − b‖₂ / ‖a‖₂; `None` where A's tensor is zero.
    pub relative_l2: Option<f64>,
}

/// A tensor that B describes differently.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DescribedDifference {
    /// Name.
    pub name: String,
    /// Type and shape in A.
    pub a: String,
    /// Type and shape in B.
    pub b: String,
}

/// A value besides tensors that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetadataDifference {
    /// Key, with dots between the levels: `state.loader.samples`.
    pub key: String,
    /// Value in A, as JSON; empty if A has none.
    pub a: String,
    /// Value in B, as JSON; empty if B has none.
    pub b: String,
}

impl CheckpointDifference {
    /// Compares two checkpoints; `progress` is called with (done, total) elements.
    ///
    /// # Errors
    /// A checkpoint that is damaged or cannot be read.
    pub fn between(
        a: &Loaded,
        b: &Loaded,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<CheckpointDifference> {
        let mut found =
            CheckpointDifference { metadata: metadata(a.manifest(), b.manifest()), ..Self::default() };
        let total: u64 = a.manifest().tensors.iter().map(elements).sum();
        let mut done = 0;
        for t in &a.manifest().tensors {
            match b.tensor(&t.name) {
                None => found.only_a.push(t.name.clone()),
                Some(other) if (t.dtype, &t.shape) != (other.dtype, &other.shape) => {
                    let text = |t: &TensorRecord| format!("{} {:?}", t.dtype, t.shape);
                    let (name, a, b) = (t.name.clone(), text(t), text(other));
                    found.described.push(DescribedDifference { name, a, b });
                }
                Some(_) => match tensor(a, b, t)? {
                    Some(difference) => found.tensors.push(difference),
                    None => found.equal += 1,
                },
            }
            done += elements(t);
            progress(done, total);
        }
        let only_b = b.manifest().tensors.iter().filter(|t| a.tensor(&t.name).is_none());
        found.only_b = only_b.map(|t| t.name.clone()).collect();
        Ok(found)
    }

    /// Whether all tensors have the same names, shapes, types and bits.
    pub fn same_tensors(&self) -> bool {
        self.tensors.is_empty()
            && self.described.is_empty()
            && self.only_a.is_empty()
            && self.only_b.is_empty()
    }

    /// Whether the tensors and everything else are the same.
    pub fn is_empty(&self) -> bool {
        self.same_tensors() && self.metadata.is_empty()
    }
}

fn elements(t: &TensorRecord) -> u64 {
    t.shape.iter().product::<usize>() as u64
}

fn tensor(a: &Loaded, b: &Loaded, t: &TensorRecord) -> Result<Option<TensorDifference>> {
    let total = elements(t) as usize;
    let size = t.dtype.size();
    let (mut values, mut bytes) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let (mut differing, mut bits, mut first) = (0, 0, None);
    let (mut max_abs, mut squares, mut norm) = (0f64, 0f64, 0f64);
    for from in (0..total).step_by(BLOCK) {
        let len = BLOCK.min(total - from);
        for (side, loaded) in [a, b].into_iter().enumerate() {
            values[side].resize(len, 0.0);
            bytes[side].resize(len * size, 0);
            loaded.read_runs(&t.name, &[(from, len)], &mut values[side])?;
            encode(&values[side], t.dtype, &mut bytes[side]).map_err(|problem| CheckpointError::Tensor {
                file: loaded.path().into(),
                name: t.name.clone(),
                problem,
            })?;
        }
        norm += values[0].iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
        if bytes[0] == bytes[1] {
            continue;
        }
        for (i, (x, y)) in bytes[0].chunks_exact(size).zip(bytes[1].chunks_exact(size)).enumerate() {
            let here: u32 = x.iter().zip(y).map(|(x, y)| (x ^ y).count_ones()).sum();
            if here > 0 {
                differing += 1;
                bits += u64::from(here);
                first = first.or(Some(from + i));
                let distance = (f64::from(values[0][i]) - f64::from(values[1][i])).abs();
                max_abs = max_abs.max(distance);
                squares += distance * distance;
            }
        }
    }
    let relative_l2 = (norm > 0.0).then(|| (squares / norm).sqrt());
    Ok(first.map(|first| TensorDifference {
        name: t.name.clone(),
        elements: total,
        differing,
        bits,
        first,
        max_abs,
        relative_l2,
    }))
}

fn metadata(a: &Manifest, b: &Manifest) -> Vec<MetadataDifference> {
    let mut found = Vec::new();
    let mut hold = |key: &str, a: Value, b: Value| compare(key, Some(&a), Some(&b), &mut found);
    hold("step", a.step.into(), b.step.into());
    hold("tokens", a.tokens.into(), b.tokens.into());
    hold("writer", a.writer.as_str().into(), b.writer.as_str().into());
    hold("tokenizer", a.tokenizer.clone().into(), b.tokenizer.clone().into());
    let lines =
        |text: &str| text.lines().map(str::trim).filter(|l| !l.is_empty()).map(String::from).collect();
    let (old, new): (BTreeSet<String>, BTreeSet<String>) = (lines(&a.recipe), lines(&b.recipe));
    let only = |x: &BTreeSet<String>, y| x.difference(y).cloned().collect::<Vec<_>>().join("; ");
    hold("recipe", only(&old, &new).into(), only(&new, &old).into());
    compare("state", Some(&a.state), Some(&b.state), &mut found);
    found
}

fn compare(key: &str, a: Option<&Value>, b: Option<&Value>, found: &mut Vec<MetadataDifference>) {
    match (a, b) {
        (a, b) if a == b => {}
        (Some(Value::Object(x)), Some(Value::Object(y))) => {
            let keys: BTreeSet<&String> = x.keys().chain(y.keys()).collect();
            for name in keys {
                compare(&format!("{key}.{name}"), x.get(name), y.get(name), found);
            }
        }
        (a, b) => {
            let text = |v: Option<&Value>| v.map_or(String::new(), Value::to_string);
            found.push(MetadataDifference { key: key.into(), a: text(a), b: text(b) });
        }
    }
}
