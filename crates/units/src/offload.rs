//! Offloading of what a forward pass stores for the backward pass.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// Memory in which the activations that a layer stores wait for its backward pass.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Offload {
    /// The memory of the device.
    #[default]
    None,
    /// A file, written and read beside the computation.
    Disk,
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Offload::None => "none",
            Offload::Disk => "disk",
        })
    }
}

/// Which layers offload their activations, and where to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OffloadPlan {
    /// The memory.
    pub to: Offload,
    /// The first so many layers of each pipeline stage; 0 for all.
    pub layers: usize,
}

impl OffloadPlan {
    /// Whether some layers are offloaded.
    pub fn is_on(&self) -> bool {
        self.to != Offload::None
    }

    /// The same for the first so many layers of each stage only, of those that are offloaded.
    pub fn first(self, layers: usize) -> OffloadPlan {
        if layers == 0 { OffloadPlan::default() } else { OffloadPlan { layers: self.count(layers), ..self } }
    }

    /// Offloaded layers of a stage of so many.
    pub fn count(&self, layers: usize) -> usize {
        match (self.is_on(), self.layers) {
            (false, _) => 0,
            (true, 0) => layers,
            (true, first) => first.min(layers),
        }
    }

    /// Whether a layer, which stands in a pipeline stage that holds the layers `stage`, is offloaded.
    pub fn has(&self, layer: usize, stage: &Range<usize>) -> bool {
        self.is_on() && (self.layers == 0 || layer.saturating_sub(stage.start) < self.layers)
    }
}

impl From<Offload> for OffloadPlan {
    fn from(to: Offload) -> Self {
        OffloadPlan { to, layers: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_counted_in_each_stage() {
        let plan = OffloadPlan { to: Offload::Disk, layers: 2 };
        let has = |plan: &OffloadPlan, stage: Range<usize>| -> Vec<usize> {
            stage.clone().filter(|layer| plan.has(*layer, &stage)).collect()
        };
        assert_eq!((has(&plan, 0..3), has(&plan, 3..4), has(&plan, 4..8)), (vec![0, 1], vec![3], vec![4, 5]));
        assert_eq!(has(&Offload::Disk.into(), 1..4), [1, 2, 3]);
        assert!(has(&OffloadPlan { layers: 2, ..OffloadPlan::default() }, 0..4).is_empty());
        assert_eq!((plan.count(1), plan.count(5)), (1, 2));
        assert_eq!((OffloadPlan::from(Offload::Disk).count(5), OffloadPlan::default().count(5)), (5, 0));
        assert_eq!(has(&plan.first(1), 3..6), [3]);
        assert_eq!(has(&plan.first(3), 3..6), [3, 4]);
        assert_eq!(plan.first(0), OffloadPlan::default());
    }
}
