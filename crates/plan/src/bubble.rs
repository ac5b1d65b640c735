//! What ranks of a pipeline wait while it fills and drains: the closed forms of [`bessemer_sim::formulas`].

use crate::{Layout, PipelineSchedule};
use bessemer_sim::PassTimes;
use bessemer_sim::formulas::{interleaved_bubble, zb_h1_bubble, zb_v_bubble};

/// Seconds of waiting, where the passes of all layers of a rank take these times.
pub(crate) fn bubble(layout: &Layout, times: &PassTimes) -> f64 {
    let stages = layout.pipeline;
    match layout.schedule {
        PipelineSchedule::OneFOneB => interleaved_bubble(stages, layout.chunks, times),
        PipelineSchedule::ZbH1 => zb_h1_bubble(stages, times),
        PipelineSchedule::ZbV => zb_v_bubble(stages, times),
    }
}
