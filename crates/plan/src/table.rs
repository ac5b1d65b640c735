//! Tables of measured steps, as comma-separated text with a line of names.
//!
//! | column | meaning | where it is missing |
//! |---|---|---|
//! | `hidden`, `heads`, `layers`, `seq` | shape of the model, tokens of a sequence | an error |
//! | `vocab` | tokens of the vocabulary | 51,200 (Megatron's GPT) |
//! | `kv_heads`, `ffn`, `gated` | heads of keys, width of the feed-forward block, whether it has a gate | `heads`, four times `hidden`, no |
//! | `gpus` | devices | tp dp pp |
//! | `tp`, `cp`, `pp`, `virtual` | tensor ranks, context ranks (ring attention), pipeline stages, chunks of a stage | 1 |
//! | `dp` | data-parallel ranks | gpus / (tp cp pp) |
//! | `micro_batch` | sequences of a micro-batch | 1 |
//! | `global_batch` or `grad_accum` | sequences of a step, or micro-batches of a rank | an error |
//! | `zero` or `scheme` | what data-parallel ranks keep a part of, 0 to 3; "zero3" | 0 |
//! | `recompute` | none, selective or full | full |
//! | `sequence` | whether tensor ranks share positions, yes or no | no |
//! | `overlap` | whether collectives run beside computation, yes or no | no |
//! | `attention` | `fused`, or `stored` where scores lie in memory | fused in tables with `zero`, else stored |
//! | `experts` | experts of a layer; rows that have them are left out | none |
//! | `gradient_bytes` | bytes of an element of the gradients that are summed | 2 |
//! | `alloc_gib` | GiB that the device which held most had allocated | |
//! | `gpu` | name of a machine | the one asked for |
//! | `precision` | of matrix products; rows of another than bf16 or fp16 are left out | bf16 |
//! | `time_ms`, `implied_time_ms`, `time_s`, `tokens_per_s` or `tflops_per_gpu` | what was measured | an error |
//! | `full_recompute_s`, `sp_selective_s` | seconds of two steps: everything recomputed; attention recomputed, positions shared | |
//!
//! Other columns are not read.

use crate::{
    Job, Layout, Machine, Measurement, PlanError, Recompute, Transformer, ZeroStage, expected_memory,
};
use bessemer_mesh::ContextMethod;
use bessemer_units::did_you_mean;
use serde::Serialize;
use std::collections::BTreeMap;

/// One line: its cells by the names of their columns.
struct Row<'a> {
    line: usize,
    cells: BTreeMap<&'a str, &'a str>,
}

