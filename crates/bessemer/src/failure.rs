//! How a command fails: a message for people and an exit code for scripts.

use bessemer_kernels_cpu::memory;
use bessemer_launch::ProcessFailure;
use bessemer_measure::MeasureError;
use bessemer_planner::PlannerError;
use std::fmt::Display;

/// Exit codes, as `bessemer --help` and docs/commands.md list them.
pub(crate) mod code {
    /// The reader of the output left early, which is no error.
    pub(crate) const DONE: u8 = 0;
    /// Something went wrong outside of the command line and the recipe: a file, the disk, another process, the training.
    pub(crate) const FAILED: u8 = 1;
    /// The command line is wrong. (clap uses the same.)
    pub(crate) const USAGE: u8 = 2;
    /// A defect of the program: a panic. (`EX_SOFTWARE` of sysexits.h)
    pub(crate) const BUG: u8 = 70;
    /// Stopped as asked; the state is saved and the same command goes on.
    pub(crate) const CONTINUE: u8 = 75;
    /// A device of this host reports errors: the same command may go on elsewhere.
    pub(crate) const OTHER_HOST: u8 = 76;
    /// Numbers cannot be confirmed on these hosts: the same command may go on with its ranks elsewhere.
    pub(crate) const RERUN: u8 = 77;
    /// The recipe is wrong, or what it asks for does not fit into memory: trying again will not help.
    pub(crate) const RECIPE: u8 = 78;
}

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    /// For the shell.
    pub code: u8,
    /// For people.
    pub message: String,
}

impl Failure {
    /// A plain failure.
    pub fn new(message: impl Display) -> Failure {
        Failure { code: code::FAILED, message: message.to_string() }
    }

    /// A defect of the program, whose message a panic has printed.
    pub(crate) fn panicked() -> Failure {
        let message = "internal error, described above; please report it with that text (saved files are \
                       intact)";
        Failure { code: code::BUG, message: message.into() }
    }

    /// A command line that asks for something that cannot be.
    pub fn usage(message: impl Display) -> Failure {
        Failure { code: code::USAGE, message: message.to_string() }
    }
}

impl From<bessemer_recipe::RecipeError> for Failure {
    fn from(e: bessemer_recipe::RecipeError) -> Failure {
        Failure { code: code::RECIPE, message: e.to_string() }
    }
}

impl From<bessemer_train::TrainError> for Failure {
    fn from(e: bessemer_train::TrainError) -> Failure {
        use bessemer_train::TrainError;
        let memory = matches!(e, TrainError::Memory(_)) || e.is_out_of_memory();
        let code = match &e {
            _ if memory => code::RECIPE,
            TrainError::Recipe(_) => code::RECIPE,
            TrainError::BadHost { own: true, .. } => code::OTHER_HOST,
            TrainError::BadHost { own: false, .. } | TrainError::StartAgain { .. } => code::CONTINUE,
            TrainError::Disambiguate { .. } => code::RERUN,
            _ => code::FAILED,
        };
        // Users look for memory that a limit keeps from them.
        let bound = match memory::available().bound {
            bound if memory && bound != memory::Bound::System => format!(" (the limit is that of {bound})"),
            _ => String::new(),
        };
        Failure { code, message: format!("{e}{bound}") }
    }
}

impl From<ProcessFailure> for Failure {
    fn from(ProcessFailure { code, message }: ProcessFailure) -> Failure {
        Failure { code, message }
    }
}

impl From<Failure> for ProcessFailure {
    fn from(Failure { code, message }: Failure) -> ProcessFailure {
        ProcessFailure { code, message }
    }
}

impl From<MeasureError> for Failure {
    fn from(e: MeasureError) -> Failure {
        match e {
            MeasureError::Request(_) => Failure::usage(e),
            MeasureError::Failed(_) => Failure::new(e),
            MeasureError::Train(e) => e.into(),
        }
    }
}

impl From<PlannerError> for Failure {
    fn from(e: PlannerError) -> Failure {
        match e {
            PlannerError::Request(_) => Failure::usage(e),
            PlannerError::Recipe(message) => Failure { code: code::RECIPE, message },
            PlannerError::Failed(_) => Failure::new(e),
            PlannerError::Train(e) => e.into(),
        }
    }
}

impl From<bessemer_corpus::Error> for Failure {
    fn from(e: bessemer_corpus::Error) -> Failure {
        let code = if is_config(&e) { code::RECIPE } else { code::FAILED };
        Failure { code, message: e.to_string() }
    }
}

fn is_config(e: &bessemer_corpus::Error) -> bool {
    match e {
        bessemer_corpus::Error::Config(_) => true,
        bessemer_corpus::Error::OfSource { error, .. } => is_config(error),
        _ => false,
    }
}

/// Outside of recipes, whose own check finds them, settings of models and of sampling come from flags.
impl From<bessemer_arch::ArchError> for Failure {
    fn from(e: bessemer_arch::ArchError) -> Failure {
        Failure::usage(e)
    }
}

/// Names of tasks come from flags, and the files that they name.
impl From<bessemer_tasks::TaskError> for Failure {
    fn from(e: bessemer_tasks::TaskError) -> Failure {
        match e {
            bessemer_tasks::TaskError::Unknown(_) => Failure::usage(e),
            _ => Failure::new(e),
        }
    }
}

impl From<bessemer_eval::EvalError> for Failure {
    fn from(e: bessemer_eval::EvalError) -> Failure {
        match e {
            bessemer_eval::EvalError::Setting(_) => Failure::usage(e),
            _ => Failure::new(e),
        }
    }
}

/// Buffers of a model that is only read: too few bytes for it are what they are for a recipe.
impl From<bessemer_tensor::TensorError> for Failure {
    fn from(e: bessemer_tensor::TensorError) -> Failure {
        bessemer_train::TrainError::from(e).into()
    }
}

