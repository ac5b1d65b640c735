//! The corpus on a cluster: its plans for executors, its engine for the client.

use crate::contract::{ClusterRun, Parts, Planner};
use bessemer_corpus::{Access, Engine, RemotePlan};
use bessemer_dataflow::{Error, Result, Scan, Sink, Stage};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Makes plans of corpora from their texts.
#[derive(Debug, Clone, Default)]
pub struct CorpusPlanner {
    /// How this machine reaches object stores. It does not travel.
    pub access: Access,
}

struct CorpusParts(RemotePlan);

impl Parts for CorpusParts {
    fn count(&self) -> usize {
        self.0.count()
    }

    fn scan(&self, part: usize) -> Result<Box<dyn Scan>> {
        self.0.scan(part)
    }

    fn stages(&self) -> &[Stage] {
        self.0.stages()
    }
}

impl Planner for CorpusPlanner {
    fn plan(&self, text: &str) -> Result<Arc<dyn Parts>> {
        let plan = RemotePlan::of(text, &self.access)
            .map_err(|cause| Error::Plan { stage: "corpus".into(), problem: cause.to_string() })?;
        Ok(Arc::new(CorpusParts(plan)))
    }
}

/// Builds corpora on a cluster.
pub struct ClusterEngine<'a> {
    /// Address of the scheduler, HOST:PORT.
    pub scheduler: &'a str,
    /// How this machine reaches object stores.
    pub access: Access,
    /// Bytes of rows that a step may hold.
    pub memory: usize,
    /// Raised to end early.
    pub stop: &'a AtomicBool,
}

impl Engine for ClusterEngine<'_> {
    fn run(&self, text: &str, folder: &Path, sink: &mut dyn Sink) -> Result<()> {
        let options = ClusterRun {
            scheduler: self.scheduler,
            planner: Arc::new(CorpusPlanner { access: self.access.clone() }),
            plan: text,
            folder,
            memory: self.memory,
            stop: self.stop,
            progress: &|_, _| (),
        };
        crate::run(&options, sink).map_err(|error| match error {
            crate::Error::Plan(error) => error,
            other => Error::Plan { stage: "cluster".into(), problem: other.to_string() },
        })
    }
}
