//! What a plan of the layout predicted of a step, and what steps then took: the same items in both.

use serde::{Deserialize, Serialize};

/// The layout of the run was planned: once for each plan that is made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Plan {
    /// Ranks that it is for.
    pub ranks: u64,
    /// Machine that it is for, in words.
    pub machine: String,
    /// The layout in words.
    pub layout: String,
    /// Keys that the plan chose, as `--set` takes them.
    pub keys: Vec<String>,
    /// Prediction of a step.
    pub predicted: StepCosts,
    /// Bytes that a rank may hold.
    pub memory_limit: u64,
    /// Layouts whose time was predicted.
    pub evaluated: u64,
    /// Other layouts, the fastest first, with what rules them out.
    pub others: Vec<OtherLayout>,
}

/// A layout that a plan did not choose.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OtherLayout {
    /// The layout in words.
    pub layout: String,
    /// Reason against it, in words.
    pub reason: String,
    /// Prediction of a step.
    pub predicted: StepCosts,
}

/// The first steps of a planned run were measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// Steps finished.
    pub step: u64,
    /// Steps whose time was taken.
    pub steps: u64,
    /// Of these, steps whose time was taken by item.
    pub watched: u64,
    /// Costs of a step.
    pub costs: StepCosts,
}

/// Costs of a step, by item.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepCosts {
    /// Seconds of a step; measured: the median step.
    #[serde(with = "crate::number")]
    pub seconds: f64,
    /// Seconds by item; measured: mean over the ranks.
    pub time: Vec<CostItem>,
    /// Bytes by class on the rank that holds most.
    pub memory: Vec<CostItem>,
    /// Bytes that the first rank sends, by axis.
    pub traffic: Vec<CostItem>,
}

/// One item of costs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CostItem {
    /// Name of the item.
    pub name: String,
    /// Seconds or bytes.
    #[serde(with = "crate::number")]
    pub value: f64,
}

impl StepCosts {
    /// Items of the time of a step. A prediction and a measurement have the same.
    pub const COMPUTE: &str = "compute";
    /// Sums over tensor-parallel ranks that the computation waits for.
    pub const TENSOR: &str = "tensor collectives";
    /// Exchanges of ranks that share sequences.
    pub const CONTEXT: &str = "context collectives";
    /// Messages between pipeline ranks, and waiting for them.
    pub const PIPELINE: &str = "messages and bubble";
    /// Collectives of data-parallel ranks that nothing hides.
    pub const DATA: &str = "data collectives";
    /// The optimizer's update.
    pub const OPTIMIZER: &str = "optimizer";
    /// The rest of the step.
    pub const OTHER: &str = "other";

    /// Bytes on the rank that holds most.
    pub fn memory_bytes(&self) -> f64 {
        self.memory.iter().map(|item| item.value).sum()
    }

    /// Bytes that the first rank sends.
    pub fn traffic_bytes(&self) -> f64 {
        self.traffic.iter().map(|item| item.value).sum()
    }
}

impl CostItem {
    /// An item.
    pub fn new(name: &str, value: f64) -> CostItem {
        CostItem { name: name.to_owned(), value }
    }
}
