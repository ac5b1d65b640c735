//! `[train.teacher]`: the model that a run distils.

use crate::train::MOST_STEPS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[train.teacher]`: distillation. `weight x temperature^2 KL(teacher || student)` of each token is added to what is minimised (Hinton
/// et al. 2015; a mixture of students: Rajbhandari et al. 2022). The loss that is reported stays the cross-entropy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TeacherConfig {
    /// Run directory, directory of checkpoints, one checkpoint or address, as `train.init.from`: the model whose predictions the run learns
    /// from, of the run's tokenizer. Empty: there is none. With data parallelism every rank holds it in f32.
    pub from: String,
    /// Weight of the divergence.
    pub weight: f64,
    /// Temperature, by which the logits of both models are divided.
    pub temperature: f64,
    /// Steps with the teacher, from the first one; after them the loss is the cross-entropy alone. A student that is taught to the end may be
    /// worse (Rajbhandari et al. 2022, section 4.2). 0: all steps.
    pub steps: u64,
}

impl Default for TeacherConfig {
    fn default() -> TeacherConfig {
        TeacherConfig { from: String::new(), weight: 1.0, temperature: 1.0, steps: 0 }
    }
}

impl TeacherConfig {
    /// Whether there is a teacher.
    pub fn is_on(&self) -> bool {
        !self.from.is_empty()
    }

    /// The first step without the teacher, from 0; `None` if all steps have it.
    pub fn until(&self) -> Option<u64> {
        (self.steps > 0).then_some(self.steps)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        for (key, value, least) in [("weight", self.weight, 1e-6), ("temperature", self.temperature, 0.01)] {
            if !(least..=1e3).contains(&value) {
                return Err(format!("train.teacher.{key} = {value}: expected {least} to 1000"));
            }
        }
        if self.steps > MOST_STEPS {
            return Err(format!("train.teacher.steps = {}: expected 0 to {MOST_STEPS}", self.steps));
        }
        if self.is_on() {
            return Ok(());
        }
        let TeacherConfig { weight, temperature, steps, .. } = TeacherConfig::default();
        let given = [
            (self.weight != weight, format!("weight = {}", self.weight)),
            (self.temperature != temperature, format!("temperature = {}", self.temperature)),
            (self.steps != steps, format!("steps = {}", self.steps)),
        ];
        match given.into_iter().find(|(given, _)| *given) {
            Some((_, text)) => Err(format!(
                "train.teacher.{text} needs a teacher, and train.teacher.from = \"\" names none: expected train.teacher.from = \"runs/NAME\", \
                 or no such key"
            )),
            None => Ok(()),
        }
    }
}
