//! Fields of a task file of the lm-evaluation-harness (EleutherAI), version 0.4.

use crate::error::TaskError;
use crate::filters::Filter;
use crate::metrics::{Metric, MetricKind, OutputType};
use crate::task::columns;
use crate::yaml::FUNCTION;
use bessemer_units::did_you_mean;
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::Path;

/// How a part of a prompt follows from a document.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Source {
    /// The name of a column, or a template where no column has this name.
    Text(String),
    /// A value that is the same for all documents: a number, a list of choices.
    Fixed(Value),
}

/// Parts of a prompt, of a document that is asked about or of an example.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parts {
    pub(crate) text: Source,
    /// The question with the knowledge that the answer needs, of tasks with the metric self_contrast.
    pub(crate) informed: Option<Source>,
    pub(crate) target: Source,
    pub(crate) choice: Option<Source>,
    pub(crate) prefix: Option<String>,
    pub(crate) target_delimiter: String,
    pub(crate) fewshot_delimiter: String,
}

/// Cognitive level of a task in KoLA (Yu et al. 2023).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Level {
    /// Knowledge memorization.
    #[serde(rename = "KM")]
    Memorization,
    /// Knowledge understanding.
    #[serde(rename = "KU")]
    Understanding,
    /// Knowledge applying.
    #[serde(rename = "KA")]
    Applying,
    /// Knowledge creating.
    #[serde(rename = "KC")]
    Creating,
}

impl Level {
    /// All, by rising level.
    pub const ALL: [Level; 4] = [Level::Memorization, Level::Understanding, Level::Applying, Level::Creating];

    /// Its name in task files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Level::Memorization => "KM",
            Level::Understanding => "KU",
            Level::Applying => "KA",
            Level::Creating => "KC",
        }
    }
}

/// How a generated answer is made.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// Strings that end it.
    pub until: Vec<String>,
    /// Tokens at most.
    pub max_tokens: u64,
    /// 0: always the most probable token.
    pub temperature: f64,
    /// Choose among this many most probable tokens; 0: among all.
    pub top_k: u64,
    /// Choose among the most probable tokens that together have this probability.
    pub top_p: f64,
}

/// How examples are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sampling {
    Random,
    First,
}

/// A task file.
#[derive(Debug, Clone)]
pub(crate) struct TaskConfig {
    pub(crate) name: String,
    pub(crate) dataset_path: Option<String>,
    pub(crate) dataset_name: Option<String>,
    pub(crate) data_files: Option<Value>,
    pub(crate) training_split: Option<String>,
    pub(crate) validation_split: Option<String>,
    pub(crate) test_split: Option<String>,
    pub(crate) fewshot_split: Option<String>,
    pub(crate) fewshot_sampling: Sampling,
    pub(crate) fewshot_samples: Option<Vec<Map<String, Value>>>,
    pub(crate) num_fewshot: usize,
    pub(crate) description: String,
    pub(crate) parts: Parts,
    pub(crate) fewshot_parts: Parts,
    pub(crate) output: OutputType,
    pub(crate) generation: Generation,
    pub(crate) metrics: Vec<Metric>,
    /// Name and filters of each pipeline.
    pub(crate) filters: Vec<(String, Vec<Filter>)>,
    pub(crate) repeats: u64,
    /// Columns whose values form groups of documents, which are scored by themselves.
    pub(crate) group_by: Vec<String>,
    pub(crate) version: String,
    /// Cognitive level.
    pub(crate) level: Option<Level>,
    /// Name that tasks share whose scores are standardised together.
    pub(crate) siblings: Option<String>,
}

/// Most repeats and examples.
const MOST: u64 = 10_000;

/// Fields of one mapping; each is taken once, what is left is unknown.
struct Fields<'a> {
    map: Map<String, Value>,
    /// Where the mapping stands, e.g. "fewshot_config.".
    place: &'a str,
    /// Known fields: those that were taken, in the mapping or not.
    known: Vec<String>,
}

