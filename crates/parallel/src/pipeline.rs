//! How the stages of a pipeline are made and in which order they work: the checked part of
//! [`ParallelConfig`] that says so.

use crate::config::{FillChoice, ParallelConfig, Stage};
use crate::error::ParallelError;
use crate::plan::Plan;
use bessemer_arch::{Model, Span};
use bessemer_schedule::{Kind, Limits, Program, ScheduleError, Shape, generate, parse, verify};

/// Which schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// One that has a generator.
    Kind(Kind),
    /// One that stands in a file of this name.
    File(String),
}

/// A pipeline.
#[derive(Debug, Clone, PartialEq)]
pub struct Pipeline {
    /// Which schedule.
    pub schedule: Schedule,
    /// Chunks of a rank; none: as many as the kind has by its nature.
    pub chunks: Option<usize>,
    /// Layers of each stage; empty: balanced by FLOPs.
    pub layers: Vec<usize>,
    /// `zb-auto`: most live activations of a rank, in those of one micro-batch.
    pub memory_limit: Option<f64>,
    /// What is done while it waits.
    pub fill: FillChoice,
}

impl Pipeline {
    /// No pipeline: one stage, whose micro-batches go forward and backward one after the other.
    pub fn none() -> Pipeline {
        Pipeline {
            schedule: Schedule::Kind(Kind::OneFOneB),
            chunks: None,
            layers: Vec::new(),
            memory_limit: None,
            fill: FillChoice::None,
        }
    }

    /// Reads the recipe's keys.
    ///
    /// # Errors
    /// A schedule that is neither a kind nor looks like a file, or what cannot go with a pipeline; with what would do.
    pub(crate) fn new(config: &ParallelConfig) -> Result<Pipeline, ParallelError> {
        let schedule = match config.schedule.parse::<Kind>() {
            Ok(kind) => Schedule::Kind(kind),
            Err(_) if config.schedule.contains(['.', '/']) => Schedule::File(config.schedule.clone()),
            Err(e) => {
                return Err(ParallelError::Layout(format!(
                    "parallel.schedule: {e}; or the name of a file with a '.' in it"
                )));
            }
        };
        if config.pipeline <= 1 {
            return Ok(Pipeline::none());
        }
        if config.stage >= Stage::Zero2 {
            return Err(ParallelError::Layout(format!(
                "parallel.pipeline = {} with stage {:?}: gradients{} would travel with every micro-batch through every \
                 stage, many times the traffic of the pipeline itself; take stage \"zero1\", which cuts the optimizer's \
                 state, or \"ddp\"",
                config.pipeline,
                format!("{:?}", config.stage).to_lowercase(),
                if config.stage == Stage::Zero3 { " and parameters" } else { "" }
            )));
        }
        Ok(Pipeline {
            schedule,
            chunks: (config.chunks > 0).then_some(config.chunks as usize),
            layers: config.stages.iter().map(|l| *l as usize).collect(),
            memory_limit: (config.memory_limit > 0.0).then_some(config.memory_limit),
            fill: config.fill,
        })
    }

    /// Updates' worth of micro-batches that a program covers: several where weights are updated while micro-batches are
    /// under way.
    pub fn asynchronous(&self) -> bool {
        matches!(self.schedule, Schedule::Kind(kind) if kind.asynchronous())
    }

    /// The schedule's name.
    pub fn name(&self) -> &str {
        match &self.schedule {
            Schedule::Kind(kind) => kind.name(),
            Schedule::File(name) => name,
        }
    }
}

impl Plan {
    /// The program of `updates` updates of `micro_batches` micro-batches each, generated or read from `text` (that of the
    /// plan's file), and verified.
    ///
    /// # Errors
    /// A schedule that does not fit the ranks and micro-batches, with what would.
    pub fn program(
        &self,
        micro_batches: usize,
        updates: usize,
        text: Option<&str>,
    ) -> Result<Program, ParallelError> {
        let program = match (&self.pipe.schedule, text) {
            (Schedule::Kind(kind), _) => generate(*kind, &self.schedule_shape(*kind, micro_batches, updates))
                .map_err(|e| self.advise(*kind, micro_batches, e))?,
            (Schedule::File(_), Some(text)) => parse(text)?,
            (Schedule::File(name), None) => {
                return Err(ParallelError::Layout(format!("the schedule in file {name:?} was not read")));
            }
        };
        let differ = |what: &str, wanted: usize, found: usize, advice: &str| {
            Err(ParallelError::Layout(format!(
                "schedule {:?} is for {found} {what}, wanted {wanted}: {advice}",
                program.name
            )))
        };
        if program.ranks() != self.pipeline() {
            return differ(
                "pipeline ranks",
                self.pipeline(),
                program.ranks(),
                "change parallel.pipeline or the file",
            );
        }
        if program.updates != updates {
            return differ(
                "updates",
                updates,
                program.updates,
                "take a schedule that has a generator, or change the file",
            );
        }
        if program.micro_batches() != micro_batches * updates {
            let advice = "change train.micro_batch or train.batch_tokens, or the file";
            return differ("micro-batches", micro_batches * updates, program.micro_batches(), advice);
        }
        verify(&program, &Limits::default())?;
        Ok(program)
    }

    fn schedule_shape(&self, kind: Kind, micro_batches: usize, updates: usize) -> Shape {
        Shape {
            chunks: self.pipe.chunks,
            update_every: kind.asynchronous().then_some(micro_batches),
            memory_limit: self.pipe.memory_limit,
            ..Shape::new(self.pipeline(), micro_batches * updates)
        }
    }

    /// A schedule's refusal in the words of the recipe, with numbers of micro-batches that would do.
    fn advise(&self, kind: Kind, micro_batches: usize, e: ScheduleError) -> ParallelError {
        let fits = |m: usize| generate(kind, &self.schedule_shape(kind, m, 1)).is_ok();
        let most = 4 * self.pipeline().max(micro_batches).min(256);
        let fitting: Vec<String> = (1..=most).filter(|m| fits(*m)).take(4).map(|m| m.to_string()).collect();
        let advice = match fitting.is_empty() {
            true => "take another parallel.schedule".to_owned(),
            false => format!(
                "with parallel.schedule = {:?} on {} pipeline ranks an update can have {}, ... micro-batches: change \
                 train.micro_batch or train.batch_tokens",
                kind.name(),
                self.pipeline(),
                fitting.join(", ")
            ),
        };
        ParallelError::Layout(format!("{e} (an update has {micro_batches} micro-batches; {advice})"))
    }

    /// What of the model each stage is.
    ///
    /// # Errors
    /// More stages than the model has layers for, or layers of stages that do not add up.
    pub fn spans(&self, model: &Model, stages: usize) -> Result<Vec<Span>, ParallelError> {
        let layers = &self.pipe.layers;
        let wrong = |text: String| ParallelError::Layout(text);
        if layers.is_empty() {
            return model.split(stages).map_err(|e| wrong(e.to_string()));
        }
        if layers.len() != stages {
            return Err(wrong(format!(
                "parallel.stages = {layers:?} has {} stages, wanted {stages} ({} pipeline ranks, schedule {:?}): give as \
                 many, or none for a balanced split",
                layers.len(),
                self.pipeline(),
                self.pipe.name()
            )));
        }
        model.split_layers(layers).map_err(|e| wrong(format!("parallel.stages: {e}")))
    }
}
