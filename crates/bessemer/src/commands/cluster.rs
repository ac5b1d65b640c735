//! `bessemer corpus cluster`: the processes of a cluster, and builds on one.

use crate::cli::ClusterCommand;
use crate::console::Console;
use crate::failure::Failure;
use bessemer_corpus_cluster::{
    BUILT, CorpusPlanner, Error, ExecutorOptions, serve_executor, serve_scheduler,
};
use std::sync::Arc;

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Address { .. } | Error::NotBuilt => Failure::usage(error.to_string()),
            other => Failure::new(other.to_string()),
        }
    }
}

/// Errors before anything is begun if the program has no cluster.
pub(crate) fn require() -> Result<(), Failure> {
    if BUILT { Ok(()) } else { Err(Error::NotBuilt.into()) }
}

pub(crate) fn run(command: &ClusterCommand, console: &mut Console) -> Result<(), Failure> {
    require()?;
    match command {
        ClusterCommand::Scheduler { listen } => {
            console.say(&format!("scheduler at {listen}; stop it with Ctrl-C"));
            Ok(serve_scheduler(listen, Arc::new(CorpusPlanner::default()), &std::env::temp_dir())?)
        }
        ClusterCommand::Executor(args) => {
            let slots = if args.slots == 0 { crate::machine::threads(0) } else { args.slots };
            console.say(&format!(
                "executor at {} for {}, {slots} steps at once; stop it with Ctrl-C",
                args.listen, args.scheduler
            ));
            let options = ExecutorOptions {
                scheduler: args.scheduler.clone(),
                listen: args.listen.clone(),
                slots,
                work_dir: args.work_dir.clone(),
            };
            Ok(serve_executor(&options, Arc::new(CorpusPlanner { access: crate::stages::access() }))?)
        }
    }
}
