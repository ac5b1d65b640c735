//! A TensorBoard event file: the scalars of a run.
//!
//! Framing (TFRecord): u64 length, masked CRC-32C of these 8 bytes, the message, masked CRC-32C of the message;
//! little endian. The mask is ((crc >> 15) | (crc << 17)) + 0xA282EAD8. The message is a Protocol Buffers `Event`
//! (tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto); what is written of it:
//!
//! ```text
//! Event       1 wall_time: double   2 step: int64   3 file_version: string   5 summary: Summary
//!             7 session_log: SessionLog
//! Summary     1 value: Value (repeated)
//! Value       1 tag: string         2 simple_value: float
//! SessionLog  1 status: enum, START = 1
//! ```

use crate::crc32c::crc32c;
use crate::{Record, RunLogError};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// An event file, open for writing. Each event is one `write`, so that a crash can cut only the last.
#[derive(Debug)]
pub struct TensorBoard {
    path: PathBuf,
    file: File,
    /// The frame being built; kept to be used again.
    frame: Vec<u8>,
    message: Vec<u8>,
}

impl TensorBoard {
    /// Makes a new event file in `dir`, which must exist: `events.out.tfevents.SECONDS.NAME`. A process that goes
    /// on with a run makes a further file with a later `wall_time_s`; TensorBoard joins the files of a folder in
    /// the order of their names. If the run was taken back to a checkpoint, `resumed_after` is the checkpoint's
    /// step, and TensorBoard forgets the later steps of the older files.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn create(
        dir: impl AsRef<Path>,
        name: &str,
        wall_time_s: f64,
        resumed_after: Option<u64>,
    ) -> Result<TensorBoard, RunLogError> {
        let safe: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' })
            .collect();
        let seconds = wall_time_s.max(0.0) as u64;
        let (mut copy, mut suffix) = (0, String::new());
        let (path, file) = loop {
            let path = dir.as_ref().join(format!("events.out.tfevents.{seconds:010}.{safe}{suffix}"));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => break (path, file),
                // Two processes of one run within a second.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && copy < 1000 => {
                    copy += 1;
                    suffix = format!(".{copy:03}");
                }
                Err(e) => return Err(RunLogError::io(&path, "create", e)),
            }
        };
        let mut board = TensorBoard { path, file, frame: Vec::new(), message: Vec::new() };
        board.event(wall_time_s, 0, |message| string(message, 3, "brain.Event:2"))?;
        if let Some(step) = resumed_after {
            // A session that starts at a step orphans everything recorded at that step or later.
            board.event(wall_time_s, step.saturating_add(1), |message| {
                message.extend([7 << 3 | 2, 2, 1 << 3, 1])
            })?;
        }
        Ok(board)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the scalars of one point in time. A value is stored as a 32-bit float.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn scalars(
        &mut self,
        wall_time_s: f64,
        step: u64,
        values: &[(&str, f64)],
    ) -> Result<(), RunLogError> {
        self.event(wall_time_s, step, |message| {
            let mut summary = Vec::new();
            for &(tag, value) in values {
                let mut entry = Vec::new();
                string(&mut entry, 1, tag);
                entry.push(2 << 3 | 5);
                entry.extend((value as f32).to_le_bytes());
                bytes(&mut summary, 1, &entry);
            }
            bytes(message, 5, &summary);
        })
    }

    /// Writes the scalars of a step or evaluation record; other kinds have none.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn record(&mut self, wall_time_s: f64, record: &Record) -> Result<(), RunLogError> {
        match record {
            Record::Step(r) => {
                let mut values = vec![
                    ("train/loss", r.loss),
                    ("train/lr", r.lr),
                    ("train/grad_norm", r.grad_norm),
                    ("speed/tokens_per_s", r.tokens_per_s),
                    ("speed/seconds", r.seconds),
                ];
                values.extend(r.z_loss.map(|v| ("train/z_loss", v)));
                values.extend(r.loss_scale.map(|v| ("train/loss_scale", v)));
                values.extend(r.mfu.map(|v| ("speed/mfu", v)));
                values.extend(r.memory_bytes.map(|v| ("memory/bytes", v as f64)));
                self.scalars(wall_time_s, r.step, &values)
            }
            Record::Eval(r) => {
                let tag = |what: &str| format!("eval/{}/{what}", r.split);
                let (loss, perplexity, bits) = (tag("loss"), tag("perplexity"), tag("bits_per_byte"));
                let values = [(&*loss, r.loss), (&*perplexity, r.perplexity), (&*bits, r.bits_per_byte)];
                self.scalars(wall_time_s, r.step, &values)?;
                for component in &r.components {
                    let tag = |what: &str| format!("eval/{}/{}/{what}", r.split, component.name);
                    let (loss, bits) = (tag("loss"), tag("bits_per_byte"));
                    let values = [(&*loss, component.loss), (&*bits, component.bits_per_byte)];
                    self.scalars(wall_time_s, r.step, &values)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn event(
        &mut self,
        wall_time_s: f64,
        step: u64,
        content: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), RunLogError> {
        self.message.clear();
        self.message.push(1 << 3 | 1);
        self.message.extend(wall_time_s.to_le_bytes());
        if step > 0 {
            self.message.push(2 << 3);
            varint(&mut self.message, step);
        }
        content(&mut self.message);
        self.frame.clear();
        let length = (self.message.len() as u64).to_le_bytes();
        self.frame.extend(length);
        self.frame.extend(masked_crc32c(&length).to_le_bytes());
        self.frame.extend(&self.message);
        self.frame.extend(masked_crc32c(&self.message).to_le_bytes());
        self.file.write_all(&self.frame).map_err(|e| RunLogError::io(&self.path, "append to", e))
    }
}

/// The CRC-32C of `bytes`, masked as TFRecord files store it.
pub fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend(value);
}

fn string(out: &mut Vec<u8>, field: u8, value: &str) {
    bytes(out, field, value.as_bytes());
}
