//! Arguments of a cluster: plans by their text, addresses, folders. Compiled with and without the feature.

use bessemer_dataflow::{Result, Scan, Stage};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A source in parts, and the stages that its rows pass. Every process of a cluster makes it from the plan's text.
pub trait Parts: Send + Sync {
    /// Number of parts. Part by part, in order, they are the source.
    fn count(&self) -> usize;
    /// The rows of one part.
    fn scan(&self, part: usize) -> Result<Box<dyn Scan>>;
    /// Stages that the rows pass.
    fn stages(&self) -> &[Stage];
}

/// Makes a plan from its text, the same on every process of a cluster.
pub trait Planner: Send + Sync {
    /// Returns the plan of `text`.
    fn plan(&self, text: &str) -> Result<Arc<dyn Parts>>;
}

/// Settings of an executor.
#[derive(Debug, Clone)]
pub struct ExecutorOptions {
    /// Address of the scheduler, HOST:PORT.
    pub scheduler: String,
    /// Address that this executor listens on for rows, IP:PORT.
    pub listen: String,
    /// Tasks that it runs at once.
    pub slots: usize,
    /// Folder of shuffled rows.
    pub work_dir: PathBuf,
}

/// Settings of a run of a plan.
pub struct ClusterRun<'a> {
    /// Address of the scheduler, HOST:PORT.
    pub scheduler: &'a str,
    /// Makes the plan from its text, as every executor does.
    pub planner: Arc<dyn Planner>,
    /// The plan, as text.
    pub plan: &'a str,
    /// Folder that every executor sees under the same path, for rows between jobs. One plan only may ever use it.
    pub folder: &'a Path,
    /// Bytes of rows that a step may hold.
    pub memory: usize,
    /// Raised to end early.
    pub stop: &'a AtomicBool,
    /// Called at the beginning of each job with its name and the number of all jobs.
    pub progress: &'a dyn Fn(&str, usize),
}