impl Row<'_> {
    fn wrong(&self, problem: String) -> PlanError {
        PlanError::Table { line: self.line, problem }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.cells.get(name).copied().filter(|cell| !cell.is_empty())
    }

    fn number(&self, name: &str) -> Result<Option<f64>, PlanError> {
        let Some(cell) = self.text(name) else { return Ok(None) };
        match cell.parse::<f64>() {
            Ok(value) if value > 0.0 && value.is_finite() => Ok(Some(value)),
            _ => Err(self.wrong(format!("{name} is {cell:?}; wanted a number above 0"))),
        }
    }

    fn count(&self, name: &str) -> Result<Option<usize>, PlanError> {
        match self.number(name)? {
            Some(value) if value.fract() == 0.0 && value < 1e12 => Ok(Some(value as usize)),
            Some(value) => Err(self.wrong(format!("{name} is {value}; wanted a whole number"))),
            None => Ok(None),
        }
    }

    fn needed(&self, name: &str) -> Result<usize, PlanError> {
        self.count(name)?.ok_or_else(|| self.wrong(format!("there is no {name}")))
    }

    fn one_of<T: Copy>(&self, name: &str, values: &[(&str, T)]) -> Result<Option<T>, PlanError> {
        let Some(cell) = self.text(name) else { return Ok(None) };
        match values.iter().find(|(word, _)| *word == cell) {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let words: Vec<&str> = values.iter().map(|(word, _)| *word).collect();
                let near = did_you_mean(cell, words.iter().copied());
                Err(self.wrong(format!("{name} is {cell:?}{near}; wanted one of {}", words.join(", "))))
            }
        }
    }

    fn zero(&self) -> Result<Option<ZeroStage>, PlanError> {
        let stages = [
            ("0", ZeroStage::Ddp),
            ("1", ZeroStage::Zero1),
            ("2", ZeroStage::Zero2),
            ("3", ZeroStage::Zero3),
        ];
        match self.one_of("zero", &stages)? {
            None if self.text("scheme") == Some("zero3") => Ok(Some(ZeroStage::Zero3)),
            stage => Ok(stage),
        }
    }

    /// Reason why the row is not predicted, if there is one.
    fn unmodelled(&self) -> Result<Option<&'static str>, PlanError> {
        if self.text("precision").is_some_and(|kind| !matches!(kind, "bf16" | "fp16")) {
            return Ok(Some("products of another type than bf16"));
        }
        Ok(self.count("experts")?.map(|_| "mixtures of experts"))
    }

    fn job(&self) -> Result<Job, PlanError> {
        let (width, heads) = (self.needed("hidden")?, self.needed("heads")?);
        let answers = [("yes", true), ("no", false), ("true", true), ("false", false)];
        let gpt =
            Transformer::gpt(width, heads, self.needed("layers")?, self.count("vocab")?.unwrap_or(51_200));
        let model = Transformer {
            kv_heads: self.count("kv_heads")?.unwrap_or(heads),
            ffn_width: self.count("ffn")?.unwrap_or(gpt.ffn_width),
            gated: self.one_of("gated", &answers)?.unwrap_or(false),
            ..gpt
        };
        let tensor = self.count("tp")?.unwrap_or(1);
        let context = self.count("cp")?.unwrap_or(1);
        let pipeline = self.count("pp")?.unwrap_or(1);
        let data = match (self.count("dp")?, self.count("gpus")?) {
            (Some(data), _) => data,
            (None, Some(devices)) if devices.is_multiple_of(tensor * context * pipeline) => {
                devices / (tensor * context * pipeline)
            }
            (None, Some(devices)) => {
                let degrees = format!("tp {tensor} times cp {context} times pp {pipeline}");
                return Err(self.wrong(format!("{devices} devices are not divided by {degrees}")));
            }
            (None, None) => return Err(self.wrong("there is neither dp nor gpus".into())),
        };
        let micro_batch = self.count("micro_batch")?.unwrap_or(1);
        let global_batch = match (self.count("global_batch")?, self.count("grad_accum")?) {
            (Some(batch), _) => batch,
            (None, Some(micro_batches)) => data * micro_batch * micro_batches,
            (None, None) => return Err(self.wrong("there is neither global_batch nor grad_accum".into())),
        };
        let zero = self.zero()?;
        let recomputes = [
            ("none", Recompute::None),
            ("rows", Recompute::Selective),
            ("selective", Recompute::Attention),
            ("attention-output", Recompute::AttentionOutput),
            ("full", Recompute::Full),
        ];
        let attentions = [("fused", true), ("stored", false)];
        let job = Job {
            model,
            seq: self.needed("seq")?,
            global_batch,
            fused_attention: self.one_of("attention", &attentions)?.unwrap_or(self.text("zero").is_some()),
            layout: Layout {
                tensor,
                context,
                context_method: if context > 1 { ContextMethod::Ring } else { ContextMethod::default() },
                data,
                pipeline,
                chunks: self.count("virtual")?.unwrap_or(1),
                micro_batch,
                zero: zero.unwrap_or(ZeroStage::Ddp),
                recompute: self.one_of("recompute", &recomputes)?.unwrap_or(Recompute::Full),
                sequence: self.one_of("sequence", &answers)?.unwrap_or(false),
                gradient_bytes: self.number("gradient_bytes")?.unwrap_or(2.0),
                overlap: self.one_of("overlap", &answers)?.unwrap_or(false),
                ..Layout::default()
            },
        };
        job.check().map_err(|cause| self.wrong(cause.to_string()))?;
        Ok(job)
    }

    /// Steps that the row measured.
    fn steps(&self) -> Result<Vec<(Job, f64)>, PlanError> {
        let job = self.job()?;
        let pair =
            [("full_recompute_s", Recompute::Full, false), ("sp_selective_s", Recompute::Attention, true)];
        let mut steps = Vec::new();
        for (name, recompute, sequence) in pair {
            if let Some(seconds) = self.number(name)? {
                let layout = Layout { recompute, sequence, ..job.layout };
                steps.push((Job { layout, ..job }, seconds));
            }
        }
        if steps.is_empty() {
            steps.push((job, self.seconds(&job)?));
        }
        Ok(steps)
    }

    fn seconds(&self, job: &Job) -> Result<f64, PlanError> {
        for (name, unit) in [("time_ms", 1e-3), ("implied_time_ms", 1e-3), ("time_s", 1.0)] {
            if let Some(time) = self.number(name)? {
                return Ok(time * unit);
            }
        }
        if let Some(rate) = self.number("tokens_per_s")? {
            return Ok((job.global_batch * job.seq) as f64 / rate);
        }
        if let Some(rate) = self.number("tflops_per_gpu")? {
            return Ok(job.hardware_flops() / (rate * 1e12));
        }
        let wanted = "time_ms, implied_time_ms, time_s, tokens_per_s or tflops_per_gpu";
        Err(self.wrong(format!("there is no measurement; wanted {wanted}")))
    }
}

