//! Tables of measured steps, as comma-separated text with a line of names.
//!
//! | column | meaning |
//! |---|---|
//! | `hidden`, `heads`, `kv_heads`, `layers`, `ffn`, `gated`, `vocab`, `seq` | shape of the model, tokens of a sequence |
//! | `tp`, `cp`, `pp`, `virtual` | tensor ranks, context ranks (ring attention), pipeline stages, chunks of a stage |
//! | `dp` or `gpus` | data-parallel ranks, or devices |
//! | `micro_batch` | sequences of a micro-batch |
//! | `global_batch` or `grad_accum` | sequences of a step, or micro-batches of a rank |
//! | `zero` or `scheme` | what data-parallel ranks keep a part of, 0 to 3; "zero3" |
//! | `recompute` | none, rows, selective, attention-output or full |
//! | `sequence` | whether tensor ranks share positions, yes or no |
//! | `overlap` | whether collectives run beside computation, yes or no |
//! | `attention` | `fused`, or `stored` where scores lie in memory |
//! | `gradient_bytes` | bytes of an element of the gradients that are summed |
//! | `time_ms`, `implied_time_ms`, `time_s`, `tokens_per_s` or `tflops_per_gpu` | measurement |
//! | `full_recompute_s`, `sp_selective_s` | seconds of two steps: everything recomputed; attention recomputed, positions shared |
//! | `gpu` | name of a machine; absent: the machine of the reader |
//! | `precision` | of matrix products, absent: that of the machine's peak; rows of another than bf16 or fp16 are left out |
//! | `experts` | experts of a layer, absent: none; rows that have them are left out |
//! | `alloc_gib` | GiB that the device which held most had allocated, if it was measured |
//!
//! A column that is not there has no default: it is refused, or its value is given for all rows ([`GivenColumns`]). Other columns are not read.

use crate::{
    Job, Layout, Machine, Measurement, PlanError, Recompute, Transformer, ZeroStage, expected_memory,
};
use bessemer_mesh::ContextMethod;
use bessemer_units::did_you_mean;
use serde::Serialize;
use std::collections::BTreeMap;

/// Columns without which a step cannot be predicted, each with the names that it may have and the values that it takes.
const NEEDED: [(&[&str], &str); 22] = [
    (&["hidden"], "N"),
    (&["heads"], "N"),
    (&["kv_heads"], "N or heads"),
    (&["layers"], "N"),
    (&["ffn"], "N or 4*hidden"),
    (&["gated"], "yes or no"),
    (&["vocab"], "N"),
    (&["seq"], "N"),
    (&["tp"], "N"),
    (&["cp"], "N"),
    (&["pp"], "N"),
    (&["virtual"], "N"),
    (&["dp", "gpus"], "N"),
    (&["micro_batch"], "N"),
    (&["global_batch", "grad_accum"], "N"),
    (&["zero", "scheme"], "0, 1, 2 or 3"),
    (&["recompute", "full_recompute_s", "sp_selective_s"], "none, rows, selective, attention-output or full"),
    (&["sequence", "full_recompute_s", "sp_selective_s"], "yes or no"),
    (&["overlap"], "yes or no"),
    (&["attention"], "fused or stored"),
    (&["gradient_bytes"], "2 or 4"),
    (
        &[
            "time_ms",
            "implied_time_ms",
            "time_s",
            "tokens_per_s",
            "tflops_per_gpu",
            "full_recompute_s",
            "sp_selective_s",
        ],
        "a measurement",
    ),
];

/// Values of columns that a table does not have, the same for all its rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GivenColumns(BTreeMap<String, String>);

impl GivenColumns {
    /// Name of a set of values: GPT as Megatron-LM trains it without further options.
    const MEGATRON: (&str, &str) = (
        "megatron",
        "vocab=51200,kv_heads=heads,ffn=4*hidden,gated=no,cp=1,virtual=1,zero=0,recompute=full,sequence=no,overlap=no,\
         attention=stored,gradient_bytes=2",
    );

