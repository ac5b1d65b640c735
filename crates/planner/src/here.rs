//! This machine as a machine of the planner, measured in a second or two before the first step.
//!
//! A rank is a device. What is measured is what `bessemer doctor --machine` writes, of fewer shapes and less often.

use crate::{Host, PlannerError};
use bessemer_arch::{MlpKind, Model};
use bessemer_measure::machine;
use bessemer_measure::{Effort, measure_machine};
use bessemer_plan::{Efficiency, Machine};
use bessemer_units::{DType, MatmulPrecision};

/// The name of this machine for a host's ranks. It says what a plan depends on that can differ between two sessions.
pub(crate) fn name(host: &Host) -> String {
    let plural = if host.threads == 1 { "" } else { "s" };
    format!("this machine ({}, {} thread{plural} a rank)", machine::processor(), host.threads)
}

/// A training whose machine is measured.
pub(crate) struct Measured<'a> {
    pub(crate) model: &'a Model,
    /// Activations between operators.
    pub(crate) activations: DType,
    pub(crate) matmul: MatmulPrecision,
}

/// Measures this machine for a training.
///
/// # Errors
/// Ranks on several machines, whose network nothing here measures; a measurement that fails.
pub(crate) fn measure(
    host: &Host,
    training: &Measured<'_>,
    report: &mut dyn FnMut(&str),
) -> Result<Machine, PlannerError> {
    if host.local < host.ranks {
        return Err(PlannerError::request(format!(
            "parallel.layout = \"auto\" for {} ranks, of which {} are on this machine: wanted parallel.machine, because the network between \
             machines is not measured; `bessemer doctor` measures one of them",
            host.ranks, host.local
        )));
    }
    let architecture = if training.model.mlp() == MlpKind::Gated { "llama" } else { "gpt2" };
    let effort = Effort::quick(architecture, training.activations);
    let machine = measure_machine(host.local, host.threads, training.matmul, &effort, report)?;
    Ok(Machine { name: name(host), memory: host.memory.0 as f64, ..machine })
}

/// Constants of the cost model for the CPU engine: no host launches kernels, values are f32, attention computes in blocks. They are
/// rounded, and fitted to nothing.
pub(crate) fn efficiency() -> Efficiency {
    Efficiency {
        kernel_seconds: 2e-6,
        attention_share: 0.25,
        stream_bytes: 48.0,
        inner_bytes: 16.0,
        forward_seconds: 2e-5,
        backward_seconds: 4e-5,
        all_reduce_factor: 1.0,
        optimizer_bytes: 32.0,
        logit_bytes: 16.0,
        step_seconds: 1e-4,
        ..Efficiency::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_arch::ModelConfig;
    use bessemer_units::Bytes;

    #[test]
    fn ranks_share_the_machine_and_their_sums_take_time() {
        let host = |ranks, local| Host { ranks, local, threads: 1, memory: Bytes(1 << 30) };
        let model =
            ModelConfig { layers: Some(1), ..ModelConfig::default() }.resolve(Some(64)).expect("a model");
        let training = Measured { model: &model, activations: DType::F32, matmul: MatmulPrecision::Highest };
        let measured = |host: &Host| measure(host, &training, &mut |_| ());
        let machine = measured(&host(2, 2)).expect("a measurement");
        assert!(machine.matrix_flops > 1e8 && machine.memory_bandwidth > 1e7);
        assert_eq!(
            (machine.memory, machine.node, machine.name.as_str()),
            ((1u64 << 30) as f64, 2, name(&host(2, 2)).as_str())
        );
        let sum = |bytes| machine.all_reduce.seconds(2, bytes);
        assert!(sum(4096.0) > 0.0 && sum(4096.0 * 1024.0) > 0.0);
        // All that a step of tensor-parallel ranks launches was measured, or has a model.
        let found = machine.measured.expect("measurements");
        let names: Vec<&str> = found.operators.iter().map(|one| one.name.as_str()).collect();
        for wanted in ["attention", "attention_backward", "adamw", "logit_sums", "linear_cross_entropy_shard"]
        {
            assert!(names.contains(&wanted), "{wanted}: {names:?}");
        }
        assert_eq!(
            (found.products.len(), found.in_process.map(|process| process.spare_cores).is_some()),
            (3, true)
        );
        let refused = measured(&host(4, 2)).expect_err("a network that is not measured").to_string();
        assert!(refused.contains("parallel.machine"), "{refused}");
        let alone = measured(&host(1, 1)).expect("a measurement");
        assert_eq!(alone.all_reduce.seconds(1, 1e9), 0.0);
        assert!(alone.measured.is_some_and(|found| found.in_process.is_none()));
    }
}
