//! The corpus plan on a Ballista cluster: scheduler, executors and client from the same program.
//!
//! A [`Plan`](bessemer_dataflow::Plan) is maps over the rows of a source, and annotations: side plans on a few columns, whose results
//! are joined back. On a cluster the source is read in parts. Rows stay in files of their part, in a folder that every executor
//! sees; only what a side plan needs travels, in envelopes, through Ballista's shuffles. Every unit is worked off by the
//! embedded executor, and comes in the order that it would have there, so the result has the same bytes.
//!
//! Ballista brings what the project does not write itself: scheduling, shuffles, signs of life, doing a dead executor's work again.
//! It is opt-in (feature `cluster`) for its time to compile; without the feature the functions here say so.

mod contract;
mod corpus;
mod error;

#[cfg(feature = "cluster")]
mod envelope;
#[cfg(feature = "cluster")]
mod node;
#[cfg(feature = "cluster")]
mod parts;
#[cfg(feature = "cluster")]
mod process;
#[cfg(feature = "cluster")]
mod run;
#[cfg(feature = "cluster")]
mod step;
#[cfg(feature = "cluster")]
mod units;

pub use contract::{ClusterRun, ExecutorOptions, Parts, Planner};
pub use corpus::{ClusterEngine, CorpusPlanner};
pub use error::Error;

use bessemer_dataflow::Sink;
use std::path::Path;
use std::sync::Arc;

/// Whether the program was built with the cluster.
pub const BUILT: bool = cfg!(feature = "cluster");

/// Runs a plan on a cluster; the sink gets every row, in the plan's order, on the calling thread.
///
/// # Errors
/// An unreachable scheduler, a plan that moves rows outside of annotations, an error of a step on an executor;
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

/// Serves as the scheduler of a cluster at `listen` (IP:PORT) until the process is told to end.
///
/// # Errors
/// An address that is none or taken; [`Error::NotBuilt`] without the feature.
pub fn serve_scheduler(listen: &str, planner: Arc<dyn Planner>, spill: &Path) -> Result<(), Error> {
    #[cfg(feature = "cluster")]
    {
        let workshop: Arc<dyn node::Workshop> = Arc::new(step::PlanWorkshop::new(planner, spill));
        process::scheduler(listen, &workshop)
    }
    #[cfg(not(feature = "cluster"))]
    {
        let _ = (listen, planner, spill);
        Err(Error::NotBuilt)
    }
}

/// Works for a scheduler until the process is told to end.
///
/// # Errors
/// An address that is none or taken, a scheduler that does not answer; [`Error::NotBuilt`] without the feature.
pub fn serve_executor(options: &ExecutorOptions, planner: Arc<dyn Planner>) -> Result<(), Error> {
    #[cfg(feature = "cluster")]
    {
        process::reachable(&options.scheduler, std::time::Duration::from_secs(5))?;
        let spill = options.work_dir.join("spill");
        let workshop: Arc<dyn node::Workshop> = Arc::new(step::PlanWorkshop::new(planner, &spill));
        process::executor(options, &workshop)
    }
    #[cfg(not(feature = "cluster"))]
    {
        let _ = (options, planner);
        Err(Error::NotBuilt)
    }
}
