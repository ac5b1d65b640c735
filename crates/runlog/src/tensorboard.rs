//! A TensorBoard event file: the scalars, texts and hyperparameters of a run.
//!
//! Framing (TFRecord): u64 length, masked CRC-32C of these 8 bytes, the message, masked CRC-32C of the message;
//! little endian. The mask is ((crc >> 15) | (crc << 17)) + 0xA282EAD8. The message is a Protocol Buffers `Event`
//! (tensorflow/core/util/event.proto, tensorflow/core/framework/{summary,tensor,tensor_shape}.proto); hyperparameters are
//! messages of the hparams plugin (tensorboard/plugins/hparams/plugin_data.proto) and google/protobuf/struct.proto. What is
//! written of them:
//!
//! ```text
//! Event             1 wall_time: double   2 step: int64   3 file_version: string   5 summary: Summary
//!                   7 session_log: SessionLog
//! Summary           1 value: Value (repeated)
//! Value             1 tag: string   2 simple_value: float   8 tensor: TensorProto   9 metadata: SummaryMetadata
//! SessionLog        1 status: enum, START = 1
//! SummaryMetadata   1 plugin_data: PluginData
//! PluginData        1 plugin_name: string   2 content: bytes
//! TensorProto       1 dtype: enum, DT_FLOAT = 1, DT_STRING = 7   2 tensor_shape   8 string_val: bytes (repeated)
//! TensorShapeProto  2 dim: Dim (repeated), of which 1 size: int64
//! HParamsPluginData 3 session_start_info   4 session_end_info
//! SessionStartInfo  1 hparams: map<string, Value>   4 group_name: string   5 start_time_secs: double
//! SessionEndInfo    1 status: enum, SUCCESS = 1, FAILURE = 2   2 end_time_secs: double
//! Value (struct)    2 number_value: double   3 string_value: string   4 bool_value: bool
//! ```