/// A table.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Its steps.
    pub steps: Vec<Measurement>,
    /// Rows that were left out.
    pub left_out: Vec<LeftOut>,
    /// Memory that rows measured.
    pub memory: Vec<MeasuredMemory>,
}

/// A row that is not predicted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeftOut {
    /// Number of the row.
    pub row: usize,
    /// Part of it that is not modelled.
    pub reason: &'static str,
}

/// Memory of a measured step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeasuredMemory {
    /// Number of the row.
    pub row: usize,
    /// Bytes that the device which held most had allocated.
    pub measured: f64,
    /// Bytes that [`expected_memory`] counts.
    pub expected: f64,
}

/// Most rows of a table.
const MOST_ROWS: usize = 10_000;
/// Bytes.
const GIB: f64 = 1_073_741_824.0;

/// Reads a table. `machine` ran the rows that name none; of a table that names machines all rows are read, or with `only` those of
/// `machine`.
///
/// # Errors
/// The first line that is wrong, with what was wanted; a table without a row.
pub fn read_table(text: &str, machine: &Machine, only: bool) -> Result<Table, PlanError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let Some((_, names)) = lines.next() else {
        return Err(PlanError::Table { line: 1, problem: "there is no line of column names".into() });
    };
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    let mut table = Table { steps: Vec::new(), left_out: Vec::new(), memory: Vec::new() };
    for (index, line) in lines {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let row = Row { line: index + 1, cells: names.iter().copied().zip(cells.iter().copied()).collect() };
        if cells.len() != names.len() {
            return Err(row.wrong(format!("{} cells under {} names", cells.len(), names.len())));
        }
        let machine = match row.text("gpu") {
            Some(name) if only && name != machine.name => continue,
            Some(name) => Machine::named(name).map_err(|cause| row.wrong(cause.to_string()))?,
            None => machine.clone(),
        };
        let number = row.count("row")?.unwrap_or(index);
        if let Some(reason) = row.unmodelled()? {
            table.left_out.push(LeftOut { row: number, reason });
            continue;
        }
        if table.steps.len() >= MOST_ROWS {
            return Err(row.wrong(format!("the table is longer than {MOST_ROWS} rows")));
        }
        for (job, seconds) in row.steps()? {
            if let Some(size) = row.number("alloc_gib")? {
                let (measured, expected) = (size * GIB, expected_memory(&job));
                table.memory.push(MeasuredMemory { row: number, measured, expected });
            }
            table.steps.push(Measurement { row: number, job, machine: machine.clone(), seconds });
        }
    }
    if table.steps.is_empty() {
        let of = if only { format!(" of {}", machine.name) } else { String::new() };
        return Err(PlanError::Rows { problem: format!("the table has no row{of} to read") });
    }
    Ok(table)
}