    /// Reads `NAME=VALUE`, several of them separated by commas, or `megatron`. A number may be another column, or a multiple of it: `heads`,
    /// `4*hidden`. Single values come before those of the set, later ones before earlier ones.
    ///
    /// # Errors
    /// A name that no column has, text of another form.
    pub fn parse(specs: &[String]) -> Result<GivenColumns, PlanError> {
        let mut given = GivenColumns::default();
        for spec in specs.iter().flat_map(|spec| spec.split(',')) {
            let (name, values) = GivenColumns::MEGATRON;
            if spec.trim() == name {
                for (column, value) in GivenColumns::parse(&[values.to_owned()])?.0 {
                    given.0.entry(column).or_insert(value);
                }
                continue;
            }
            let known = || NEEDED.iter().flat_map(|(names, _)| names.iter().copied());
            let wrong = |problem: String| PlanError::Rows { problem };
            let Some((column, value)) = spec.split_once('=') else {
                return Err(wrong(format!("{spec:?}; wanted NAME=VALUE of a column, or {name}")));
            };
            let (column, value) = (column.trim(), value.trim());
            if !known().any(|name| name == column) || value.is_empty() {
                let near = did_you_mean(column, known());
                let all: Vec<&str> = known().collect();
                return Err(wrong(format!(
                    "{spec:?}{near}; wanted a value for one of the columns {}",
                    all.join(", ")
                )));
            }
            given.0.insert(column.to_owned(), value.to_owned());
        }
        Ok(given)
    }
}

/// Rows of a table to read, and what the table does not say.
#[derive(Debug, Clone, Copy)]
pub struct TableReader<'a> {
    /// Machine of rows that name none; such rows are refused without it.
    pub machine: Option<&'a Machine>,
    /// Whether only the rows of this machine are read, where rows name machines.
    pub only: bool,
    /// Values of columns that the table does not have.
    pub given: &'a GivenColumns,
}

/// One line: its cells by the names of their columns.
struct Row<'a> {
    line: usize,
    cells: BTreeMap<&'a str, &'a str>,
    given: &'a GivenColumns,
}

