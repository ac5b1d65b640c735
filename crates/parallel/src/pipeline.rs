//! Stages of a pipeline and their schedule: the checked part of [`ParallelConfig`] that configures them.

use crate::config::{ParallelConfig, Stage};
use crate::error::ParallelError;
use crate::plan::Plan;
use bessemer_arch::{Model, Span};
use bessemer_schedule::{Instruction, Kind, Limits, Program, ScheduleError, Shape, generate, parse, verify};

/// Source of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// One that has a generator.
    Kind(Kind),
    /// A schedule in a file of this name.
    File(String),
}

/// A pipeline.
#[derive(Debug, Clone, PartialEq)]
pub struct Pipeline {
    /// Source of the schedule.
    pub schedule: Schedule,
    /// Chunks of a rank; none: as many as the kind has by its nature.
    pub chunks: Option<usize>,
    /// Layers of each stage; empty: balanced by FLOPs.
    pub layers: Vec<usize>,
    /// `zb-auto`: most live activations of a rank, in those of one micro-batch.
    pub memory_limit: Option<f64>,
}

impl Pipeline {
    /// Returns no pipeline: one stage, whose micro-batches go forward and backward one after the other.
    pub fn none() -> Pipeline {
        Pipeline {
            schedule: Schedule::Kind(Kind::OneFOneB),
            chunks: None,
            layers: Vec::new(),
            memory_limit: None,
        }
    }

    /// Reads the recipe's keys.
    ///
    /// # Errors
    /// A schedule that is neither a kind nor looks like a file, or a setting that a pipeline does not support; with a remedy.
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
        Ok(Pipeline {
            schedule,
            chunks: (config.chunks > 0).then_some(config.chunks as usize),
            layers: config.stages.iter().map(|l| *l as usize).collect(),
            memory_limit: (config.memory_limit > 0.0).then_some(config.memory_limit),
        })
    }

    /// Whether a program covers several updates: weights are updated while micro-batches are in flight.
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
    /// A schedule that does not fit the ranks and micro-batches, with a remedy.
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
        self.expect_whole_passes(&program)?;
        Ok(program)
    }

    /// ZeRO-2 and ZeRO-3 keep only a part of the gradients: the output of a pass is reduced before the next layer or micro-batch
    /// writes the same memory.
    fn expect_whole_passes(&self, program: &Program) -> Result<(), ParallelError> {
        if self.pipeline() == 1 || self.stage < Stage::Zero2 || self.shard() == 1 {
            return Ok(());
        }
        let splits =
            |i: &Instruction| matches!(i, Instruction::BackwardInput(_) | Instruction::BackwardWeight(_));
        let problem = match program.lists.iter().flatten().any(splits) {
            true => {
                "splits backward passes, so gradients of a layer must be kept whole between the two parts"
            }
            false if program.updates > 1 => {
                "updates stages while micro-batches are in flight, and keeps whole older weights for them"
            }
            false => return Ok(()),
        };
        Err(ParallelError::Layout(format!(
            "parallel.data = {:?} with schedule {:?}, which {problem}; take \"zero1\", or a schedule such as \"1f1b\" or \"interleaved\"",
            format!("{:?}", self.stage).to_lowercase(),
            program.name
        )))
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

    /// The part of the model that each stage holds.
    ///
    /// # Errors
    /// More stages than the model has layers for, or layers of stages whose sum is not the model's number of layers.
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

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_optim::OptimizerChoice;

    fn config(schedule: &str, pipeline: u64) -> ParallelConfig {
        ParallelConfig { schedule: schedule.into(), pipeline, ..ParallelConfig::default() }
    }

    fn plan(config: &ParallelConfig, ranks: usize) -> Result<Plan, String> {
        let model = bessemer_arch::named("gpt2-124m").expect("a listed name");
        Plan::new(config, ranks, &model, OptimizerChoice::AdamW).map_err(|e| e.to_string())
    }

    #[test]
    fn ranks_are_shared_out_over_stages() {
        let both = ParallelConfig { stage: Stage::Zero1, tensor: 2.into(), ..config("zb-v", 3) };
        let p = plan(&both, 12).unwrap();
        assert_eq!((p.pipeline(), p.shard(), p.tensor(), p.data_ranks()), (3, 2, 2, 2));
        assert_eq!(p.summary(), "12 ranks: 1 copies x 2 shards (zero1) x pipeline 3 (zb-v) x tensor 2");
        assert!(!p.keeps_model() && p.cuts_state() && !p.pipe.asynchronous());
        let program = p.program(6, 1, None).unwrap();
        assert_eq!((program.ranks(), program.stages, program.micro_batches()), (3, 6, 6));
        for rank in 0..12 {
            assert_eq!(p.rank(p.coord(rank)), rank);
        }
    }

    #[test]
    fn what_does_not_fit_a_pipeline_says_what_would() {
        let e = plan(&config("1f1b", 3), 8).unwrap_err();
        assert!(
            e.contains("parallel.pipeline = 3 does not divide 8") && e.contains("a multiple of 3"),
            "{e}"
        );
        let e = plan(&config("1f2b", 2), 2).unwrap_err();
        assert!(e.contains("1f2b") && e.contains("zb-h1"), "{e}");
        for (schedule, updates, words) in
            [("zb-h1", 1, "splits backward passes"), ("pipedream-2bw", 2, "keeps whole older weights")]
        {
            let zero3 = ParallelConfig { stage: Stage::Zero3, ..config(schedule, 2) };
            let e = plan(&zero3, 4).unwrap().program(4, updates, None).unwrap_err().to_string();
            assert!(e.contains(words) && e.contains("take \"zero1\""), "{e}");
        }
        let few = plan(&config("dualpipe", 4), 4).unwrap().program(6, 1, None).unwrap_err().to_string();
        assert!(few.contains("an update has 6 micro-batches") && few.contains("can have 8, 10"), "{few}");
        let odd = plan(&config("interleaved", 4), 4).unwrap().program(6, 1, None).unwrap_err().to_string();
        assert!(odd.contains("can have 4, 8, 12"), "{odd}");
        let model = bessemer_arch::named("gpt2-124m").expect("a listed name");
        let given = ParallelConfig { stages: vec![6, 6], ..config("zb-v", 2) };
        let e = plan(&given, 2).unwrap().spans(&model, 4).unwrap_err().to_string();
        assert!(e.contains("has 2 stages, wanted 4"), "{e}");
        let given = ParallelConfig { stages: vec![6, 7], ..config("1f1b", 2) };
        let e = plan(&given, 2).unwrap().spans(&model, 2).unwrap_err().to_string();
        assert!(e.contains("parallel.stages") && e.contains("add up to 12"), "{e}");
        let file = plan(&config("mine.sched", 2), 2).unwrap();
        assert_eq!(file.pipe.schedule, Schedule::File("mine.sched".into()));
    }

    #[test]
    fn a_schedule_file_must_be_for_the_job() {
        let file = plan(&config("mine.sched", 2), 2).unwrap();
        let text = plan(&config("zb-h1", 2), 2).unwrap().program(4, 1, None).unwrap().to_text();
        assert_eq!(file.program(4, 1, Some(&text)).unwrap().micro_batches(), 4);
        let e = file.program(6, 1, Some(&text)).unwrap_err().to_string();
        assert!(e.contains("is for 4 micro-batches, wanted 6"), "{e}");
        let e = file.program(4, 1, None).unwrap_err().to_string();
        assert!(e.contains("was not read"), "{e}");
    }
}