impl Fields<'_> {
    fn take(&mut self, key: &str) -> Result<Option<Value>, String> {
        self.known.push(key.to_owned());
        let value = self.map.remove(key).filter(|value| !value.is_null());
        if let Some(function) = value.as_ref().and_then(|value| value.get(FUNCTION)) {
            return Err(format!(
                "{}{key} is the Python function {}, and Python functions are not supported; wanted a column \
                 or a template: write the prepared columns into the data, and name them",
                self.place,
                function.as_str().unwrap_or_default()
            ));
        }
        Ok(value)
    }

    fn wrong<T>(&self, key: &str, wanted: &str, found: &Value) -> Result<T, String> {
        Err(format!("{}{key}: wanted {wanted}, found {found}", self.place))
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        match self.take(key)? {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => self.wrong(key, "a text", &other),
        }
    }

    fn number(&mut self, key: &str, most: u64) -> Result<Option<u64>, String> {
        match self.take(key)? {
            None => Ok(None),
            Some(value) => match value.as_u64().filter(|n| *n <= most) {
                Some(n) => Ok(Some(n)),
                None => self.wrong(key, &format!("a whole number up to {most}"), &value),
            },
        }
    }

    fn float(&mut self, key: &str) -> Result<Option<f64>, String> {
        match self.take(key)? {
            None => Ok(None),
            Some(value) => match value.as_f64().or_else(|| value.as_str()?.parse().ok()) {
                Some(n) => Ok(Some(n)),
                None => self.wrong(key, "a number", &value),
            },
        }
    }

    fn source(&mut self, key: &str) -> Result<Option<Source>, String> {
        Ok(self.take(key)?.map(|value| match value {
            Value::String(text) => Source::Text(text),
            // The values of a mapping, whose keys are for readers.
            Value::Object(map) => {
                Source::Fixed(Value::Array(map.into_iter().map(|(_, value)| value).collect()))
            }
            value => Source::Fixed(value),
        }))
    }

    fn mapping(&mut self, key: &str) -> Result<Map<String, Value>, String> {
        match self.take(key)? {
            None => Ok(Map::new()),
            Some(Value::Object(map)) => Ok(map),
            Some(other) => self.wrong(key, "a mapping", &other),
        }
    }

    fn refuse(&mut self, key: &str, why: &str) -> Result<(), String> {
        match self.take(key)? {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(_) => Err(format!("{}{key}: {why}", self.place)),
        }
    }

    fn end(self) -> Result<(), String> {
        match self.map.keys().next() {
            None => Ok(()),
            Some(key) => {
                let near = did_you_mean(key, self.known.iter().map(String::as_str));
                Err(format!("{}{key}: unknown field of a task{near}", self.place))
            }
        }
    }
}

impl TaskConfig {
    /// The task of a mapping; `path` is where it was read.
    pub(crate) fn new(map: Map<String, Value>, path: &Path) -> Result<TaskConfig, TaskError> {
        let name = match map.get("task") {
            Some(Value::String(name)) => name.clone(),
            _ => path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default(),
        };
        TaskConfig::read(name.clone(), map)
            .map_err(|what| TaskError::File { path: path.into(), what: format!("task {name}: {what}") })
    }