impl Row<'_> {
    fn wrong(&self, problem: String) -> PlanError {
        PlanError::Table { line: self.line, problem }
    }

    fn text(&self, name: &str) -> Option<&str> {
        let cell = self.cells.get(name).copied().filter(|cell| !cell.is_empty());
        cell.or_else(|| self.given.0.get(name).map(String::as_str))
    }

    fn number(&self, name: &str) -> Result<Option<f64>, PlanError> {
        let Some(cell) = self.text(name) else { return Ok(None) };
        // A multiple of another column that the table has.
        let (factor, other) = cell.split_once('*').unwrap_or(("1", cell));
        if let (Ok(factor), true) = (factor.parse::<f64>(), self.cells.contains_key(other) && other != name) {
            return Ok(self.number(other)?.map(|value| factor * value));
        }
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
        self.count(name)?.ok_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> PlanError {
        self.wrong(format!(
            "there is no {name}; wanted a value in the cell, or one for all rows: --column {name}=VALUE"
        ))
    }

    fn needed_one_of<T: Copy>(&self, name: &str, values: &[(&str, T)]) -> Result<T, PlanError> {
        self.one_of(name, values)?.ok_or_else(|| self.missing(name))
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

    fn zero(&self) -> Result<ZeroStage, PlanError> {
        let stages = [
            ("0", ZeroStage::Ddp),
            ("1", ZeroStage::Zero1),
            ("2", ZeroStage::Zero2),
            ("3", ZeroStage::Zero3),
        ];
        match (self.one_of("zero", &stages)?, self.text("scheme")) {
            (Some(stage), _) => Ok(stage),
            (None, Some("zero3")) => Ok(ZeroStage::Zero3),
            (None, Some(_)) => Ok(ZeroStage::Ddp),
            (None, None) => Err(self.missing("zero")),
        }
    }

    /// Reason why the row is not predicted, if there is one.
    fn unmodelled(&self) -> Result<Option<&'static str>, PlanError> {
        if self.text("precision").is_some_and(|kind| !matches!(kind, "bf16" | "fp16")) {
            return Ok(Some("products of another type than bf16"));
        }
        Ok(self.count("experts")?.map(|_| "mixtures of experts"))
    }

    /// The job, with what it recomputes and whether it shares positions where the row says it.
    fn job(&self, (recompute, sequence): (Option<Recompute>, Option<bool>)) -> Result<Job, PlanError> {
        let (width, heads) = (self.needed("hidden")?, self.needed("heads")?);
        let answers = [("yes", true), ("no", false), ("true", true), ("false", false)];
        let model = Transformer {
            width,
            heads,
            kv_heads: self.needed("kv_heads")?,
            ffn_width: self.needed("ffn")?,
            gated: self.needed_one_of("gated", &answers)?,
            layers: self.needed("layers")?,
            vocab: self.needed("vocab")?,
        };
        let tensor = self.needed("tp")?;
        let context = self.needed("cp")?;
        let pipeline = self.needed("pp")?;
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
        let micro_batch = self.needed("micro_batch")?;
        let global_batch = match (self.count("global_batch")?, self.count("grad_accum")?) {
            (Some(batch), _) => batch,
            (None, Some(micro_batches)) => data * micro_batch * micro_batches,
            (None, None) => return Err(self.wrong("there is neither global_batch nor grad_accum".into())),
        };
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
            fused_attention: self.needed_one_of("attention", &attentions)?,
            layout: Layout {
                tensor,
                context,
                context_method: if context > 1 { ContextMethod::Ring } else { ContextMethod::default() },
                data,
                pipeline,
                chunks: self.needed("virtual")?,
                micro_batch,
                zero: self.zero()?,
                recompute: match recompute {
                    Some(recompute) => recompute,
                    None => self.needed_one_of("recompute", &recomputes)?,
                },
                sequence: match sequence {
                    Some(sequence) => sequence,
                    None => self.needed_one_of("sequence", &answers)?,
                },
                gradient_bytes: self
                    .number("gradient_bytes")?
                    .ok_or_else(|| self.missing("gradient_bytes"))?,
                overlap: self.needed_one_of("overlap", &answers)?,
                ..Layout::default()
            },
        };
        job.check().map_err(|cause| self.wrong(cause.to_string()))?;
        Ok(job)
    }

    /// Steps that the row measured.
    fn steps(&self) -> Result<Vec<(Job, f64)>, PlanError> {
        let pair =
            [("full_recompute_s", Recompute::Full, false), ("sp_selective_s", Recompute::Attention, true)];
        let mut steps = Vec::new();
        for (name, recompute, sequence) in pair {
            if let Some(seconds) = self.number(name)? {
                steps.push((self.job((Some(recompute), Some(sequence)))?, seconds));
            }
        }
        if steps.is_empty() {
            let job = self.job((None, None))?;
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

/// Reads a table.
///
/// # Errors
/// Columns that are not there, all by name and with the values that they take; the first line that is wrong, with what was wanted; a table
/// without a row.
pub fn read_table(text: &str, reader: &TableReader<'_>) -> Result<Table, PlanError> {
    let TableReader { machine, only, given } = *reader;
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let Some((_, names)) = lines.next() else {
        return Err(PlanError::Table { line: 1, problem: "there is no line of column names".into() });
    };
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    check_columns(&names, reader)?;
    let mut table = Table { steps: Vec::new(), left_out: Vec::new(), memory: Vec::new() };
    for (index, line) in lines {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let row =
            Row { line: index + 1, cells: names.iter().copied().zip(cells.iter().copied()).collect(), given };
        if cells.len() != names.len() {
            return Err(row.wrong(format!("{} cells under {} names", cells.len(), names.len())));
        }
        let machine = match row.text("gpu") {
            Some(name) if only && machine.is_some_and(|machine| name != machine.name) => continue,
            Some(name) => Machine::named(name).map_err(|cause| row.wrong(cause.to_string()))?,
            None => machine.cloned().ok_or_else(|| {
                row.wrong("there is no gpu; wanted the name of a machine, or --machine for all rows".into())
            })?,
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
        let of = machine.filter(|_| only).map_or(String::new(), |machine| format!(" of {}", machine.name));
        return Err(PlanError::Rows { problem: format!("the table has no row{of} to read") });
    }
    Ok(table)
}

/// Refuses a table without columns that have no default.
fn check_columns(names: &[&str], reader: &TableReader<'_>) -> Result<(), PlanError> {
    let there = |name: &&str| names.contains(name) || reader.given.0.contains_key(*name);
    let missing: Vec<&(&[&str], &str)> = NEEDED.iter().filter(|(of, _)| !of.iter().any(there)).collect();
    let mut problems = Vec::new();
    if !missing.is_empty() {
        let list: Vec<String> =
            missing.iter().map(|(names, values)| format!("{} ({values})", names.join(" or "))).collect();
        problems.push(format!(
            "the table does not have the columns {}; add them to the table, or give a value for all rows, e.g. --column {}=VALUE \
             (--column megatron gives those of Megatron-LM's GPT)",
            list.join(", "),
            missing[0].0[0]
        ));
    }
    if reader.machine.is_none() && !names.contains(&"gpu") {
        problems.push("the table has no column gpu; name its machine with --machine".into());
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(PlanError::Table { line: 1, problem: problems.join("; ") }),
    }
}
