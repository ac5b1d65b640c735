//! The corpus plan on a Ballista cluster: scheduler, executors and client from the same program.
//!
//! A [`Plan`](bessemer_dataflow::Plan) consists of maps over the rows of a source and of side joins: side plans on a few columns, whose
//! results are joined back. On a cluster the source is read in parts. Rows stay in files of their part, in a folder that every executor
//! sees. Only the columns of a side plan travel, as shuffle blocks, through Ballista's shuffles. The local executor of
//! `dataflow` runs every task on rows in their local order, so the result has the same bytes.
//!
//! Ballista supplies scheduling, shuffles, heartbeats, and the repetition of a dead executor's tasks.
//! It is opt-in (feature `cluster`) because it compiles for long; without the feature the functions here return [`Error::NotBuilt`].
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod contract;
mod corpus;
mod error;

#[cfg(feature = "cluster")]
mod block_file;
#[cfg(feature = "cluster")]
mod node;
#[cfg(feature = "cluster")]
mod parts;
#[cfg(feature = "cluster")]
mod process;
#[cfg(feature = "cluster")]
mod run;
#[cfg(feature = "cluster")]
mod shuffle_block;
#[cfg(feature = "cluster")]
mod step;

pub use contract::{ClusterRun, ExecutorOptions, Parts, Planner};
pub use corpus::{ClusterEngine, CorpusPlanner};
pub use error::Error;

use bessemer_dataflow::Sink;
use std::path::Path;
use std::sync::Arc;

/// Whether the program was built with the cluster.
pub const BUILT: bool = cfg!(feature = "cluster");

/// Runs a plan on a cluster. The sink receives every row, in the plan's order, on the calling thread.
///
/// # Errors
/// An unreachable scheduler, a plan that moves rows outside of side joins, an error of a step on an executor;
/// [`Error::NotBuilt`] without the feature.
pub fn run(options: &ClusterRun<'_>, sink: &mut dyn Sink) -> Result<(), Error> {
    #[cfg(feature = "cluster")]
    return run::run(options, sink);
    #[cfg(not(feature = "cluster"))]
    {
        let _ = (options, sink);
        Err(Error::NotBuilt)
    }
}

/// Serves as the scheduler of a cluster at `listen` (IP:PORT) until the process is terminated.
///
/// # Errors
/// An address that is none or taken; [`Error::NotBuilt`] without the feature.
pub fn serve_scheduler(listen: &str, planner: Arc<dyn Planner>, spill: &Path) -> Result<(), Error> {
    #[cfg(feature = "cluster")]
    {
        let runner: Arc<dyn node::TaskRunner> = Arc::new(step::PlanRunner::new(planner, spill));
        process::scheduler(listen, &runner)
    }
    #[cfg(not(feature = "cluster"))]
    {
        let _ = (listen, planner, spill);
        Err(Error::NotBuilt)
    }
}

/// Executes tasks of a scheduler until the process is terminated.
///
/// # Errors
/// An address that is none or taken, a scheduler that does not answer; [`Error::NotBuilt`] without the feature.
pub fn serve_executor(options: &ExecutorOptions, planner: Arc<dyn Planner>) -> Result<(), Error> {
    #[cfg(feature = "cluster")]
    {
        process::reachable(&options.scheduler, std::time::Duration::from_secs(5))?;
        let spill = options.work_dir.join("spill");
        let runner: Arc<dyn node::TaskRunner> = Arc::new(step::PlanRunner::new(planner, &spill));
        process::executor(options, &runner)
    }
    #[cfg(not(feature = "cluster"))]
    {
        let _ = (options, planner);
        Err(Error::NotBuilt)
    }
}
