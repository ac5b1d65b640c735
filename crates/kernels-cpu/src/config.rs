//! Settings of the CPU backend.

use bessemer_units::MatmulPrecision;
use serde::{Deserialize, Serialize};

/// Threads of the CPU backend, and how exact its products are.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CpuConfig {
    /// Threads that compute, the calling thread included. 0 takes every core that the process may run on.
    pub threads: usize,
    /// Bind each worker thread to a core of its own. Worth it on a machine that runs nothing else.
    pub pin: bool,
    /// How exact matrix products must be; the fastest way that the processor has is taken.
    pub matmul: MatmulPrecision,
}

impl CpuConfig {
    /// More threads than any machine that this is meant for: a larger number is a mistake.
    pub const MAX_THREADS: usize = 1024;

    /// Errors, naming the key, the value and the allowed range.
    pub fn check(&self) -> Result<(), String> {
        if self.threads > CpuConfig::MAX_THREADS {
            return Err(format!(
                "threads = {}: allowed are 0 (all cores) to {}",
                self.threads,
                CpuConfig::MAX_THREADS
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_thread_counts_are_refused_by_name() {
        assert!(CpuConfig::default().check().is_ok());
        let e = CpuConfig { threads: 5000, ..CpuConfig::default() }.check().unwrap_err();
        assert!(e.contains("threads = 5000") && e.contains("1024"), "{e}");
    }
}
