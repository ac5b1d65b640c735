//! References that layouts are compared with, each computed once.

use crate::compare::Bounds;
use crate::layouts::Layout;
use crate::routed::recorded;
use crate::routes::Routes;
use crate::run::{ParityJob, Trajectory, in_process};
use crate::stale::stale_reference;
use bessemer_collectives::ThreadSettings;
use bessemer_parallel::{ParallelConfig, Stage};
use bessemer_tensor::Backend;
use bessemer_train::TrainError;
use bessemer_units::ReduceDType;
use std::sync::Arc;

/// Makes the device of a rank.
pub type MakeBackend<'a> = &'a (dyn Fn() -> Result<Box<dyn Backend>, TrainError> + Sync);

/// Reference that a layout is compared with.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// Result of the reference run.
    pub trajectory: Trajectory,
    /// How far from it a layout may be.
    pub bounds: Bounds,
    /// Choices of experts of the reference run, if the model is a mixture.
    pub routes: Option<Arc<Routes>>,
    /// With an asynchronous schedule: updates by which the oldest weights were old. Else everything reads the newest.
    pub staleness: Option<usize>,
}

/// References of any number of jobs and layouts.
pub struct References<'a> {
    settings: &'a ThreadSettings,
    backend: MakeBackend<'a>,
    made: Vec<(ParityJob, Layout, Reference)>,
}

impl<'a> References<'a> {
    /// Returns an empty collection.
    pub fn new(settings: &'a ThreadSettings, backend: MakeBackend<'a>) -> References<'a> {
        References { settings, backend, made: Vec::new() }
    }

    /// One rank with the layout's types of parameters, whose gradients do not travel; for an asynchronous schedule one process that reads as
    /// old weights.
    ///
    /// # Errors
    /// A layout that the job does not allow, or an error of a lower layer.
    pub fn of(&mut self, job: &ParityJob, layout: &Layout) -> Result<&Reference, TrainError> {
        let wanted = match layout.asynchronous() {
            true => layout.clone(),
            false => {
                let reduce_dtype = layout.parallel.reduce_dtype;
                let parallel = ParallelConfig { reduce_dtype, ..ParallelConfig::default() };
                Layout { types: layout.types, parallel, mixture: layout.mixture, ..Layout::single() }
            }
        };
        let known = self.made.iter().position(|(j, l, _)| (j, l) == (job, &wanted));
        let at = match known {
            Some(at) => at,
            None => {
                let reference = self.make(job, &wanted)?;
                self.made.push((job.clone(), wanted, reference));
                self.made.len() - 1
            }
        };
        Ok(&self.made[at].2)
    }

    fn make(&self, job: &ParityJob, layout: &Layout) -> Result<Reference, TrainError> {
        let bounds = Bounds::of(layout.types, layout.parallel.reduce_dtype);
        if !layout.asynchronous() {
            let (trajectory, routes) = match layout.mixture {
                Some(_) => {
                    let (trajectory, routes) = recorded(job, layout, self.settings, self.backend)?;
                    (trajectory, Some(Arc::new(routes)))
                }
                None => (in_process(job, layout, self.settings, self.backend)?, None),
            };
            return Ok(Reference { trajectory, bounds, routes, staleness: None });
        }
        let (trajectory, staleness) = stale_reference(&mut *(self.backend)()?, job, layout)?;
        let bounds = if layout.sums_in_order() { Bounds::EXACT } else { bounds };
        Ok(Reference { trajectory, bounds, routes: None, staleness: Some(staleness) })
    }
}

impl Layout {
    /// Whether sums between its ranks are in the order of the ranks, all in one go: no product is cut, gradients do not meet on one axis and
    /// then on another, and they travel as they are stored.
    fn sums_in_order(&self) -> bool {
        let parallel = &self.parallel;
        let one_axis =
            parallel.stage == Stage::Ddp || [0, self.data_ranks() as u64].contains(&parallel.shard);
        let exact = parallel.reduce_dtype == ReduceDType::Stored;
        parallel.tensor == 1 && parallel.context == 1 && one_axis && exact
    }
}
