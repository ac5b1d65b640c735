//! Which unit of K-FAC's work stands where: a function of model, schedule and batch.

use crate::plan::{costs, wrong};
use bessemer_arch::{ParamClass, Span};
use bessemer_optim::OptimParam;
use bessemer_parallel::{Job, ParallelError};
use bessemer_sim::fill::{
    FillOptions, Filled, KfacFactor, KfacStage, Operands, fill, kfac_units, verify_fill,
};
use bessemer_tensor::Buffer;
use bessemer_units::DType;

/// Plans K-FAC's work in the bubbles of a job's program; times are floating-point operations.
///
/// # Errors
/// A program whose bubbles cannot be planned.
pub fn plan_fill(job: &Job<'_>) -> Result<Filled, ParallelError> {
    let program = job.program;
    let spans = job.plan.spans(job.model, program.stages)?;
    let costs = costs(job)?;
    let stages: Vec<KfacStage> = spans.iter().map(|span| stage(job, span)).collect();
    let units = kfac_units(program, &stages, Operands::AfterBackward).map_err(wrong)?;
    let filled = fill(program, &costs, &units, &FillOptions::default()).map_err(wrong)?;
    verify_fill(program, &units, &filled.programs).map_err(wrong)?;
    Ok(filled)
}

/// K-FAC's work of a stage, its factors in the order of the optimizer's. Costs as [`bessemer_optim::KfacUnit`] has them.
fn stage(job: &Job<'_>, span: &Span) -> KfacStage {
    let tokens = job.shape.tokens() as f64;
    let mut stage = KfacStage::default();
    for spec in span.params(job.model).iter().filter(|p| p.class() == ParamClass::Matrix) {
        let (rows, cols) = spec.matrix();
        let view = Buffer { id: u32::MAX, len: rows * cols, dtype: DType::F32 }.matrix(rows, cols);
        let blocks = OptimParam::of(job.model, spec, view, view).blocks;
        let layer = stage.precondition.len();
        for (n, outputs) in std::iter::once((cols, false)).chain(blocks.iter().map(|b| (*b, true))) {
            let n = n as f64;
            stage.factors.push(KfacFactor {
                layer,
                outputs,
                curvature: 2.0 * tokens * n * n,
                sync: 3.0 * n * n,
                invert: 8.0 / 3.0 * n.powi(3),
            });
        }
        let inputs = cols as f64;
        let direction = |o: f64| 2.0 * o * inputs * (o + inputs) + 2.0 * o * inputs;
        stage.precondition.push(blocks.iter().map(|b| direction(*b as f64)).sum());
    }
    stage
}
