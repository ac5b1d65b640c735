//! The planner through its public functions.

#![allow(clippy::unwrap_used, reason = "tests")]

mod cost;
mod errors;
mod fit;
mod layerwise;
mod machine;
mod memory;
mod published;
mod search;
mod sharding_graph;
mod stages;
mod switches;
mod table;
mod unequal;

use bessemer_plan::{Job, Layout, Recompute, Transformer, ZeroStage};

/// GPT of 18.4 billion parameters on 256 devices.
fn job() -> Job {
    Job {
        model: Transformer::gpt(6144, 48, 40, 51_200),
        seq: 2048,
        global_batch: 1024,
        fused_attention: false,
        layout: Layout {
            tensor: 8,
            data: 8,
            pipeline: 4,
            chunks: 1,
            micro_batch: 2,
            zero: ZeroStage::Ddp,
            recompute: Recompute::Full,
            sequence: false,
            ..Layout::default()
        },
    }
}