    fn read(name: String, map: Map<String, Value>) -> Result<TaskConfig, String> {
        let mut fields = Fields { map, place: "", known: Vec::new() };
        for ignored in ["task", "task_alias", "tag", "group", "should_decontaminate"] {
            fields.map.remove(ignored);
        }
        fields.map.remove("doc_to_decontamination_query");
        fields.refuse("custom_dataset", "wanted files (dataset_kwargs.data_files)")?;
        fields.refuse("process_docs", "wanted columns that need no preparation")?;
        fields.refuse("process_results", "wanted metrics of metric_list")?;
        fields.refuse("use_prompt", "wanted doc_to_text and doc_to_target")?;
        fields.refuse("unsafe_code", "generated code is not run by tasks; use bessemer metric pass-at-k")?;
        fields.refuse("doc_to_image", "wanted text only")?;
        fields.refuse("doc_to_audio", "wanted text only")?;
        let metadata = fields.map.remove("metadata").unwrap_or_default();
        let version = metadata.get("version").map(crate::python::display).unwrap_or_else(|| "none".into());
        let mut kwargs =
            Fields { map: fields.mapping("dataset_kwargs")?, place: "dataset_kwargs.", known: Vec::new() };
        let data_files = kwargs.take("data_files")?;
        kwargs.map.remove("trust_remote_code");
        kwargs.map.remove("data_dir");
        kwargs.end()?;
        let output = fields.text("output_type")?.unwrap_or_else(|| "generate_until".into());
        let output = OutputType::of(&output)?;
        let parts = Parts {
            text: fields.source("doc_to_text")?.unwrap_or_else(|| Source::Text(String::new())),
            informed: fields.source("doc_to_text_with_knowledge")?,
            target: fields.source("doc_to_target")?.ok_or("wanted doc_to_target")?,
            choice: fields.source("doc_to_choice")?,
            prefix: fields.text("gen_prefix")?,
            target_delimiter: fields.text("target_delimiter")?.unwrap_or_else(|| " ".into()),
            fewshot_delimiter: fields.text("fewshot_delimiter")?.unwrap_or_else(|| "\n\n".into()),
        };
        if output == OutputType::MultipleChoice && parts.choice.is_none() {
            return Err("output_type multiple_choice: wanted doc_to_choice".into());
        }
        let fewshot_split = fields.text("fewshot_split")?;
        let mut fewshot =
            Fields { map: fields.mapping("fewshot_config")?, place: "fewshot_config.", known: Vec::new() };
        fewshot.refuse("process_docs", "wanted columns that need no preparation")?;
        let fewshot_parts = Parts {
            text: fewshot.source("doc_to_text")?.unwrap_or_else(|| parts.text.clone()),
            informed: None,
            target: fewshot.source("doc_to_target")?.unwrap_or_else(|| parts.target.clone()),
            choice: fewshot.source("doc_to_choice")?.or_else(|| parts.choice.clone()),
            prefix: fewshot.text("gen_prefix")?.or_else(|| parts.prefix.clone()),
            target_delimiter: fewshot
                .text("target_delimiter")?
                .unwrap_or_else(|| parts.target_delimiter.clone()),
            fewshot_delimiter: fewshot
                .text("fewshot_delimiter")?
                .unwrap_or_else(|| parts.fewshot_delimiter.clone()),
        };
        let fewshot_sampling = match fewshot.text("sampler")?.as_deref() {
            None | Some("default") => Sampling::Random,
            Some("first_n") => Sampling::First,
            Some(other) => {
                return Err(format!("fewshot_config.sampler: wanted default or first_n, found {other}"));
            }
        };
        let fewshot_samples = match fewshot.take("samples")? {
            None => None,
            Some(list) => Some(
                serde_json::from_value(list)
                    .map_err(|e| format!("fewshot_config.samples: wanted mappings: {e}"))?,
            ),
        };
        let split = fewshot.text("split")?.or(fewshot_split);
        fewshot.refuse("fewshot_indices", "wanted a split that holds the examples alone")?;
        fewshot.end()?;
        let generation = Generation::read(fields.mapping("generation_kwargs")?, &parts.fewshot_delimiter)?;
        let metrics = Metric::list(fields.take("metric_list")?, output)?;
        let contrasts = metrics.iter().any(|metric| metric.kind == MetricKind::SelfContrast);
        if contrasts != parts.informed.is_some() {
            return Err(
                "wanted doc_to_text_with_knowledge (the question with what the answer needs) and the metric \
                        self_contrast together, found one of them"
                    .into(),
            );
        }
        let level = match fields.text("level")? {
            None => None,
            Some(name) => Some(Level::ALL.into_iter().find(|level| level.name() == name).ok_or_else(|| {
                format!("level: wanted KM, KU, KA or KC (memorization, understanding, applying, creating), found {name}")
            })?),
        };
        let config = TaskConfig {
            name,
            dataset_path: fields.text("dataset_path")?,
            dataset_name: fields.text("dataset_name")?,
            data_files,
            training_split: fields.text("training_split")?,
            validation_split: fields.text("validation_split")?,
            test_split: fields.text("test_split")?,
            fewshot_split: split,
            fewshot_sampling,
            fewshot_samples,
            num_fewshot: fields.number("num_fewshot", MOST)?.unwrap_or(0) as usize,
            description: fields.text("description")?.unwrap_or_default(),
            parts,
            fewshot_parts,
            output,
            generation,
            metrics,
            filters: Filter::pipelines(fields.take("filter_list")?)?,
            repeats: fields.number("repeats", MOST)?.unwrap_or(1).max(1),
            group_by: columns(fields.take("group_by")?)?,
            version,
            level,
            siblings: fields.text("siblings")?,
        };
        fields.end()?;
        Ok(config)
    }
}

impl Generation {
    fn read(map: Map<String, Value>, delimiter: &str) -> Result<Generation, String> {
        let mut fields = Fields { map, place: "generation_kwargs.", known: Vec::new() };
        let until = match fields.take("until")? {
            None => vec![delimiter.to_owned()],
            Some(Value::String(one)) => vec![one],
            Some(list) => serde_json::from_value(list)
                .map_err(|e| format!("generation_kwargs.until: wanted texts: {e}"))?,
        };
        let mut max_tokens = None;
        for key in ["max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"] {
            let value = fields.number(key, 1 << 32)?;
            max_tokens = max_tokens.or(value);
        }
        let samples = fields.take("do_sample")?;
        let temperature = fields.float("temperature")?.unwrap_or(0.0);
        let generation = Generation {
            until: until.into_iter().filter(|stop: &String| !stop.is_empty()).collect(),
            max_tokens: max_tokens.unwrap_or(256),
            temperature: match samples {
                Some(Value::Bool(false)) => 0.0,
                Some(Value::Bool(true)) if temperature == 0.0 => 1.0,
                _ => temperature,
            },
            top_k: fields.number("top_k", 1 << 32)?.unwrap_or(0),
            top_p: fields.float("top_p")?.unwrap_or(1.0),
        };
        fields.end()?;
        Ok(generation)
    }
}