use crate::crc32c::crc32c;
use crate::protobuf::{bytes, double, float, integer, message, string};
use crate::{EndReason, Record, RunLogError, Sample};
use bessemer_durable::AsDir;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A value of a hyperparameter.
#[derive(Debug, Clone, PartialEq)]
pub enum HyperParameter {
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// A switch.
    Switch(bool),
}

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
        dir: impl AsDir,
        name: &str,
        wall_time_s: f64,
        resumed_after: Option<u64>,
    ) -> Result<TensorBoard, RunLogError> {
        let dir = crate::reading::opened(&dir)?;
        let safe: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' })
            .collect();
        let seconds = wall_time_s.max(0.0) as u64;
        let (mut copy, mut suffix) = (0, String::new());
        let (path, file) = loop {
            let name = format!("events.out.tfevents.{seconds:010}.{safe}{suffix}");
            let path = dir.path().join(&name);
            match dir.create_new(&name) {
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
        board.event(wall_time_s, 0, |event| string(event, 3, "brain.Event:2"))?;
        if let Some(step) = resumed_after {
            // A session that starts at a step orphans everything recorded at that step or later.
            board.event(wall_time_s, step.saturating_add(1), |event| {
                message(event, 7, |session_log| integer(session_log, 1, 1));
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
        self.points(wall_time_s, step, values.iter().copied())
    }

    fn points<'a>(
        &mut self,
        wall_time_s: f64,
        step: u64,
        values: impl Iterator<Item = (&'a str, f64)>,
    ) -> Result<(), RunLogError> {
        self.event(wall_time_s, step, |event| {
            message(event, 5, |summary| {
                for (tag, value) in values {
                    message(summary, 1, |entry| {
                        string(entry, 1, tag);
                        float(entry, 2, value as f32);
                    });
                }
            });
        })
    }

    /// Writes a text in Markdown, which the tab "Text" shows.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn text(
        &mut self,
        wall_time_s: f64,
        step: u64,
        tag: &str,
        markdown: &str,
    ) -> Result<(), RunLogError> {
        self.plugin(wall_time_s, step, tag, "text", &[], |tensor| {
            integer(tensor, 1, 7);
            message(tensor, 2, |shape| message(shape, 2, |dim| integer(dim, 1, 1)));
            string(tensor, 8, markdown);
        })
    }

    /// Writes the hyperparameters of the run, which the tab "HParams" shows. `group` names the run among others;
    /// TensorBoard takes runs of the same group for repetitions.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn hyperparameters(
        &mut self,
        wall_time_s: f64,
        group: &str,
        values: &[(String, HyperParameter)],
    ) -> Result<(), RunLogError> {
        let mut content = Vec::new();
        message(&mut content, 3, |start| {
            for (name, value) in values {
                message(start, 1, |entry| {
                    string(entry, 1, name);
                    message(entry, 2, |out| match value {
                        HyperParameter::Number(number) => double(out, 2, *number),
                        HyperParameter::Text(text) => string(out, 3, text),
                        HyperParameter::Switch(on) => integer(out, 4, u64::from(*on)),
                    });
                });
            }
            string(start, 4, group);
            double(start, 5, wall_time_s);
        });
        self.hparams(wall_time_s, "_hparams_/session_start_info", &content)
    }

    /// Writes how the session ended, for the tab "HParams".
    fn session_end(&mut self, wall_time_s: f64, reason: EndReason) -> Result<(), RunLogError> {
        let mut content = Vec::new();
        message(&mut content, 4, |end| {
            integer(end, 1, if reason == EndReason::Failed { 2 } else { 1 });
            double(end, 2, wall_time_s);
        });
        self.hparams(wall_time_s, "_hparams_/session_end_info", &content)
    }

    /// Writes a message of the hparams plugin, beside an empty tensor of floats.
    fn hparams(&mut self, wall_time_s: f64, tag: &str, content: &[u8]) -> Result<(), RunLogError> {
        self.plugin(wall_time_s, 0, tag, "hparams", content, |tensor| {
            integer(tensor, 1, 1);
            message(tensor, 2, |shape| message(shape, 2, |_| {}));
        })
    }

    /// Writes a tensor with the name of the plugin that shows it and the content that this plugin reads.
    fn plugin(
        &mut self,
        wall_time_s: f64,
        step: u64,
        tag: &str,
        plugin: &str,
        content: &[u8],
        tensor: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), RunLogError> {
        self.event(wall_time_s, step, |event| {
            message(event, 5, |summary| {
                message(summary, 1, |value| {
                    string(value, 1, tag);
                    message(value, 8, tensor);
                    message(value, 9, |metadata| {
                        message(metadata, 1, |data| {
                            string(data, 1, plugin);
                            if !content.is_empty() {
                                bytes(data, 2, content);
                            }
                        });
                    });
                });
            });
        })
    }

    /// Writes what TensorBoard shows of a record: the scalars of a step, an evaluation or a task, the text of a sample, the end of
    /// the session. Other kinds have nothing.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn record(&mut self, wall_time_s: f64, record: &Record) -> Result<(), RunLogError> {
        match record {
            Record::Step(r) => {
                let values = [
                    Some(("train/loss", r.loss)),
                    Some(("train/lr", r.lr)),
                    Some(("train/grad_norm", r.grad_norm)),
                    Some(("speed/tokens_per_s", r.tokens_per_s)),
                    Some(("speed/seconds", r.seconds)),
                    r.loss_scale.map(|v| ("train/loss_scale", v)),
                    r.mfu.map(|v| ("speed/mfu", v)),
                    r.memory_bytes.map(|v| ("memory/bytes", v as f64)),
                    r.data_seconds.map(|v| ("data/wait_seconds", v)),
                    r.data_bytes.map(|v| ("data/bytes", v as f64)),
                    r.data_hit_share.map(|v| ("data/hit_share", v)),
                ];
                let losses: Vec<(String, f64)> =
                    r.losses.iter().map(|(name, value)| (format!("train/{name}"), *value)).collect();
                let experts: Vec<(String, f64)> =
                    r.experts.iter().map(|(name, value)| (format!("experts/{name}"), *value)).collect();
                let pairs: Vec<(String, f64)> = r
                    .preferences
                    .iter()
                    .map(|(name, value)| (format!("preferences/{name}"), *value))
                    .collect();
                let named = losses.iter().chain(&experts).chain(&pairs).map(|(tag, value)| (&**tag, *value));
                self.points(wall_time_s, r.step, values.into_iter().flatten().chain(named))
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
            Record::Task(r) => {
                let tag = format!("task/{}/{}", r.task, r.metric);
                self.scalars(wall_time_s, r.step, &[(&*tag, r.value)])
            }
            Record::Sample(r) => self.text(wall_time_s, r.step, &sample_tag(&r.prompt), &sample_text(r)),
            Record::End(r) => self.session_end(wall_time_s, r.reason),
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
        double(&mut self.message, 1, wall_time_s);
        if step > 0 {
            integer(&mut self.message, 2, step);
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

/// The tag of the samples of one prompt: a name of at most 40 characters.
fn sample_tag(prompt: &str) -> String {
    let words = prompt.split_whitespace().collect::<Vec<_>>().join(" ");
    let short: String = words.chars().filter(|c| !c.is_control()).take(40).collect();
    format!("samples/{}", if short.is_empty() { "no prompt" } else { &short })
}

/// A sample in Markdown: a code block, fenced by more backticks than the text has in a row.
fn sample_text(sample: &Sample) -> String {
    let text = format!("{}{}", sample.prompt, sample.text);
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    let temperature = sample.temperature.map_or(String::new(), |t| format!(", temperature {t}"));
    format!("Step {}, prompt {:?}{temperature}:\n\n{fence}\n{text}\n{fence}\n", sample.step, sample.prompt)
}
