//! How a command fails: a message for people and an exit code for scripts.

use std::fmt::Display;

/// Exit codes, as `bessemer --help` and docs/commands.md list them.
pub(crate) mod code {
    /// Nothing is wrong: the reader of the output left early.
    pub(crate) const DONE: u8 = 0;
    /// Something went wrong that is not one of the others.
    pub(crate) const FAILED: u8 = 1;
    /// The command line is wrong. (clap uses the same.)
    pub(crate) const USAGE: u8 = 2;
    /// Stopped as asked; the state is saved and the same command goes on.
    pub(crate) const CONTINUE: u8 = 75;
    /// The recipe is wrong: trying again will not help.
    pub(crate) const RECIPE: u8 = 78;
}

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    /// For the shell.
    pub(crate) code: u8,
    /// For people.
    pub(crate) message: String,
}

impl Failure {
    /// A plain failure.
    pub(crate) fn new(message: impl Display) -> Failure {
        Failure { code: code::FAILED, message: message.to_string() }
    }

    /// A command line that asks for something that cannot be.
    pub(crate) fn usage(message: impl Display) -> Failure {
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
        let code = match e {
            bessemer_train::TrainError::Recipe(_) | bessemer_train::TrainError::Memory { .. } => code::RECIPE,
            _ => code::FAILED,
        };
        Failure { code, message: e.to_string() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        // `bessemer ... | head` has got all that it wanted.
        if e.kind() == std::io::ErrorKind::BrokenPipe {
            return Failure { code: code::DONE, message: String::new() };
        }
        Failure::new(e)
    }
}

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
    bessemer_arch::ArchError,
    bessemer_checkpoint::CheckpointError,
    bessemer_corpus::Error,
    bessemer_eval::EvalError,
    bessemer_kernels_cpu::CpuError,
    bessemer_loader::LoadError,
    bessemer_model::ModelError,
    bessemer_optim::OptimError,
    bessemer_runlog::RunLogError,
    bessemer_score::ScoreError,
    bessemer_shards::ShardError,
    bessemer_tensor::TensorError,
    bessemer_tokenizer::TokenizerError,
);
