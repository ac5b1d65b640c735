//! What a cluster is told: plans by their text, addresses, folders. Here with and without the feature.

use bessemer_dataflow::{Result, Scan, Stage};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A source in parts, and the stages that its rows pass: what a description's plan is on every process.
pub trait Parts: Send + Sync {
    /// Number of parts. Part by part, in order, they are the source.
    fn count(&self) -> usize;
    /// The rows of one part.
    fn scan(&self, part: usize) -> Result<Box<dyn Scan>>;
    /// What happens to them.
    fn stages(&self) -> &[Stage];
}

/// Makes a plan from its text. Every process of a cluster makes the same.
pub trait Planner: Send + Sync {
    /// The plan of `text`.
    fn plan(&self, text: &str) -> Result<Arc<dyn Parts>>;
}

/// What an executor is.
#[derive(Debug, Clone)]
pub struct ExecutorOptions {
    /// Address of the scheduler, HOST:PORT.
    pub scheduler: String,
    /// Address that this executor listens on for rows, IP:PORT; the port after it is taken for control.
    pub listen: String,
    /// Steps that it works on at once.
    pub slots: usize,
    /// Folder for rows on their way between steps.
    pub work_dir: PathBuf,
}

/// How a plan is to be run.
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
    /// Told at the beginning of each job: its name, and how many there are.
    pub progress: &'a dyn Fn(&str, usize),
}