impl From<bessemer_runtime::ModelError> for Failure {
    fn from(e: bessemer_runtime::ModelError) -> Failure {
        bessemer_train::TrainError::from(e).into()
    }
}

impl From<bessemer_optim::OptimError> for Failure {
    fn from(e: bessemer_optim::OptimError) -> Failure {
        bessemer_train::TrainError::from(e).into()
    }
}

impl From<bessemer_parallel::ParallelError> for Failure {
    fn from(e: bessemer_parallel::ParallelError) -> Failure {
        bessemer_train::TrainError::from(e).into()
    }
}

impl From<bessemer_parallel::MemoryShortage> for Failure {
    fn from(e: bessemer_parallel::MemoryShortage) -> Failure {
        bessemer_train::TrainError::from(e).into()
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        // `bessemer ... | head` has got all that it wanted.
        if e.kind() == std::io::ErrorKind::BrokenPipe {
            return Failure { code: code::DONE, message: String::new() };
        }
        // A disk that cannot read what it wrote; a network file system whose server is gone.
        let device = e.raw_os_error().is_some_and(|number| [EIO, EREMOTEIO].contains(&number));
        Failure { code: if device { code::OTHER_HOST } else { code::FAILED }, message: e.to_string() }
    }
}

/// Errors of devices, of Linux.
const EIO: i32 = 5;
const EREMOTEIO: i32 = 121;

macro_rules! plain {
    ($($t:ty),* $(,)?) => {
        $(impl From<$t> for Failure {
            fn from(e: $t) -> Failure {
                Failure::new(e)
            }
        })*
    };
}
plain!(
    serde_json::Error,
    bessemer_checkpoint::CheckpointError,
    bessemer_kernels_cpu::CpuError,
    bessemer_loader::LoadError,
    bessemer_runlog::RunLogError,
    bessemer_score::ScoreError,
    bessemer_shards::ShardError,
    bessemer_tokenizer::TokenizerError,
);

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_train::TrainError;
    use bessemer_units::Bytes;

    /// One error of every class that a command can end with, and its code.
    #[test]
    fn each_class_of_errors_has_its_code() {
        let none = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let no_memory = || bessemer_tensor::TensorError::OutOfMemory {
            label: "weights".into(),
            wanted: Bytes(1),
            reason: "too many".into(),
            largest: String::new(),
        };
        let recipe = bessemer_recipe::parse_recipe("r", "[train]\nsteps = -1\n", &[]).unwrap_err();
        let config = || bessemer_corpus::Error::Config("corpus.memory".into());
        let of_source = bessemer_corpus::Error::OfSource { name: "a".into(), error: Box::new(config()) };
        let model = bessemer_arch::ModelConfig { heads: Some(5), ..Default::default() };
        let memory = TrainError::from(bessemer_parallel::MemoryShortage::new(Bytes(2), Bytes(1), &[]));
        let bad_host = |own| {
            let (what, hosts) = (String::new(), String::new());
            Failure::from(TrainError::BadHost { step: 1, what, hosts, own })
        };
        let cases: Vec<(Failure, u8)> = vec![
            (Failure::usage("--x"), code::USAGE),
            (model.check().unwrap_err().into(), code::USAGE),
            (bessemer_eval::EvalError::Setting("top_p".into()).into(), code::USAGE),
            (recipe.into(), code::RECIPE),
            (config().into(), code::RECIPE),
            (of_source.into(), code::RECIPE),
            (TrainError::Recipe("batch".into()).into(), code::RECIPE),
            (memory.into(), code::RECIPE),
            (no_memory().into(), code::RECIPE),
            (TrainError::from(bessemer_runtime::ModelError::from(no_memory())).into(), code::RECIPE),
            (TrainError::Diverged { step: 1, what: String::new(), healthy: None }.into(), code::FAILED),
            (bad_host(true), code::OTHER_HOST),
            (bad_host(false), code::CONTINUE),
            (TrainError::StartAgain { step: 1 }.into(), code::CONTINUE),
            (TrainError::Disambiguate { step: 1, what: String::new() }.into(), code::RERUN),
            (Failure::new("a file"), code::FAILED),
            (none().into(), code::FAILED),
            (std::io::Error::from_raw_os_error(EIO).into(), code::OTHER_HOST),
            (Failure::panicked(), code::BUG),
            (bessemer_eval::EvalError::EmptyPrompt.into(), code::FAILED),
            (std::io::Error::from(std::io::ErrorKind::BrokenPipe).into(), code::DONE),
        ];
        for (failure, wanted) in cases {
            assert_eq!(failure.code, wanted, "{failure:?}");
        }
    }

    #[test]
    fn the_page_of_commands_lists_every_code() {
        let page = include_str!("../../../docs/commands.md");
        use bessemer_supervise::{Exit, ExitClass, code as of_supervisor};
        let all = [
            (code::DONE, of_supervisor::DONE),
            (code::FAILED, 1),
            (code::USAGE, of_supervisor::USAGE),
            (code::BUG, of_supervisor::BUG),
            (code::CONTINUE, of_supervisor::AGAIN),
            (code::OTHER_HOST, of_supervisor::OTHER_HOST),
            (code::RERUN, of_supervisor::RERUN),
            (code::RECIPE, of_supervisor::CONFIG),
        ];
        for (code, supervised) in all {
            assert_eq!(i32::from(code), supervised);
            assert_eq!(page.matches(&format!("\n| {code} | ")).count(), 1, "{code}");
        }
        assert_eq!(Exit::Code(i32::from(code::FAILED)).class(), ExitClass::Failed);
    }
}
